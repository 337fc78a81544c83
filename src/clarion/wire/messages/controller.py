"""What the controller is asked: the quorum, features, quotas."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message

# DescribeQuorum (55), versions 0-2. v1 adds times, v2 messages, directories and the nodes with their listeners.


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
class QuorumListener:
    name: str
    host: str
    port: int


@message
class QuorumNode:
    node_id: int
    listeners: tuple[QuorumListener, ...] = ()


@message
class DescribeQuorumResponse:
    error_code: int = 0
    error_message: str | None = None  # v2+
    topics: tuple[TopicData, ...] = ()
    nodes: tuple[QuorumNode, ...] = ()  # v2+


# UpdateFeatures v0-2. v0 `allow_downgrade` · v1 `upgrade_type` instead, `validate_only` · v2 no result per feature
# any more.


@message
class FeatureUpdateKey:
    feature: str
    max_version_level: int
    upgrade_type: int = 1  # v1+
    allow_downgrade: bool = False  # v0


@message
class UpdateFeaturesRequest:
    timeout: int = 60000
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = False  # v1+


@message
class UpdatableFeatureResult:
    feature: str
    error_code: int = 0
    error_message: str | None = None


@message
class UpdateFeaturesResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...] = ()  # v0-1


# UnregisterBroker (64), version 0.


@message
class UnregisterBrokerRequest:
    broker_id: int


@message
class UnregisterBrokerResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None


# DescribeClientQuotas (48), versions 0-1.


@message
class ComponentData:
    entity_type: str
    match_type: int
    match: str | None = None


@message
class DescribeClientQuotasRequest:
    components: tuple[ComponentData, ...] = ()
    strict: bool = False


@message
class EntityData:
    entity_type: str
    entity_name: str | None = None


@message
class ValueData:
    key: str
    value: float


@message
class EntryData:
    entity: tuple[EntityData, ...] = ()
    values: tuple[ValueData, ...] = ()


@message
class DescribeClientQuotasResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    entries: tuple[EntryData, ...] | None = None
