"""CreatePartitions v0-3: more partitions for a topic; never fewer.

v1 same · v2 flexible · v3 THROTTLING_QUOTA_EXCEEDED.

Left out: the timeout, since the partitions exist when the answer leaves; quotas.
"""

from __future__ import annotations

from collections import Counter

from clarion.broker.apis.placement import check_replicas, check_total
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster.topic_rules import check_growth
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(broker: Broker, request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    times_named = Counter(topic.name for topic in request.topics)
    asked_once = {topic.name: topic for topic in request.topics}
    total = sum(_counted(broker, topic) for topic in asked_once.values())
    results = []
    async for topic in broker.turns.each(asked_once.values()):
        code, message = ErrorCode.NONE, None
        try:
            check_total(total, broker.config.limits.request_partitions_max)
            if times_named[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named twice in one request")
            await _grow(broker, context.principal, topic, validate_only=request.validate_only)
        except REFUSALS as error:
            code, message = refusal_of(error, topic.name)
        results.append(CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message))
    return CreatePartitionsResponse(results=tuple(results))


def _counted(broker: Broker, asked: CreatePartitionsTopic) -> int:
    """The partitions that it asks for and that are not there yet."""
    topic = broker.image.topic(asked.name)
    return max(asked.count - topic.partition_count, 0) if topic else 0


async def _grow(broker: Broker, who: Principal, asked: CreatePartitionsTopic, *, validate_only: bool) -> None:
    topic = broker.resolver.topic(who, Operation.ALTER, asked.name)
    if asked.name in broker.closed_to_clients:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{asked.name} keeps its number of partitions for life")
    check_growth(broker.image, broker.registry.limits, topic, asked.count)
    if asked.assignments is not None:
        _check_assignments(broker, asked, topic.partition_count)
    if not validate_only:
        replicas = None if asked.assignments is None else tuple(tuple(one.broker_ids) for one in asked.assignments)
        await broker.grow_topic(asked.name, asked.count, replicas)


def _check_assignments(broker: Broker, asked: CreatePartitionsTopic, present_count: int) -> None:
    assignments = asked.assignments or ()
    more = asked.count - present_count
    if len(assignments) != more:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{more} partitions are new, but {len(assignments)} are assigned"
        )
    for one in assignments:
        check_replicas(one.broker_ids, broker.registry.placeable)
