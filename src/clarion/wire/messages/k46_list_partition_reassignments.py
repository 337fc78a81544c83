"""ListPartitionReassignments (46), version 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPartitionReassignmentsTopics:
    name: str
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPartitionReassignmentsRequest:
    timeout: int = 60_000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OngoingPartitionReassignment:
    partition_index: int
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OngoingTopicReassignment:
    name: str
    partitions: tuple[OngoingPartitionReassignment, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ListPartitionReassignmentsResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    topics: tuple[OngoingTopicReassignment, ...] = ()
