"""AlterShareGroupOffsets v0: put an empty share group elsewhere in its partitions (KIP-932).

What was known of single records there is forgotten. Leaders that still have it are fenced by a new state epoch.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)


async def handle(
    broker: Broker, request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> AlterShareGroupOffsetsResponse:
    broker.resolver.require_group(context.principal, Operation.READ, request.group_id)
    await broker.groups.be_ready(request.group_id)
    broker.shares.empty_group(request.group_id)
    topics = [await _topic(broker, request.group_id, one, context) async for one in broker.turns.each(request.topics)]
    return AlterShareGroupOffsetsResponse(responses=tuple(topics))


async def _topic(
    broker: Broker, group_id: str, asked: AlterShareGroupOffsetsRequestTopic, context: RequestContext
) -> AlterShareGroupOffsetsResponseTopic:
    try:
        topic = broker.resolver.topic(context.principal, Operation.READ, asked.topic_name)
    except KafkaError as error:
        refused = tuple(_told(one, error) for one in asked.partitions)
        return AlterShareGroupOffsetsResponseTopic(
            topic_name=asked.topic_name, topic_id=NO_TOPIC_ID, partitions=refused
        )
    told = []
    async for one in broker.turns.each(asked.partitions):
        try:
            broker.resolver.check_exists(topic, one.partition_index)
            if one.start_offset < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "an offset cannot be below 0")
            await broker.shares.alter(group_id, topic, {one.partition_index: one.start_offset}, context)
            told.append(_told(one, None))
        except KafkaError as error:
            told.append(_told(one, error))
    return AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name, topic_id=topic.id, partitions=tuple(told))


def _told(
    asked: AlterShareGroupOffsetsRequestPartition, error: KafkaError | None
) -> AlterShareGroupOffsetsResponsePartition:
    if error is None:
        return AlterShareGroupOffsetsResponsePartition(partition_index=asked.partition_index)
    return AlterShareGroupOffsetsResponsePartition(
        partition_index=asked.partition_index, error_code=error.code, error_message=error.message or error.code.name
    )
