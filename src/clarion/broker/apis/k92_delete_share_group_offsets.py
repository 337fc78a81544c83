"""DeleteShareGroupOffsets v0: forget where an empty share group is in some topics (KIP-932)."""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import KafkaError
from clarion.wire.messages.share_groups import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)


async def handle(
    broker: Broker, request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> DeleteShareGroupOffsetsResponse:
    broker.resolver.require_group(context.principal, Operation.DELETE, request.group_id)
    await broker.groups.be_ready(request.group_id)
    broker.shares.empty_group(request.group_id)
    topics = [
        await _topic(broker, request.group_id, one.topic_name, context)
        async for one in broker.turns.each(request.topics)
    ]
    return DeleteShareGroupOffsetsResponse(responses=tuple(topics))


async def _topic(
    broker: Broker, group_id: str, name: str, context: RequestContext
) -> DeleteShareGroupOffsetsResponseTopic:
    try:
        topic = broker.resolver.topic(context.principal, Operation.READ, name)
        begun = broker.shares.empty_group(group_id).initialized.get(topic.id)
        if begun is not None:
            await broker.shares.delete(group_id, topic.id, begun, context)
    except KafkaError as error:
        return DeleteShareGroupOffsetsResponseTopic(
            topic_name=name, error_code=error.code, error_message=error.message or error.code.name
        )
    return DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic.id)
