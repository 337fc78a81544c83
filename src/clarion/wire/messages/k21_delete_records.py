"""DeleteRecords v0-2: move a partition's start forward.

v1 same · v2 flexible.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class DeleteRecordsPartition:
    partition_index: int
    offset: int


@message
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@message
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]
    timeout: int


@message
class DeleteRecordsPartitionResult:
    partition_index: int
    low_watermark: int
    error_code: int = 0


@message
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@message
class DeleteRecordsResponse:
    throttle_time: int = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
