"""OffsetFetch v1-10: how far groups have read.

v2 all topics of a group, error of the whole answer · v5 leader epoch · v6 flexible · v7 require stable · v8 several
groups · v9 member epochs of KIP-848 · v10 topic ids. While a coordinator loads, the answer is an error, never "no
offset": a client would start from the beginning.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from typing import Final
from uuid import UUID

from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.groups.offset_requests import all_topics, fetch_response, groups_asked
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.bridge import has_more_elements
from clarion.wire.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
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
        return OffsetFetchResponse(topics=_refused_topics(request, error.code))
    if has_more_elements(found, PARTITIONS_PER_PIECE):
        return await broker.turns.aside(fetch_response, (found,), context.version)
    return fetch_response((found,), context.version)


def _refused_topics(request: OffsetFetchRequest, code: ErrorCode) -> tuple[OffsetFetchResponseTopic, ...]:
    return tuple(
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetFetchResponsePartition(partition_index=index, error_code=code)
                for index in topic.partition_indexes
            ),
        )
        for topic in request.topics or ()
    )


async def _fetch_group(
    broker: Broker, request: OffsetFetchRequest, group: OffsetFetchRequestGroup, context: RequestContext
) -> OffsetFetchResponseGroup:
    named, unknown = _with_names(broker, group, context.version)
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
    topics: dict[tuple[str, UUID], list[OffsetFetchResponsePartitions]] = {}
    async for piece in _pieces(broker, group):
        response: OffsetFetchResponse = await broker.groups.call(
            group.group_id, GroupCoordinator.offset_fetch, replace(request, groups=(piece,)), context
        )
        (told,) = response.groups
        if told.error_code:
            return told
        for one in told.topics:
            topics.setdefault((one.name, one.topic_id), []).extend(one.partitions)
    found = [
        OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=tuple(partitions))
        async for (name, topic_id), partitions in broker.turns.each(topics.items())
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=tuple(found))


async def _pieces(broker: Broker, group: OffsetFetchRequestGroup) -> AsyncIterator[OffsetFetchRequestGroup]:
    """What is asked for in questions about few partitions. The first one may be empty: the group is judged by it."""
    asked = group.topics
    if asked is None:
        yield replace(group, topics=())
        asked = await broker.turns.aside(all_topics, broker.groups.committed_partitions(group.group_id))
    piece: list[OffsetFetchRequestTopics] = []
    room = PARTITIONS_PER_PIECE
    async for part in broker.turns.each(_short(asked)):
        if len(part.partition_indexes) > room:
            yield replace(group, topics=tuple(piece))
            piece, room = [], PARTITIONS_PER_PIECE
        piece.append(part)
        room -= len(part.partition_indexes)
    yield replace(group, topics=tuple(piece))


def _short(topics: Iterable[OffsetFetchRequestTopics]) -> Iterator[OffsetFetchRequestTopics]:
    """The same topics; one with many partitions comes in parts."""
    for topic in topics:
        indexes = topic.partition_indexes
        if len(indexes) <= PARTITIONS_PER_PIECE:
            yield topic
        else:
            for at in range(0, len(indexes), PARTITIONS_PER_PIECE):
                yield replace(topic, partition_indexes=indexes[at : at + PARTITIONS_PER_PIECE])


def _with_names(
    broker: Broker, group: OffsetFetchRequestGroup, version: int
) -> tuple[OffsetFetchRequestGroup, tuple[OffsetFetchResponseTopics, ...]]:
    """The group's question in topic names, and refusals for ids that nobody has."""
    if version < _FIRST_VERSION_WITH_IDS or group.topics is None:
        return group, ()
    known, unknown = [], []
    for asked in group.topics:
        topic = broker.image.topic_by_id(asked.topic_id)
        if topic is not None:
            known.append(replace(asked, name=topic.name))
            continue
        refusals = tuple(
            OffsetFetchResponsePartitions(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
            for index in asked.partition_indexes
        )
        unknown.append(OffsetFetchResponseTopics(topic_id=asked.topic_id, partitions=refusals))
    return replace(group, topics=tuple(known)), tuple(unknown)


def _with_ids(broker: Broker, topics: tuple[OffsetFetchResponseTopics, ...]) -> tuple[OffsetFetchResponseTopics, ...]:
    found = []
    for one in topics:
        topic = broker.image.topic(one.name)
        found.append(replace(one, topic_id=topic.id if topic else NO_TOPIC_ID))
    return tuple(found)
