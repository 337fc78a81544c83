"""Which names may come near a path or another client: Kafka's own rules."""

from __future__ import annotations

import re

from clarion.model.errors import ErrorCode, KafkaError

TOPIC_NAME_LENGTH_MAX = 249  # Kafka's limit: "<topic>-<partition>" must still fit into a 255-byte file name
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")

OFFSETS_TOPIC = "__consumer_offsets"
SHARE_STATE_TOPIC = "__share_group_state"
# The one in the middle comes with transactions; reserved now, since a client's topic would be in the way then.
COORDINATED_TOPICS = frozenset({OFFSETS_TOPIC, SHARE_STATE_TOPIC})  # what is in them is found by their partition counts
METADATA_TOPIC = "__cluster_metadata"  # Kafka's own log of topics and settings; here it is a name that tools ask about
EVENTS_TOPIC = "__cluster_events"  # Clarion's own: what the cluster manager decided, and why
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state", SHARE_STATE_TOPIC, EVENTS_TOPIC})


def check_topic_name(name: str) -> None:
    """Refuse a topic name that Kafka would refuse; what passes is safe as part of a folder's name."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic name cannot be empty")
    if name in (".", ".."):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"a topic cannot be called {name!r}")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one has {len(name)}",
        )
    if not _LEGAL.fullmatch(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name!r}: only letters, digits, '.', '_' and '-' are allowed",
        )


def is_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS
