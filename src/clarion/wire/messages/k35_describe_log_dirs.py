"""DescribeLogDirs v1-4.

v2 flexible · v3 error code of the whole answer · v4 total and usable bytes of the disk.

`topics` None means every partition.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribableLogDirTopic:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeLogDirsRequest:
    topics: tuple[DescribableLogDirTopic, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeLogDirsPartition:
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeLogDirsTopic:
    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeLogDirsResult:
    error_code: int = 0
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: int = -1  # v4+
    usable_bytes: int = -1  # v4+


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeLogDirsResponse:
    throttle_time: int = 0
    error_code: int = 0  # v3+
    results: tuple[DescribeLogDirsResult, ...]
