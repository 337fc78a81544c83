"""ListPartitionReassignments v0: partitions that are on the way to other brokers (KIP-455).

`kafka-topics --describe` asks, whatever it describes.
"""

from __future__ import annotations

from collections.abc import Iterable

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import PartitionState, Topic
from clarion.wire.messages.replicas import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    broker.resolver.require_cluster(context.principal, Operation.DESCRIBE)
    topics = broker.image.topics
    asked: Iterable[tuple[Topic, Iterable[int]]]
    if request.topics is None:
        asked = [(topic, range(topic.partition_count)) for topic in topics.values()]
    else:
        asked = [(topics[one.name], one.partition_indexes) for one in request.topics if one.name in topics]
    moving = []
    async for topic, indexes in broker.turns.each(asked):
        found = [_told(index, topic.partitions[index]) for index in indexes if _is_moving(topic, index)]
        if found:
            moving.append(OngoingTopicReassignment(name=topic.name, partitions=tuple(found)))
    return ListPartitionReassignmentsResponse(topics=tuple(moving))


def _is_moving(topic: Topic, index: int) -> bool:
    if not 0 <= index < topic.partition_count:
        return False
    return bool(topic.partitions[index].adding or topic.partitions[index].removing)


def _told(index: int, state: PartitionState) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=state.replicas,
        adding_replicas=state.adding,
        removing_replicas=state.removing,
    )
