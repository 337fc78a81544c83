"""DescribeQuorum (55), versions 0-2. v1 adds times, v2 messages, directories and the nodes with their listeners."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionAsked:
    partition_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicAsked:
    topic_name: str
    partitions: tuple[PartitionAsked, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeQuorumRequest:
    topics: tuple[TopicAsked, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaState:
    replica_id: int
    replica_directory_id: UUID = NO_TOPIC_ID  # v2+
    log_end_offset: int
    last_fetch_timestamp: int = -1  # v1+
    last_caught_up_timestamp: int = -1  # v1+


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionData:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None  # v2+
    leader_id: int = -1
    leader_epoch: int = -1
    high_watermark: int = -1
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicData:
    topic_name: str
    partitions: tuple[PartitionData, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    name: str
    host: str
    port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    node_id: int
    listeners: tuple[Listener, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeQuorumResponse:
    error_code: int = 0
    error_message: str | None = None  # v2+
    topics: tuple[TopicData, ...] = ()
    nodes: tuple[Node, ...] = ()  # v2+
