"""Topics and what is in them: create, extend, delete."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message

# CreateTopics v2-7. v4 -1 partitions or replicas mean the broker's default · v5 flexible, the answer tells
# partitions, replicas, settings · v6 THROTTLING_QUOTA_EXCEEDED · v7 topic id.


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


# CreatePartitions v0-3. v1 same · v2 flexible · v3 THROTTLING_QUOTA_EXCEEDED. `assignments` None lets the broker
# place the new partitions.


@message
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...]


@message
class CreatePartitionsTopic:
    name: str
    count: int
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


@message
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...]
    timeout: int
    validate_only: bool


@message
class CreatePartitionsTopicResult:
    name: str
    error_code: int = 0
    error_message: str | None = None


@message
class CreatePartitionsResponse:
    throttle_time: int = 0
    results: tuple[CreatePartitionsTopicResult, ...]


# DeleteTopics v1-6. v4 flexible · v5 error message · v6 topics by name or id (`topics` instead of `topic_names`).


@message
class DeleteTopicState:
    name: str | None = None
    topic_id: UUID


@message
class DeleteTopicsRequest:
    topics: tuple[DeleteTopicState, ...] = ()  # v6+
    timeout: int
    topic_names: tuple[str, ...] = ()  # v1-5


@message
class DeletableTopicResult:
    name: str | None = None
    topic_id: UUID = NO_TOPIC_ID  # v6+
    error_code: int = 0
    error_message: str | None = None  # v5+


@message
class DeleteTopicsResponse:
    throttle_time: int = 0
    responses: tuple[DeletableTopicResult, ...]


# DeleteRecords v0-2: move a partition's start forward. v1 same · v2 flexible.


@message
class DeleteRecordsPartition:
    partition_index: int
    offset: int


@message
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@message
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]
    timeout: int


@message
class DeleteRecordsPartitionResult:
    partition_index: int
    low_watermark: int
    error_code: int = 0


@message
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@message
class DeleteRecordsResponse:
    throttle_time: int = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
