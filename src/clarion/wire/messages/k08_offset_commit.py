"""OffsetCommit (8), versions 2–10.

v5 drops the retention time, v6 adds the leader epoch, v7 the instance id, v9 member epochs, v10 topic ids.
"""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class OffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_metadata: str | None = None
    committed_leader_epoch: int = -1


@message
class OffsetCommitRequestTopic:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[OffsetCommitRequestPartition, ...] = ()


@message
class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time: int = -1
    topics: tuple[OffsetCommitRequestTopic, ...] = ()


@message
class OffsetCommitResponsePartition:
    partition_index: int
    error_code: int = 0


@message
class OffsetCommitResponseTopic:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[OffsetCommitResponsePartition, ...] = ()


@message
class OffsetCommitResponse:
    throttle_time: int = 0
    topics: tuple[OffsetCommitResponseTopic, ...] = ()
