"""OffsetFetch (9), versions 1–10.

v2 asks for all topics with null, v7 adds require_stable, v8 several groups, v9 member epochs, v10 topic ids.
"""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class OffsetFetchRequestTopic:
    name: str = ""
    partition_indexes: tuple[int, ...] = ()


@message
class OffsetFetchRequestTopics:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partition_indexes: tuple[int, ...] = ()


@message
class OffsetFetchRequestGroup:
    group_id: str
    member_id: str | None = None
    member_epoch: int = -1
    topics: tuple[OffsetFetchRequestTopics, ...] | None = None


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
    partitions: tuple[OffsetFetchResponsePartition, ...] = ()


@message
class OffsetFetchResponsePartitions:
    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


@message
class OffsetFetchResponseTopics:
    name: str = ""
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[OffsetFetchResponsePartitions, ...] = ()


@message
class OffsetFetchResponseGroup:
    group_id: str
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    error_code: int = 0


@message
class OffsetFetchResponse:
    """Up to v7 `topics` and `error_code`, from v8 `groups`."""

    throttle_time: int = 0
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: int = 0
    groups: tuple[OffsetFetchResponseGroup, ...] = ()
