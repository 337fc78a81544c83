"""AlterPartitionReassignments (45), versions 0-1. v1 adds whether the number of replicas may change."""

from __future__ import annotations

from clarion.wire.messages import message


@message
class ReassignablePartition:
    partition_index: int
    replicas: tuple[int, ...] | None = None


@message
class ReassignableTopic:
    name: str
    partitions: tuple[ReassignablePartition, ...] = ()


@message
class AlterPartitionReassignmentsRequest:
    timeout: int = 60_000
    allow_replication_factor_change: bool = True  # v1+
    topics: tuple[ReassignableTopic, ...] = ()


@message
class ReassignablePartitionResponse:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None


@message
class ReassignableTopicResponse:
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...] = ()


@message
class AlterPartitionReassignmentsResponse:
    throttle_time: int = 0
    allow_replication_factor_change: bool = True  # v1+
    error_code: int = 0
    error_message: str | None = None
    responses: tuple[ReassignableTopicResponse, ...] = ()
