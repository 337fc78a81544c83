"""OffsetForLeaderEpoch v2-4: where a leader epoch ended, so that a reader can see that the log was cut.

v3 replica id · v4 flexible.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class OffsetForLeaderPartition:
    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


@message
class OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


@message
class OffsetForLeaderEpochRequest:
    replica_id: int = -2  # v3+
    topics: tuple[OffsetForLeaderTopic, ...]


@message
class EpochEndOffset:
    error_code: int = 0
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1


@message
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[EpochEndOffset, ...]


@message
class OffsetForLeaderEpochResponse:
    throttle_time: int = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]
