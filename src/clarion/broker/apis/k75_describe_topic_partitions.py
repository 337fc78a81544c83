"""DescribeTopicPartitions v0: the partitions of topics, page by page (KIP-966).

Topics come in alphabetical order. A page holds so many partitions; the cursor of the next one names the first partition
that did not fit. No topics asked for means all.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from clarion.broker.apis.authorized_operations import TOPIC_OPERATIONS
from clarion.broker.authorizer import Operation, Principal, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import PartitionState, Topic
from clarion.cluster.schema import NO_LEADER
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.model.names import check_topic_name, is_internal
from clarion.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PARTITIONS_MAX: Final = 2_000  # per page: Kafka's max.request.partition.size.limit


async def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    if not _is_legal(request):
        return _page([_refused(topic.name, ErrorCode.INVALID_REQUEST) for topic in request.topics], None)
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    async for name in broker.turns.each(_names(broker, request)):
        if room == 0:
            return _page(topics, Cursor(topic_name=name, partition_index=0))
        try:
            topic = broker.resolver.topic(context.principal, Operation.DESCRIBE, name)
        except KafkaError as error:
            topics += _missing(name, error.code, is_told=bool(request.topics))
            continue
        first = _first_index(request.cursor, name)
        end = min(topic.partition_count, first + room)
        topics.append(_described(broker, context.principal, topic, range(first, end)))
        room -= max(0, end - first)
        if end < topic.partition_count:
            return _page(topics, Cursor(topic_name=name, partition_index=end))
    return _page(topics, None)


def _is_legal(request: DescribeTopicPartitionsRequest) -> bool:
    """A cursor is where the page before ended: a partition of a topic that is asked for."""
    cursor = request.cursor
    if cursor is None:
        return True
    is_asked_for = not request.topics or any(topic.name == cursor.topic_name for topic in request.topics)
    return is_asked_for and cursor.partition_index >= 0


def _names(broker: Broker, request: DescribeTopicPartitionsRequest) -> list[str]:
    names = {topic.name for topic in request.topics} or set(broker.image.topics)
    start = request.cursor.topic_name if request.cursor is not None else ""
    return sorted(name for name in names if name >= start)


def _first_index(cursor: Cursor | None, name: str) -> int:
    return cursor.partition_index if cursor is not None and cursor.topic_name == name else 0


def _described(
    broker: Broker, who: Principal, topic: Topic, indexes: Sequence[int]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=tuple(_partition(index, topic.partitions[index], broker.image.brokers) for index in indexes),
        topic_authorized_operations=broker.resolver.authorized(who, ResourceKind.TOPIC, topic.name, TOPIC_OPERATIONS),
    )


def _partition(index: int, state: PartitionState, alive: Container[int]) -> DescribeTopicPartitionsResponsePartition:
    has_leader = state.leader in alive
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=state.leader if has_leader else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.in_sync,
        eligible_leader_replicas=state.eligible,
        last_known_elr=(),
        offline_replicas=tuple(one for one in state.replicas if one not in alive),
    )


def _missing(name: str, code: ErrorCode, *, is_told: bool) -> list[DescribeTopicPartitionsResponseTopic]:
    """A topic that was asked for and is not there; one of all that went in the meantime is not worth a word."""
    if not is_told:
        return []
    try:
        check_topic_name(name)
    except KafkaError as error:
        code = error.code
    return [_refused(name, code)]


def _refused(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_id=NO_TOPIC_ID, is_internal=is_internal(name), partitions=()
    )


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=next_cursor)
