"""CreateTopics v2-7.

v4 -1 partitions or replicas mean the broker's default · v5 flexible, the answer tells partitions, replicas, settings ·
v6 THROTTLING_QUOTA_EXCEEDED · v7 topic id.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatableReplicaAssignment:
    partition_index: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatableTopicConfig:
    name: str
    value: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatableTopic:
    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateTopicsRequest:
    topics: tuple[CreatableTopic, ...]
    timeout: int = 60000
    validate_only: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatableTopicConfigs:
    name: str
    value: str | None = None
    read_only: bool
    config_source: int = -1
    is_sensitive: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatableTopicResult:
    name: str
    topic_id: UUID = NO_TOPIC_ID  # v7+
    error_code: int = 0
    error_message: str | None = None
    num_partitions: int = -1  # v5+
    replication_factor: int = -1  # v5+
    configs: tuple[CreatableTopicConfigs, ...] | None = ()  # v5+
    topic_config_error_code: int = 0  # v5+


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateTopicsResponse:
    throttle_time: int = 0
    topics: tuple[CreatableTopicResult, ...]
