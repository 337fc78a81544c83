"""DescribeLogDirs v1-4.

v2 flexible · v3 error code of the whole answer · v4 total and usable bytes of the disk.

`topics` None means every partition.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class DescribableLogDirTopic:
    topic: str
    partitions: tuple[int, ...]


@message
class DescribeLogDirsRequest:
    topics: tuple[DescribableLogDirTopic, ...] | None = None


@message
class DescribeLogDirsPartition:
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


@message
class DescribeLogDirsTopic:
    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@message
class DescribeLogDirsResult:
    error_code: int = 0
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: int = -1  # v4+
    usable_bytes: int = -1  # v4+


@message
class DescribeLogDirsResponse:
    throttle_time: int = 0
    error_code: int = 0  # v3+
    results: tuple[DescribeLogDirsResult, ...]
