"""The tables as this version of Clarion reads them. How they came to be is in `migrations`; a test compares the two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Integer, MetaData, Table, Text

from clarion.model.beginnings import Beginnings
from clarion.model.subscription import PushEndpoint, Subscription

METADATA: Final = MetaData()
STATE_ID: Final = 1  # of the one row


def _needed(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


state = Table(
    "catalog_state",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _needed("revision", BigInteger),
)
subscriptions = Table(
    "subscriptions",
    METADATA,
    Column("name", Text, primary_key=True),
    _needed("topics", Text),  # a list, as JSON
    Column("pattern", Text),
    _needed("mode", Text),
    Column("filter", Text),
    Column("retention_ms", BigInteger),
    _needed("ack_timeout_ms", BigInteger),
    _needed("max_deliveries", Integer),
    _needed("backoff_min_ms", BigInteger),
    _needed("backoff_max_ms", BigInteger),
    Column("dead_letter_topic", Text),
    _needed("per_key_order", Boolean),
    _needed("window", Integer),
    Column("message_ttl_ms", BigInteger),
    _needed("start", Text),
    _needed("paused", Boolean),
    _needed("created_ms", BigInteger),
    _needed("revision", BigInteger),
    _needed("guarantee", Text),
    Column("begins", Text),  # offsets by topic id and partition, as JSON
)
endpoints = Table(
    "endpoints",
    METADATA,
    Column("subscription", Text, ForeignKey("subscriptions.name", ondelete="CASCADE"), primary_key=True),
    _needed("url", Text),
    _needed("secret", Text),
    _needed("batch_max", Integer),
    _needed("ordered", Boolean),
    _needed("timeout_ms", BigInteger),
    _needed("headers", Text),  # a list of pairs, as JSON
    _needed("allow_private", Boolean),
)


def subscription_row(subscription: Subscription) -> dict[str, Any]:
    row = {one.name: getattr(subscription, one.name) for one in fields(Subscription) if one.name != "push"}
    begins = None if subscription.begins is None else subscription.begins.to_text()
    return {**row, "topics": json.dumps(subscription.topics), "begins": begins}


def endpoint_row(name: str, endpoint: PushEndpoint) -> dict[str, Any]:
    row = {one.name: getattr(endpoint, one.name) for one in fields(PushEndpoint)}
    return {**row, "subscription": name, "headers": json.dumps(endpoint.headers)}


def read_subscription(row: Mapping[str, Any], endpoint: Mapping[str, Any] | None) -> Subscription:
    """ValueError where somebody else has written what is not JSON."""
    begins = None if row["begins"] is None else Beginnings.from_text(row["begins"])
    found = Subscription(**{**row, "topics": tuple(json.loads(row["topics"])), "begins": begins})
    if endpoint is None:
        return found
    values = {name: value for name, value in endpoint.items() if name != "subscription"}
    headers = tuple((name, value) for name, value in json.loads(endpoint["headers"]))
    return replace(found, push=PushEndpoint(**{**values, "headers": headers}))
