"""Replicas and where they are: elections, reassignments, log directories."""

from __future__ import annotations

from clarion.wire.messages import message

# ElectLeaders (43), versions 0-2. v1 adds the kind of election and an error of the whole answer.


@message
class ElectionTopic:
    topic: str
    partitions: tuple[int, ...] = ()


@message
class ElectLeadersRequest:
    election_type: int = 0  # v1+
    topic_partitions: tuple[ElectionTopic, ...] | None = None
    timeout: int = 60_000


@message
class PartitionResult:
    partition_id: int
    error_code: int = 0
    error_message: str | None = None


@message
class ReplicaElectionResult:
    topic: str
    partition_result: tuple[PartitionResult, ...] = ()


@message
class ElectLeadersResponse:
    throttle_time: int = 0
    error_code: int = 0  # v1+
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()


# AlterPartitionReassignments (45), versions 0-1. v1 adds whether the number of replicas may change.


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


# ListPartitionReassignments (46), version 0.


@message
class ListPartitionReassignmentsTopics:
    name: str
    partition_indexes: tuple[int, ...] = ()


@message
class ListPartitionReassignmentsRequest:
    timeout: int = 60_000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


@message
class OngoingPartitionReassignment:
    partition_index: int
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


@message
class OngoingTopicReassignment:
    name: str
    partitions: tuple[OngoingPartitionReassignment, ...] = ()


@message
class ListPartitionReassignmentsResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    topics: tuple[OngoingTopicReassignment, ...] = ()


# AlterReplicaLogDirs (34), versions 1-2.


@message
class AlterReplicaLogDirTopic:
    name: str
    partitions: tuple[int, ...] = ()


@message
class AlterReplicaLogDir:
    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...] = ()


@message
class AlterReplicaLogDirsRequest:
    dirs: tuple[AlterReplicaLogDir, ...] = ()


@message
class AlterReplicaLogDirPartitionResult:
    partition_index: int
    error_code: int = 0


@message
class AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = ()


@message
class AlterReplicaLogDirsResponse:
    throttle_time: int = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...] = ()


# DescribeLogDirs v1-4. v2 flexible · v3 error code of the whole answer · v4 total and usable bytes of the disk.
# `topics` None means every partition.


@message
class DescribableLogDirTopic:
    topic: str
    partitions: tuple[int, ...]


@message
class DescribeLogDirsRequest:
    topics: tuple[DescribableLogDirTopic, ...] | None = None


@message
class LogHolder:
    """Clarion's own (`wire.own_fields`): a subscription or group, and what it needs of a partition."""

    name: str
    is_group: bool
    until_acknowledged: bool
    from_offset: int
    held_bytes: int
    since_ms: int


@message
class DescribeLogDirsPartition:
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool
    holders: tuple[LogHolder, ...] = ()  # Clarion's own, where the leader is asked for topics by name


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
