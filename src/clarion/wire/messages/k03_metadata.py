"""Metadata v0-13: brokers, topics, leaders.

v1 null for all topics, racks, controller, internal topics · v2 cluster id · v3 throttle time · v4 auto-creation · v5
offline replicas · v7 leader epoch · v8 authorized operations · v9 flexible · v10 topic ids · v12 topics by id
without a name · v13 error code of the whole answer.

The broker writes its replies by hand (`wire.metadata`); their form here is for clients and tests.
"""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class MetadataRequestTopic:
    topic_id: UUID = NO_TOPIC_ID  # v10+
    name: str | None = None


@message
class MetadataRequest:
    topics: tuple[MetadataRequestTopic, ...] | None = None
    allow_auto_topic_creation: bool = True  # v4+
    include_topic_authorized_operations: bool = False  # v8+
    include_cluster_authorized_operations: bool = False  # v8-10


@message
class MetadataResponseBroker:
    node_id: int
    host: str
    port: int
    rack: str | None = None  # v1+


@message
class MetadataResponsePartition:
    error_code: int = 0
    partition_index: int
    leader_id: int
    leader_epoch: int = -1  # v7+
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()  # v5+


@message
class MetadataResponseTopic:
    error_code: int = 0
    name: str | None = None
    topic_id: UUID = NO_TOPIC_ID  # v10+
    is_internal: bool = False  # v1+
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: int = -2147483648  # v8+


@message
class MetadataResponse:
    throttle_time: int = 0  # v3+
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None = None  # v2+
    controller_id: int = -1  # v1+
    topics: tuple[MetadataResponseTopic, ...]
    error_code: int = 0  # v13+
    cluster_authorized_operations: int = -2147483648  # v8-10
