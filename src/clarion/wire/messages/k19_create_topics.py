"""CreateTopics v2-7.

v4 -1 partitions or replicas mean the broker's default · v5 flexible, the answer tells partitions, replicas, settings ·
v6 THROTTLING_QUOTA_EXCEEDED · v7 topic id.
"""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class CreatableReplicaAssignment:
    partition_index: int
    broker_ids: tuple[int, ...]


@message
class CreatableTopicConfig:
    name: str
    value: str | None = None


@message
class CreatableTopic:
    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


@message
class CreateTopicsRequest:
    topics: tuple[CreatableTopic, ...]
    timeout: int = 60000
    validate_only: bool


@message
class CreatableTopicConfigs:
    name: str
    value: str | None = None
    read_only: bool
    config_source: int = -1
    is_sensitive: bool


@message
class CreatableTopicResult:
    name: str
    topic_id: UUID = NO_TOPIC_ID  # v7+
    error_code: int = 0
    error_message: str | None = None
    num_partitions: int = -1  # v5+
    replication_factor: int = -1  # v5+
    configs: tuple[CreatableTopicConfigs, ...] | None = ()  # v5+
    topic_config_error_code: int = 0  # v5+


@message
class CreateTopicsResponse:
    throttle_time: int = 0
    topics: tuple[CreatableTopicResult, ...]
