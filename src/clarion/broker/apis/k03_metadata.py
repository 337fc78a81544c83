"""Metadata v0-13: brokers, topics, leaders; and topics come into being by being asked for.

v0 an empty list asks for all topics · v1 null does; racks, controller, internal topics · v2 cluster id · v3 throttle
time · v4 the client says whether it wants auto-creation · v5 offline replicas · v7 leader epoch · v8 authorized
operations · v9 flexible · v10 topic ids in the answer · v11 no more operations on the cluster · v12 topics by id · v13
error code of the whole answer.

A topic that is made here is told at once with its leader: the client need not ask again, unless it asks for many more
than a request or a second may make (`auto_creation`): those have no leader yet. Left out: the internal topic
is not made by asking for it; the first group does that.
"""

from __future__ import annotations

import asyncio
from functools import partial
from struct import pack
from typing import Final

from clarion.broker.apis.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from clarion.broker.apis.refusals import REFUSALS, refusal_without_line
from clarion.broker.authorizer import THE_CLUSTER, Operation, Principal, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.metadata_cache import Alive
from clarion.cluster import Topic
from clarion.cluster.schema import NO_LEADER
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.model.names import check_topic_name, is_topic_name
from clarion.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from clarion.wire.metadata import FIRST_FLEXIBLE, BrokerMetadata, encode_response
from clarion.world import event_log

log = event_log("broker")

_FIRST_VERSION_WITH_OPERATIONS: Final = 8
_LAST_VERSION_WITH_CLUSTER_OPERATIONS: Final = 10
_FIRST_VERSION_BY_ID: Final = 12


async def handle(broker: Broker, request: MetadataRequest, context: RequestContext) -> bytes:
    version = context.version
    if broker.node is not None:
        await broker.node.lost_leaders.replaced(lambda: _leaders(broker, request, version))
    # Topics may be made, and others have their turns, before all is told. Brokers come and go meanwhile, and a leader
    # that is not in the list is of no use to anybody: those of this moment are told, and no others lead.
    alive = broker.image.brokers
    named = await _topics(broker, request, context, alive)
    topics = [encoded for _, encoded in named]
    if request.include_topic_authorized_operations and version >= _FIRST_VERSION_WITH_OPERATIONS:
        authorized = partial(broker.resolver.authorized, context.principal, ResourceKind.TOPIC)
        topics = [_with_operations(one, version, authorized(name, TOPIC_OPERATIONS)) for name, one in named]
    reply = encode_response(
        version,
        throttle_ms=0,
        brokers=[BrokerMetadata(one.id, *one.endpoint(context.listener), one.rack) for one in alive.values()],
        cluster_id=broker.image.cluster_id,
        controller_id=broker.controller_id if broker.controller_id in alive else NO_LEADER,
        topics=topics,
    )
    has_operations = _FIRST_VERSION_WITH_OPERATIONS <= version <= _LAST_VERSION_WITH_CLUSTER_OPERATIONS
    if request.include_cluster_authorized_operations and has_operations:
        return _with_operations(reply, version, _of_cluster(broker, context))
    return reply


def _of_cluster(broker: Broker, context: RequestContext) -> int:
    return broker.resolver.authorized(context.principal, ResourceKind.CLUSTER, THE_CLUSTER, CLUSTER_OPERATIONS)


async def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext, alive: Alive
) -> list[tuple[str, bytes]]:
    """Names and encoded topics."""
    version = context.version
    named = _named(request, version)
    if named is None:
        known = broker.turns.each(broker.resolver.topics(context.principal, Operation.DESCRIBE))
        return [(topic.name, broker.metadata.topic(topic, version, alive)) async for topic in known]
    asked_once = list(dict.fromkeys(named))  # whatever the client says twice
    may_create = request.allow_auto_topic_creation and broker.config.auto_create_topics
    granted = _granted(broker, asked_once) if may_create else None
    asked_of = broker.turns.each(asked_once)
    return [(asked.name or "", await _topic(broker, asked, context, granted, alive)) async for asked in asked_of]


def _named(request: MetadataRequest, version: int) -> tuple[MetadataRequestTopic, ...] | None:
    """None: all that there are."""
    return None if version == 0 and not request.topics else request.topics


def _leaders(broker: Broker, request: MetadataRequest, version: int) -> set[int]:
    """Of the partitions that are asked for."""
    image, named = broker.image, _named(request, version)
    if named is None:
        return {state.leader for topic in image.topics.values() for state in topic.partitions}
    topics = [image.topic(one.name or "") or image.topic_by_id(one.topic_id) for one in named]
    return {state.leader for topic in topics if topic is not None for state in topic.partitions}


def _granted(broker: Broker, asked: list[MetadataRequestTopic]) -> frozenset[str]:
    """Which of the topics that do not exist this request may make now; the client asks again for the others."""
    missing = [one.name for one in asked if one.name is not None and _is_to_be_made(broker, one.name)]
    count = broker.auto_creation.take(len(missing), asyncio.get_running_loop().time()) if missing else 0
    if count < len(missing):
        _warn(broker, "topics_not_created", count=len(missing) - count, reason="too many asked for at once")
    return frozenset(missing[:count])


def _is_to_be_made(broker: Broker, name: str) -> bool:
    return broker.image.topic(name) is None and is_topic_name(name) and name not in broker.closed_to_clients


async def _topic(
    broker: Broker, asked: MetadataRequestTopic, context: RequestContext, granted: frozenset[str] | None, alive: Alive
) -> bytes:
    version, who = context.version, context.principal
    try:
        if asked.topic_id != NO_TOPIC_ID:
            return broker.metadata.topic(_known_by_id(broker, asked, context), version, alive)
        if asked.name is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic without name and id")
        broker.resolver.require_topic(who, Operation.DESCRIBE, asked.name)
        topic = broker.image.topic(asked.name) or await _create(broker, who, asked.name, granted)
    except KafkaError as error:
        name = (asked.name or "") if asked.topic_id == NO_TOPIC_ID else None  # of an unknown id nobody knows the name
        return broker.metadata.missing(error.code, version, name, asked.topic_id)
    return broker.metadata.topic(topic, version, alive)


def _known_by_id(broker: Broker, asked: MetadataRequestTopic, context: RequestContext) -> Topic:
    if context.version < _FIRST_VERSION_BY_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"version {context.version} knows topics by name only")
    try:
        return broker.resolver.topic_by_id(context.principal, Operation.DESCRIBE, asked.topic_id)
    except KafkaError as error:
        # As in Kafka: who may not know a topic does not hear either that somebody has its id.
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, error.message) from error


async def _create(broker: Broker, who: Principal, name: str, granted: frozenset[str] | None) -> Topic:
    """Several clients that ask for one topic at the same time all get it, whoever was first."""
    check_topic_name(name)
    if granted is None or name in broker.closed_to_clients:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if name not in granted:
        # What Kafka answers for a topic that is being made: every client asks again in a moment.
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    broker.resolver.require_creation(who, name)
    try:
        return await broker.create_topic(name, broker.config.default_partitions, {})
    except REFUSALS as error:
        refusal = refusal_without_line(error)
    topic = broker.image.topic(name)
    if topic is not None and refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:
        return topic
    _warn(broker, "topic_not_created", topic=name, reason=refusal.message)
    is_about_name = refusal.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    # Clients know few errors here; this one they retry until somebody has made room.
    raise KafkaError(refusal.code if is_about_name else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, refusal.message)


def _with_operations(encoded: bytes, version: int, operations: int) -> bytes:
    """In a topic and in the whole reply they are the last field; only an empty set of tags may follow."""
    tags = 1 if version >= FIRST_FLEXIBLE else 0
    end = len(encoded) - tags
    return encoded[: end - 4] + pack(">i", operations) + encoded[end:]


def _warn(broker: Broker, event: str, **fields: object) -> None:
    """Clients ask for a topic that cannot be made again and again, until somebody has made room."""
    repeats = broker.auto_creation.refusals
    if repeats.allow(asyncio.get_running_loop().time()):
        log.warning(event, **fields, **repeats.take_left_out())
