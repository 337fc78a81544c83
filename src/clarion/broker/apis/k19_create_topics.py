"""CreateTopics v2-7: make topics.

v3 same · v4 -1 partitions or replicas mean the broker's default · v5 flexible, the answer tells partitions, replicas
and settings · v6 THROTTLING_QUOTA_EXCEEDED · v7 topic id.

Replicas go on different brokers, in different racks as far as there are enough. Left out: the timeout, since a topic
exists when the answer leaves; quotas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from clarion.broker.apis.config_entries import topic_entries
from clarion.broker.apis.placement import check_factor, check_replicas, check_total
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import StoreError
from clarion.cluster.topic_rules import check_new_name, check_new_topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID, TopicId
from clarion.model.names import METADATA_TOPIC
from clarion.model.topic_settings import parse
from clarion.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

DEFAULT: Final = -1
TOPICS_MAX: Final = 10_000  # in one request: the answer lists every setting of every topic


class Wanted(NamedTuple):
    """A topic that may be made."""

    name: str
    partition_count: int
    overrides: Mapping[str, str]
    replication_factor: int | None  # None: the client leaves it to the cluster
    assignments: tuple[tuple[int, ...], ...] | None  # None: the client leaves it to the cluster where replicas are


async def handle(broker: Broker, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    asked_once = {topic.name: topic for topic in request.topics}  # who comes twice is answered once, as in Kafka
    total = sum(_counted(broker, topic) for topic in request.topics)
    results = []
    async for number, topic in broker.turns.each(enumerate(asked_once.values(), start=1)):
        try:
            check_total(total, broker.config.limits.request_partitions_max)
            if number > TOPICS_MAX:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"at most {TOPICS_MAX} topics in one request")
            if times_named[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            broker.resolver.require_creation(context.principal, topic.name)
            results.append(await _create(broker, topic, validate_only=request.validate_only))
        except REFUSALS as error:
            results.append(_refused(topic, error))
    return CreateTopicsResponse(topics=tuple(results))


def _counted(broker: Broker, topic: CreatableTopic) -> int:
    """The partitions it asks for; nonsense is refused elsewhere."""
    if topic.assignments:
        return len(topic.assignments)
    return broker.config.default_partitions if topic.num_partitions == DEFAULT else max(topic.num_partitions, 0)


async def _create(broker: Broker, topic: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
    wanted = _wanted(broker, topic)
    if validate_only:
        check_new_topic(broker.image, broker.registry.limits, wanted.name, wanted.partition_count)
        return _created(broker, wanted, NO_TOPIC_ID)
    made = await broker.create_topic(*wanted)
    return _created(broker, wanted, made.id)


def _wanted(broker: Broker, topic: CreatableTopic) -> Wanted:
    """Checked in Kafka's order, name, settings, replicas: who creates or finds a topic hears first that it exists."""
    if topic.name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    check_new_name(broker.image, topic.name)
    if topic.name in broker.closed_to_clients:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{topic.name} is internal: the broker makes it itself")
    given = {config.name: config.value for config in topic.configs}
    parse(given, broker.partitions.defaults)
    count = _assigned_count(broker, topic) if topic.assignments else _asked_count(broker, topic)
    overrides = {name: value for name, value in given.items() if value is not None}
    return Wanted(topic.name, count, overrides, _asked_factor(topic), _asked_replicas(topic))


def _asked_factor(topic: CreatableTopic) -> int | None:
    if topic.assignments:
        return len(topic.assignments[0].broker_ids)
    return None if topic.replication_factor == DEFAULT else topic.replication_factor


def _asked_replicas(topic: CreatableTopic) -> tuple[tuple[int, ...], ...] | None:
    if not topic.assignments:
        return None
    in_order = sorted(topic.assignments, key=lambda one: one.partition_index)
    return tuple(tuple(one.broker_ids) for one in in_order)


def _asked_count(broker: Broker, topic: CreatableTopic) -> int:
    wanted = topic.replication_factor
    if wanted < DEFAULT or wanted == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    check_factor(wanted, broker.registry.placeable)
    if topic.num_partitions == DEFAULT:
        return broker.config.default_partitions
    return topic.num_partitions


def _assigned_count(broker: Broker, topic: CreatableTopic) -> int:
    """With assignments, the number of partitions is the number of assignments, and nothing else may say it."""
    if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but partition count or replication factor was not set to -1.",
        )
    _check_assignments(topic.assignments, broker.registry.placeable)
    return len(topic.assignments)


def _check_assignments(assignments: tuple[CreatableReplicaAssignment, ...], known: Set[int]) -> None:
    indexes = sorted(one.partition_index for one in assignments)
    if indexes != list(range(len(indexes))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    for one in assignments:
        check_replicas(one.broker_ids, known)
    if len({len(one.broker_ids) for one in assignments}) > 1:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "All partitions must have the same number of replicas.")


def _created(broker: Broker, wanted: Wanted, topic_id: TopicId) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=wanted.name,
        topic_id=topic_id,
        num_partitions=wanted.partition_count,
        replication_factor=broker.registry.replication_factor_of(wanted.replication_factor),
        configs=tuple(
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in topic_entries(wanted.overrides, broker.dynamic)
        ),
    )


def _refused(topic: CreatableTopic, error: KafkaError | OSError | StoreError) -> CreatableTopicResult:
    refusal = refusal_of(error, topic.name)
    return CreatableTopicResult(name=topic.name, error_code=refusal.code, error_message=refusal.message)
