"""DescribeProducers (61), version 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicRequest:
    name: str
    partition_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeProducersRequest:
    topics: tuple[TopicRequest, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerState:
    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    current_txn_start_offset: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionResponse:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicResponse:
    name: str
    partitions: tuple[PartitionResponse, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeProducersResponse:
    throttle_time: int = 0
    topics: tuple[TopicResponse, ...] = ()
