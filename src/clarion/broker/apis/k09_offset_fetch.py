"""OffsetFetch v1-10: how far groups have read.

v2 all topics of a group, error of the whole answer · v5 leader epoch · v6 flexible · v7 require stable · v8 several
groups · v9 member epochs of KIP-848 · v10 topic ids. While a coordinator loads, the answer is an error, never "no
offset": a client would start from the beginning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_FIRST_VERSION_WITH_TOP_ERROR: Final = 2
_FIRST_VERSION_WITH_GROUPS: Final = 8
_FIRST_VERSION_WITH_IDS: Final = 10


async def handle(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    if context.version < _FIRST_VERSION_WITH_GROUPS:
        return await _fetch_one(broker, request, context)
    groups = [await _fetch_group(broker, request, one, context) async for one in broker.turns.each(request.groups)]
    return OffsetFetchResponse(groups=tuple(groups))


async def _fetch_one(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    try:
        response: OffsetFetchResponse = await broker.groups.call(
            request.group_id, GroupCoordinator.offset_fetch, request, context
        )
        return response
    except KafkaError as error:
        if context.version >= _FIRST_VERSION_WITH_TOP_ERROR:
            return OffsetFetchResponse(error_code=error.code)
        return OffsetFetchResponse(topics=_refused_topics(request, error.code))


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
        response: OffsetFetchResponse = await broker.groups.call(
            group.group_id, GroupCoordinator.offset_fetch, replace(request, groups=(named,)), context
        )
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    (found,) = response.groups
    if context.version < _FIRST_VERSION_WITH_IDS or found.error_code:
        return found
    return replace(found, topics=_with_ids(broker, found.topics) + unknown)


def _with_names(
    broker: Broker, group: OffsetFetchRequestGroup, version: int
) -> tuple[OffsetFetchRequestGroup, tuple[OffsetFetchResponseTopics, ...]]:
    """The group's question in topic names, and refusals for ids that nobody has."""
    if version < _FIRST_VERSION_WITH_IDS or group.topics is None:
        return group, ()
    known, unknown = [], []
    for asked in group.topics:
        topic = broker.registry.find_by_id(asked.topic_id)
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
        topic = broker.registry.find(one.name)
        found.append(replace(one, topic_id=topic.id if topic else NO_TOPIC_ID))
    return tuple(found)
