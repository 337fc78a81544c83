"""Names for the numbers that travel through every room, so that they cannot be mixed up."""

from __future__ import annotations

from typing import NamedTuple, NewType
from uuid import UUID

BrokerId = NewType("BrokerId", int)
LeaderEpoch = NewType("LeaderEpoch", int)
Offset = NewType("Offset", int)
ProducerId = NewType("ProducerId", int)
TopicId = UUID

NO_TOPIC_ID = UUID(int=0)
NO_PRODUCER_ID = ProducerId(-1)
NO_EPOCH = LeaderEpoch(-1)


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
