"""The little that the broker reads of the classic consumers' own protocol: which topics a member subscribes to."""

from __future__ import annotations

from clarion.groups.codec import Reader
from clarion.model.errors import MalformedError

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of a ConsumerProtocolSubscription of any version; None when it cannot be read."""
    try:
        reader = Reader(subscription)
        return frozenset(reader.string() for _ in range(reader.count()))
    except MalformedError:
        return None
