"""Names for what travels through every room."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple
from uuid import UUID

TopicId = UUID

NO_TOPIC_ID = UUID(int=0)
_SHORT_ID_LENGTH: Final = 22  # 16 bytes in URL-safe base64, without padding


def topic_id_text(topic_id: TopicId) -> str:
    """As Kafka's tools spell it."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_of(text: str) -> TopicId | None:
    """What may be a topic's id, as Kafka's tools or as UUIDs are written; it may also be a name."""
    try:
        if len(text) == _SHORT_ID_LENGTH:
            return UUID(bytes=urlsafe_b64decode(text + "=="))
        return UUID(text) if len(text) in (32, 36) else None
    except ValueError:
        return None


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogPosition(NamedTuple):
    """An offset together with the place of its first byte: `position` in the segment that starts at `segment`."""

    offset: int
    segment: int
    position: int
