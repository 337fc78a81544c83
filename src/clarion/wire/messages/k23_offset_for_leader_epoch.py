"""OffsetForLeaderEpoch v2-4: where a leader epoch ended, so that a reader can see that the log was cut.

v3 replica id · v4 flexible.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetForLeaderPartition:
    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetForLeaderEpochRequest:
    replica_id: int = -2  # v3+
    topics: tuple[OffsetForLeaderTopic, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEndOffset:
    error_code: int = 0
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[EpochEndOffset, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetForLeaderEpochResponse:
    throttle_time: int = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]
