"""CreatePartitions v0-3.

v1 same · v2 flexible · v3 THROTTLING_QUOTA_EXCEEDED.

`assignments` None lets the broker place the new partitions.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...]


@message
class CreatePartitionsTopic:
    name: str
    count: int
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


@message
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...]
    timeout: int
    validate_only: bool


@message
class CreatePartitionsTopicResult:
    name: str
    error_code: int = 0
    error_message: str | None = None


@message
class CreatePartitionsResponse:
    throttle_time: int = 0
    results: tuple[CreatePartitionsTopicResult, ...]
