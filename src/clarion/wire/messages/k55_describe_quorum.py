"""DescribeQuorum (55), versions 0-2. v1 adds times, v2 messages, directories and the nodes with their listeners."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class PartitionAsked:
    partition_index: int


@message
class TopicAsked:
    topic_name: str
    partitions: tuple[PartitionAsked, ...] = ()


@message
class DescribeQuorumRequest:
    topics: tuple[TopicAsked, ...] = ()


@message
class ReplicaState:
    replica_id: int
    replica_directory_id: UUID = NO_TOPIC_ID  # v2+
    log_end_offset: int
    last_fetch_timestamp: int = -1  # v1+
    last_caught_up_timestamp: int = -1  # v1+


@message
class PartitionData:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None  # v2+
    leader_id: int = -1
    leader_epoch: int = -1
    high_watermark: int = -1
    current_voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()


@message
class TopicData:
    topic_name: str
    partitions: tuple[PartitionData, ...] = ()


@message
class Listener:
    name: str
    host: str
    port: int


@message
class Node:
    node_id: int
    listeners: tuple[Listener, ...] = ()


@message
class DescribeQuorumResponse:
    error_code: int = 0
    error_message: str | None = None  # v2+
    topics: tuple[TopicData, ...] = ()
    nodes: tuple[Node, ...] = ()  # v2+
