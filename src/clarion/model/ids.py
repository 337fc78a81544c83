"""Names for what travels through every room."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

TopicId = UUID

NO_TOPIC_ID = UUID(int=0)


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
