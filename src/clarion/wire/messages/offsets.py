"""Committed offsets: commit, fetch, delete."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message

# OffsetCommit (8), versions 2–10. v5 drops the retention time, v6 adds the leader epoch, v7 the instance id, v9
# member epochs, v10 topic ids.


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


# OffsetFetch (9), versions 1–10. v2 asks for all topics with null, v7 adds require_stable, v8 several groups, v9
# member epochs, v10 topic ids. What v8 says in `groups` has the form of what was said before.


@message
class OffsetFetchRequestTopic:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partition_indexes: tuple[int, ...] = ()


@message
class OffsetFetchRequestGroup:
    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None


@message
class OffsetFetchRequest:
    """Up to v7 `group_id` and `topics`, from v8 `groups`."""

    group_id: str = ""
    topics: tuple[OffsetFetchRequestTopic, ...] | None = None
    groups: tuple[OffsetFetchRequestGroup, ...] = ()
    require_stable: bool = False


@message
class OffsetFetchResponsePartition:
    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


@message
class OffsetFetchResponseTopic:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[OffsetFetchResponsePartition, ...] = ()


@message
class OffsetFetchResponseGroup:
    group_id: str
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: int = 0


@message
class OffsetFetchResponse:
    """Up to v7 `topics` and `error_code`, from v8 `groups`."""

    throttle_time: int = 0
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: int = 0
    groups: tuple[OffsetFetchResponseGroup, ...] = ()


# OffsetDelete (47), version 0.


@message
class OffsetDeleteRequestPartition:
    partition_index: int


@message
class OffsetDeleteRequestTopic:
    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...] = ()


@message
class OffsetDeleteRequest:
    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...] = ()


@message
class OffsetDeleteResponsePartition:
    partition_index: int
    error_code: int = 0


@message
class OffsetDeleteResponseTopic:
    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...] = ()


@message
class OffsetDeleteResponse:
    error_code: int = 0
    throttle_time: int = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
