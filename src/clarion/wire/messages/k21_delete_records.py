"""DeleteRecords v0-2: move a partition's start forward.

v1 same · v2 flexible.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteRecordsPartition:
    partition_index: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]
    timeout: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteRecordsPartitionResult:
    partition_index: int
    low_watermark: int
    error_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteRecordsResponse:
    throttle_time: int = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
