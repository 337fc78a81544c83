"""OffsetFetch v1-10: how far groups have read.

v2 all topics of a group, error of the whole answer · v5 leader epoch · v6 flexible · v7 require stable · v8 several
groups · v9 member epochs of KIP-848 · v10 topic ids. While a coordinator loads, the answer is an error, never "no
offset": a client would start from the beginning. A stream subscription hears no offset from before its own retention.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from clarion.broker.authorizer import Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.retention_floors import no_older_than_retention
from clarion.groups.coordinator import GroupCoordinator
from clarion.groups.offset_requests import all_topics, fetch_response, groups_asked
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

PARTITIONS_PER_PIECE: Final = 1_000  # about two milliseconds
_FIRST_VERSION_WITH_TOP_ERROR: Final = 2
_FIRST_VERSION_WITH_GROUPS: Final = 8
_FIRST_VERSION_WITH_IDS: Final = 10


async def handle(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    if context.version < _FIRST_VERSION_WITH_GROUPS:
        return await _fetch_one(broker, request, context)
    groups = [await _fetch_group(broker, request, one, context) async for one in broker.turns.each(request.groups)]
    return OffsetFetchResponse(groups=tuple(groups))


async def _fetch_one(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    (group,) = groups_asked(request, context.version)
    try:
        found = await _fetch_in_pieces(broker, request, group, context._replace(version=_FIRST_VERSION_WITH_GROUPS))
    except KafkaError as error:
        if context.version >= _FIRST_VERSION_WITH_TOP_ERROR:
            return OffsetFetchResponse(error_code=error.code)
        return OffsetFetchResponse(topics=tuple(_refused(topic, error.code) for topic in request.topics or ()))
    return fetch_response((found,), context.version)


async def _fetch_group(
    broker: Broker, request: OffsetFetchRequest, group: OffsetFetchRequestGroup, context: RequestContext
) -> OffsetFetchResponseGroup:
    named, unknown = _with_names(broker, group, context)
    try:
        found = await _fetch_in_pieces(broker, request, named, context)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    if context.version < _FIRST_VERSION_WITH_IDS or found.error_code:
        return found
    return replace(found, topics=_with_ids(broker, found.topics) + unknown)


async def _fetch_in_pieces(
    broker: Broker, request: OffsetFetchRequest, group: OffsetFetchRequestGroup, context: RequestContext
) -> OffsetFetchResponseGroup:
    """One group's offsets, a thousand partitions at a time: others are served in between."""
    topics: dict[tuple[str, UUID], list[OffsetFetchResponsePartition]] = {}
    async for piece in _pieces(broker, group):
        response: OffsetFetchResponse = await broker.groups.call(
            group.group_id,
            Operation.DESCRIBE,
            GroupCoordinator.offset_fetch,
            replace(request, groups=(piece,)),
            context,
        )
        (told,) = response.groups
        if told.error_code:
            return told
        for one in told.topics:
            topics.setdefault((one.name, one.topic_id), []).extend(one.partitions)
    allows = partial(broker.resolver.allows, context.principal, Operation.DESCRIBE, ResourceKind.TOPIC)
    found = []
    async for (name, topic_id), partitions in broker.turns.each(topics.items()):
        if allows(name):
            found.append(OffsetFetchResponseTopic(name=name, topic_id=topic_id, partitions=tuple(partitions)))
        elif group.topics is not None:
            asked = OffsetFetchRequestTopic(
                name=name, topic_id=topic_id, partition_indexes=tuple(one.partition_index for one in partitions)
            )
            found.append(_refused(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    begun = await broker.subscriptions.begun(group.group_id, tuple(found), context.principal)
    raised = await no_older_than_retention(broker, group.group_id, begun)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=raised)


def _refused(asked: OffsetFetchRequestTopic, code: ErrorCode) -> OffsetFetchResponseTopic:
    refusals = tuple(
        OffsetFetchResponsePartition(partition_index=index, error_code=code) for index in asked.partition_indexes
    )
    return OffsetFetchResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=refusals)


async def _pieces(broker: Broker, group: OffsetFetchRequestGroup) -> AsyncIterator[OffsetFetchRequestGroup]:
    """What is asked for in questions about few partitions. The first one may be empty: the group is judged by it."""
    asked = group.topics
    if asked is None:
        yield replace(group, topics=())
        asked = await broker.turns.aside(all_topics, broker.groups.committed_partitions(group.group_id))
    piece: list[OffsetFetchRequestTopic] = []
    room = PARTITIONS_PER_PIECE
    async for part in broker.turns.each(_short(asked)):
        if len(part.partition_indexes) > room:
            yield replace(group, topics=tuple(piece))
            piece, room = [], PARTITIONS_PER_PIECE
        piece.append(part)
        room -= len(part.partition_indexes)
    yield replace(group, topics=tuple(piece))


def _short(topics: Iterable[OffsetFetchRequestTopic]) -> Iterator[OffsetFetchRequestTopic]:
    """The same topics; one with many partitions comes in parts."""
    for topic in topics:
        indexes = topic.partition_indexes
        if len(indexes) <= PARTITIONS_PER_PIECE:
            yield topic
        else:
            for at in range(0, len(indexes), PARTITIONS_PER_PIECE):
                yield replace(topic, partition_indexes=indexes[at : at + PARTITIONS_PER_PIECE])


def _with_names(
    broker: Broker, group: OffsetFetchRequestGroup, context: RequestContext
) -> tuple[OffsetFetchRequestGroup, tuple[OffsetFetchResponseTopic, ...]]:
    """The group's question in topic names, and refusals for ids that nobody has."""
    if context.version < _FIRST_VERSION_WITH_IDS or group.topics is None:
        return group, ()
    known, unknown = [], []
    for asked in group.topics:
        try:
            topic = broker.resolver.topic_by_id(context.principal, Operation.DESCRIBE, asked.topic_id)
            known.append(replace(asked, name=topic.name))
        except KafkaError as error:
            unknown.append(_refused(asked, error.code))
    return replace(group, topics=tuple(known)), tuple(unknown)


def _with_ids(broker: Broker, topics: tuple[OffsetFetchResponseTopic, ...]) -> tuple[OffsetFetchResponseTopic, ...]:
    found = []
    for one in topics:
        topic = broker.image.topic(one.name)
        found.append(replace(one, topic_id=topic.id if topic else NO_TOPIC_ID))
    return tuple(found)
