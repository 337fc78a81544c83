"""OffsetDelete (47), version 0."""

from __future__ import annotations

from clarion.wire.messages import message


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
