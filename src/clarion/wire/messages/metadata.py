"""Who is there and who leads what: what a client asks before anything else."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message

# ApiVersions v0-4: which APIs and features this broker speaks. v1 throttle time · v3 flexible (the response header
# stays v0), the client's name and version, features · v4 a feature's minimum may be 0. Left out: `zk_migration_ready`
# is always false.


@message
class ApiVersionsRequest:
    client_software_name: str = ""  # v3+
    client_software_version: str = ""  # v3+


@message
class ApiVersion:
    api_key: int
    min_version: int
    max_version: int


@message
class SupportedFeatureKey:
    name: str
    min_version: int
    max_version: int


@message
class FinalizedFeatureKey:
    name: str
    max_version_level: int
    min_version_level: int


@message
class ApiVersionsResponse:
    error_code: int = 0
    api_keys: tuple[ApiVersion, ...]
    throttle_time: int = 0  # v1+
    supported_features: tuple[SupportedFeatureKey, ...] = ()  # v3+
    finalized_features_epoch: int = -1  # v3+
    finalized_features: tuple[FinalizedFeatureKey, ...] = ()  # v3+
    zk_migration_ready: bool = False  # v3+


# Metadata v0-13: brokers, topics, leaders. v1 null for all topics, racks, controller, internal topics · v2 cluster id
# · v3 throttle time · v4 auto-creation · v5 offline replicas · v7 leader epoch · v8 authorized operations · v9
# flexible · v10 topic ids · v12 topics by id without a name · v13 error code of the whole answer. The broker writes
# its replies by hand (`wire.metadata`); their form here is for clients and tests.


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


# FindCoordinator (10), versions 0–6. v1 adds the key type, v4 asks for many keys at once, v6 for share groups.


@message
class FindCoordinatorRequest:
    """Up to v3 `key`, from v4 `coordinator_keys`."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: tuple[str, ...] = ()


@message
class FoundCoordinator:
    key: str
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@message
class FindCoordinatorResponse:
    """Up to v3 the single answer, from v4 `coordinators`."""

    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[FoundCoordinator, ...] = ()


# DescribeCluster v0-2. v1 endpoint type (1 brokers, 2 controllers) · v2 fenced brokers.


@message
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int = 1  # v1+
    include_fenced_brokers: bool = False  # v2+


@message
class DescribeClusterBroker:
    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False  # v2+


@message
class DescribeClusterResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1  # v1+
    cluster_id: str
    controller_id: int = -1
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: int = -2147483648


# DescribeTopicPartitions v0: partitions of topics, page by page.


@message
class TopicRequest:
    name: str


@message
class Cursor:
    topic_name: str
    partition_index: int


@message
class DescribeTopicPartitionsRequest:
    topics: tuple[TopicRequest, ...]
    response_partition_limit: int = 2000
    cursor: Cursor | None = None


@message
class DescribeTopicPartitionsResponsePartition:
    error_code: int = 0
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    offline_replicas: tuple[int, ...]


@message
class DescribeTopicPartitionsResponseTopic:
    error_code: int = 0
    name: str | None = None
    topic_id: UUID
    is_internal: bool
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...]
    topic_authorized_operations: int = -2147483648


@message
class DescribeTopicPartitionsResponse:
    throttle_time: int = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: Cursor | None = None
