"""AlterPartitionReassignments (45), versions 0-1. v1 adds whether the number of replicas may change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReassignablePartition:
    partition_index: int
    replicas: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReassignableTopic:
    name: str
    partitions: tuple[ReassignablePartition, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterPartitionReassignmentsRequest:
    timeout: int = 60_000
    allow_replication_factor_change: bool = True  # v1+
    topics: tuple[ReassignableTopic, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReassignablePartitionResponse:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReassignableTopicResponse:
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterPartitionReassignmentsResponse:
    throttle_time: int = 0
    allow_replication_factor_change: bool = True  # v1+
    error_code: int = 0
    error_message: str | None = None
    responses: tuple[ReassignableTopicResponse, ...] = ()
