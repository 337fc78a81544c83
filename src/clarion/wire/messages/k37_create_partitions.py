"""CreatePartitions v0-3.

v1 same · v2 flexible · v3 THROTTLING_QUOTA_EXCEEDED.

`assignments` None lets the broker place the new partitions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatePartitionsTopic:
    name: str
    count: int
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...]
    timeout: int
    validate_only: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatePartitionsTopicResult:
    name: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatePartitionsResponse:
    throttle_time: int = 0
    results: tuple[CreatePartitionsTopicResult, ...]
