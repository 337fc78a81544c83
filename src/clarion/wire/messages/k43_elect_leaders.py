"""ElectLeaders (43), versions 0-2. v1 adds the kind of election and an error of the whole answer."""

from __future__ import annotations

from clarion.wire.messages import message


@message
class TopicPartitions:
    topic: str
    partitions: tuple[int, ...] = ()


@message
class ElectLeadersRequest:
    election_type: int = 0  # v1+
    topic_partitions: tuple[TopicPartitions, ...] | None = None
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
