"""Subscriptions and their endpoints."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    state = op.create_table(
        "catalog_state",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        _needed("revision", sa.BigInteger),
    )
    op.create_table(
        "subscriptions",
        sa.Column("name", sa.Text, primary_key=True),
        _needed("topics", sa.Text),
        sa.Column("pattern", sa.Text),
        _needed("mode", sa.Text),
        sa.Column("filter", sa.Text),
        sa.Column("retention_ms", sa.BigInteger),
        _needed("ack_timeout_ms", sa.BigInteger),
        _needed("max_deliveries", sa.Integer),
        _needed("backoff_min_ms", sa.BigInteger),
        _needed("backoff_max_ms", sa.BigInteger),
        sa.Column("dead_letter_topic", sa.Text),
        _needed("per_key_order", sa.Boolean),
        _needed("window", sa.Integer),
        sa.Column("message_ttl_ms", sa.BigInteger),
        _needed("start", sa.Text),
        _needed("paused", sa.Boolean),
        _needed("created_ms", sa.BigInteger),
        _needed("revision", sa.BigInteger),
        _needed("guarantee", sa.Text),
    )
    op.create_table(
        "endpoints",
        sa.Column("subscription", sa.Text, sa.ForeignKey("subscriptions.name", ondelete="CASCADE"), primary_key=True),
        _needed("url", sa.Text),
        _needed("secret", sa.Text),
        _needed("batch_max", sa.Integer),
        _needed("ordered", sa.Boolean),
        _needed("timeout_ms", sa.BigInteger),
        _needed("headers", sa.Text),
        _needed("allow_private", sa.Boolean),
    )
    op.bulk_insert(state, [{"id": 1, "revision": 0}])


def _needed(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)
