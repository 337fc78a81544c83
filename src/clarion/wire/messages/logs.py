"""A partition's log: offsets by time, epochs and their ends, producers."""

from __future__ import annotations

from clarion.wire.messages import message

# ListOffsets v1-11: the offset at a time, at the start, at the end. v2 isolation level, throttle time · v4 leader
# epochs · v6 flexible · v7 time -3 (largest timestamp) · v8 time -4 (earliest local) · v9 time -5 (last tiered) · v10
# timeout · v11 time -6 (earliest not yet uploaded).


@message
class ListOffsetsPartition:
    partition_index: int
    current_leader_epoch: int = -1  # v4+
    timestamp: int


@message
class ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@message
class ListOffsetsRequest:
    replica_id: int
    isolation_level: int = 0  # v2+
    topics: tuple[ListOffsetsTopic, ...]
    timeout: int = 0  # v10+


@message
class ListOffsetsPartitionResponse:
    partition_index: int
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1  # v4+


@message
class ListOffsetsTopicResponse:
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@message
class ListOffsetsResponse:
    throttle_time: int = 0  # v2+
    topics: tuple[ListOffsetsTopicResponse, ...]


# OffsetForLeaderEpoch v2-4: where a leader epoch ended, so that a reader can see that the log was cut. v3 replica id
# · v4 flexible.


@message
class OffsetForLeaderPartition:
    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


@message
class OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


@message
class OffsetForLeaderEpochRequest:
    replica_id: int = -2  # v3+
    topics: tuple[OffsetForLeaderTopic, ...]


@message
class EpochEndOffset:
    error_code: int = 0
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1


@message
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[EpochEndOffset, ...]


@message
class OffsetForLeaderEpochResponse:
    throttle_time: int = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]


# InitProducerId v0-5: a producer's id and epoch. v2 flexible · v3 the producer's present id and epoch, so that it can
# recover · v4 PRODUCER_FENCED · v5 TRANSACTION_ABORTABLE.


@message
class InitProducerIdRequest:
    transactional_id: str | None = None
    transaction_timeout: int
    producer_id: int = -1  # v3+
    producer_epoch: int = -1  # v3+


@message
class InitProducerIdResponse:
    throttle_time: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int


# DescribeProducers (61), version 0.


@message
class DescribeProducersTopic:
    name: str
    partition_indexes: tuple[int, ...] = ()


@message
class DescribeProducersRequest:
    topics: tuple[DescribeProducersTopic, ...] = ()


@message
class ProducerState:
    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    current_txn_start_offset: int = -1


@message
class PartitionResponse:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


@message
class TopicResponse:
    name: str
    partitions: tuple[PartitionResponse, ...] = ()


@message
class DescribeProducersResponse:
    throttle_time: int = 0
    topics: tuple[TopicResponse, ...] = ()
