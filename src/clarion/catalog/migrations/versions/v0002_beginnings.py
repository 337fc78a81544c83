"""Where a subscription begins that was made, or moved, before its first reader came."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("subscriptions", sa.Column("begins", sa.Text))
