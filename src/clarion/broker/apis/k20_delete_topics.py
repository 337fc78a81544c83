"""DeleteTopics v1-6: remove topics with everything in them.

v3 TOPIC_DELETION_DISABLED · v4 flexible · v5 error message · v6 topics by name or id (`topics`, before `topic_names`).

Left out: the timeout, since the topic is gone when the answer leaves.
"""

from __future__ import annotations

from collections import Counter

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import StoreError, Topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


async def handle(broker: Broker, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    asked = [*request.topics, *(DeleteTopicState(name=name, topic_id=NO_TOPIC_ID) for name in request.topic_names)]
    times_asked = Counter(asked)
    responses = []
    async for one in broker.turns.each(times_asked):
        try:
            if times_asked[one] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named twice in one request")
            responses.append(await _delete(broker, one, context))
        except REFUSALS as error:
            responses.append(_refused(one, error))
    return DeleteTopicsResponse(responses=tuple(responses))


async def _delete(broker: Broker, asked: DeleteTopicState, context: RequestContext) -> DeletableTopicResult:
    found = _find(broker, asked, context.principal)
    if not broker.config.delete_topics:
        raise KafkaError(_disabled_code(context.version), "Topic deletion is disabled: delete.topic.enable is false.")
    topic = await broker.delete_topic(found.name, found.id)
    return DeletableTopicResult(name=topic.name, topic_id=topic.id)


def _disabled_code(version: int) -> ErrorCode:
    return ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST  # as Kafka tells older ones


def _find(broker: Broker, asked: DeleteTopicState, who: Principal) -> Topic:
    if asked.name is not None and asked.topic_id != NO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic is named by its name or its id, not by both")
    if asked.name is not None:
        return broker.resolver.topic(who, Operation.DELETE, asked.name)
    if asked.topic_id == NO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "neither a name nor an id")
    return broker.resolver.topic_by_id(who, Operation.DELETE, asked.topic_id)


def _refused(asked: DeleteTopicState, error: KafkaError | OSError | StoreError) -> DeletableTopicResult:
    refusal = refusal_of(error, asked.name or asked.topic_id)
    return DeletableTopicResult(
        name=asked.name, topic_id=asked.topic_id, error_code=refusal.code, error_message=refusal.message
    )
