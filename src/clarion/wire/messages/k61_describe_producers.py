"""DescribeProducers (61), version 0."""

from __future__ import annotations

from clarion.wire.messages import message


@message
class TopicRequest:
    name: str
    partition_indexes: tuple[int, ...] = ()


@message
class DescribeProducersRequest:
    topics: tuple[TopicRequest, ...] = ()


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
