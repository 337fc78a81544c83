"""OffsetCommit v2-10: a group notes how far it has read.

v3 throttle time · v6 leader epoch · v7 static members · v8 flexible · v9 member epochs of KIP-848 · v10 topic ids.
The retention time that v2-4 can ask for is honoured.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from clarion.broker.apis.partition_pieces import joined, pieces
from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import Topic
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_VERSION_WITH_IDS: Final = 10


async def handle(broker: Broker, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
    """A client may have several commits under way, and a later one must not be overtaken by an earlier one.

    So the first portion is taken at once, whatever else waits for its turn. Of a request with more than one the
    connection is held: it is long.
    """
    portions = pieces(request.topics, "partitions")
    commit = partial(_commit, broker, request, context)
    try:
        answers = await commit(next(portions))
        async for portion in broker.turns.each(portions):
            answers += await commit(portion)
    except KafkaError as error:
        return OffsetCommitResponse(topics=tuple(_refuse(topic, error.code) for topic in request.topics))
    return OffsetCommitResponse(topics=joined(answers))


async def _commit(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext, asked: tuple[OffsetCommitRequestTopic, ...]
) -> list[OffsetCommitResponseTopic]:
    broker.resolver.require_group(context.principal, Operation.READ, request.group_id)
    await broker.groups.be_ready(request.group_id)
    topics, refused = _known_topics(broker, asked, context)
    response: OffsetCommitResponse = await broker.groups.call(
        request.group_id, Operation.READ, GroupCoordinator.offset_commit, replace(request, topics=topics), context
    )
    return [*response.topics, *refused]


def _known_topics(
    broker: Broker, asked: tuple[OffsetCommitRequestTopic, ...], context: RequestContext
) -> tuple[tuple[OffsetCommitRequestTopic, ...], tuple[OffsetCommitResponseTopic, ...]]:
    """The topics that exist, under their names and ids, and refusals for the others."""
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for one in asked:
        try:
            topic = _topic(broker, one, context)
        except KafkaError as error:
            refused.append(_refuse(one, error.code))
            continue
        count = topic.partition_count
        present = tuple(p for p in one.partitions if 0 <= p.partition_index < count)
        missing = tuple(p for p in one.partitions if not 0 <= p.partition_index < count)
        if missing:
            refused.append(_refuse(replace(one, partitions=missing), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if present:
            known.append(replace(one, name=topic.name, topic_id=topic.id, partitions=present))
    return tuple(known), tuple(refused)


def _topic(broker: Broker, asked: OffsetCommitRequestTopic, context: RequestContext) -> Topic:
    resolver, who = broker.resolver, context.principal
    if context.version >= _FIRST_VERSION_WITH_IDS:
        return resolver.topic_by_id(who, Operation.READ, asked.topic_id)
    return resolver.topic(who, Operation.READ, asked.name)


def _refuse(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        ),
    )
