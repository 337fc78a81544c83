"""OffsetCommit (8), versions 2–10.

v5 drops the retention time, v6 adds the leader epoch, v7 the instance id, v9 member epochs, v10 topic ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_metadata: str | None = None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetCommitRequestTopic:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[OffsetCommitRequestPartition, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time: int = -1
    topics: tuple[OffsetCommitRequestTopic, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetCommitResponsePartition:
    partition_index: int
    error_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetCommitResponseTopic:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[OffsetCommitResponsePartition, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetCommitResponse:
    throttle_time: int = 0
    topics: tuple[OffsetCommitResponseTopic, ...] = ()
