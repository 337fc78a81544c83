"""OffsetDelete v0: forget committed offsets.

Refused for topics that a member is subscribed to, and for topics that do not exist. The decisions are in
`clarion.groups`.
"""

from __future__ import annotations

from dataclasses import replace

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
    known: list[OffsetDeleteRequestTopic] = []
    refused: list[OffsetDeleteResponseTopic] = []
    async for topic in broker.turns.each(request.topics):
        try:
            broker.resolver.topic(context.principal, Operation.READ, topic.name)
            known.append(topic)
        except KafkaError as error:
            refused.append(_refuse(topic, error.code))
    response: OffsetDeleteResponse = await broker.groups.call(
        request.group_id,
        Operation.DELETE,
        GroupCoordinator.offset_delete,
        replace(request, topics=tuple(known)),
        context,
    )
    if response.error_code:
        return response
    return replace(response, topics=response.topics + tuple(refused))


def _refuse(topic: OffsetDeleteRequestTopic, code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        ),
    )
