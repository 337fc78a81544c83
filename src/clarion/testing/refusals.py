"""What a broker answers when it refuses a request: the error stands where the API has its place for it.

Some APIs have one place (`error_code` of the whole answer), others one per partition, topic, group or resource that was
asked about. Nothing of the request is performed. `None` comes back where an answer has no place at all, as when
Metadata is asked about no topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, Final, get_type_hints
from uuid import UUID

from clarion.broker.fetch_sessions import NO_SESSION
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire import apis, fetch, produce
from clarion.wire.api_versions import encode_refusal
from clarion.wire.bridge import decode, encode
from clarion.wire.fetch_response import PartitionFetched, TopicFetched, encode_response
from clarion.wire.reader import neutral_struct

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

MESSAGE: Final = "injected by a test"


def refuse(broker: Broker, key: int, version: int, body: memoryview, code: ErrorCode, listener: int) -> bytes | None:
    """The body of the refusal, or None where the error has no place in it."""
    if key == apis.PRODUCE:
        return _produce(version, body, code)
    if key == apis.FETCH:
        return _fetch(broker, version, body, code)
    if key == apis.API_VERSIONS:
        return encode_refusal(version, code)
    api = apis.APIS[key]
    request = decode(api.request, key, version, "request", body)
    if key == apis.METADATA:
        response = _metadata(broker, version, request, code, listener)
    else:
        response = _response(api, version, request, code)
    return None if response is None else encode(response, key, version, "response")


def expects_reply(key: int, version: int, body: memoryview) -> bool:
    """All but a produce with acks=0 do."""
    return key != apis.PRODUCE or produce.decode_request(body, version).acks != 0


# The hand-written ones


def _produce(version: int, body: memoryview, code: ErrorCode) -> bytes | None:
    request = produce.decode_request(body, version)
    topics = [
        (topic.name, topic.topic_id, [produce.PartitionProduced(one.index, code, -1) for one in topic.partitions])
        for topic in request.topics
    ]
    return produce.encode_response(version, topics) if topics else None


_OF_THE_SESSION: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
_FIRST_FETCH_WITH_SESSIONS: Final = 7


def _fetch(broker: Broker, version: int, body: memoryview, code: ErrorCode) -> bytes | None:
    """The session goes on, so that the client's next fetch is the one that the broker expects."""
    if code in _OF_THE_SESSION:
        return _fetched(version, code, NO_SESSION, []) if version >= _FIRST_FETCH_WITH_SESSIONS else None
    try:
        uses_ids = version >= fetch.FIRST_WITH_IDS
        now = asyncio.get_running_loop().time()
        session = broker.sessions.open(fetch.decode_request(body, version), now, uses_ids=uses_ids)
    except KafkaError as error:
        return _fetched(version, error.code, NO_SESSION, [])
    topics: dict[object, tuple[str, UUID, list[PartitionFetched]]] = {}
    for asked in session.partitions.values():
        _name, _id, partitions = topics.setdefault(asked.key[0], (asked.name, asked.topic_id, []))
        partitions.append(PartitionFetched(asked.index, code, -1, -1, -1, 0))
        asked.reported_watermark = -1  # it was told nothing: the next reply names it again
        session.ready[asked.key] = asked
    return _fetched(version, ErrorCode.NONE, session.id, list(topics.values()))


def _fetched(version: int, code: ErrorCode, session_id: int, topics: Iterable[TopicFetched]) -> bytes:
    pieces = encode_response(version, throttle_ms=0, error_code=code, session_id=session_id, topics=list(topics))
    return b"".join(pieces)


_FIRST_METADATA_WITH_TOP: Final = 13


def _metadata(broker: Broker, version: int, request: Any, code: ErrorCode, listener: int) -> Any:
    """Brokers are told as ever: an answer without them would be another fault, the loss of the cluster."""
    from clarion.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic

    is_for_all = code is ErrorCode.REBOOTSTRAP_REQUIRED  # the one error that stands at the top
    asked = [] if is_for_all else _topics_asked(broker, version, request)
    if not asked and not (is_for_all and version >= _FIRST_METADATA_WITH_TOP):
        return None
    us = broker.image.brokers[broker.node_id]
    host, port = us.endpoint(listener)
    return MetadataResponse(
        brokers=(MetadataResponseBroker(node_id=us.id, host=host, port=port),),
        cluster_id=broker.image.cluster_id,
        controller_id=us.id,
        topics=tuple(
            MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=())
            for name, topic_id in asked
        ),
        error_code=code if is_for_all else ErrorCode.NONE,
    )


def _topics_asked(broker: Broker, version: int, request: Any) -> list[tuple[str, UUID]]:
    if request.topics is None or (version == 0 and not request.topics):
        return [(topic.name, topic.id) for topic in broker.image.topics.values()]
    found = []
    for asked in request.topics:
        known = broker.image.topic_by_id(asked.topic_id)
        found.append((asked.name or (known.name if known else ""), asked.topic_id))
    return found


# All others: the error at the top, or beside the name of each thing that was asked about


def _response(api: apis.Api, version: int, request: Any, code: ErrorCode) -> Any:
    if api.key == apis.DESCRIBE_LOG_DIRS and version < _FIRST_LOG_DIRS_WITH_TOP:
        return api.response(results=(_refused(_element(api.response, "results"), "", code),))
    if api.key == apis.ALTER_REPLICA_LOG_DIRS:
        moved = [(topic.name, topic.partitions) for one in request.dirs for topic in one.topics]
        return _by_partition(api.response, "results", "partitions", moved, code)
    if api.key == apis.ELECT_LEADERS and version < _FIRST_ELECTION_WITH_TOP:
        elected = [(one.topic, one.partitions) for one in request.topic_partitions or ()]
        return _by_partition(api.response, "replica_election_results", "partition_result", elected, code)
    place = _place(api.key, version)
    if place is None:
        return _refused(api.response, request, code)
    answered, asked = place
    element = _element(api.response, answered)
    things = getattr(request, asked) or ()
    return api.response(**{answered: tuple(_refused(element, thing, code) for thing in things)}) if things else None


def _by_partition(
    kind: type[Any], answered: str, inner: str, asked: Iterable[tuple[str, Iterable[int]]], code: ErrorCode
) -> Any:
    """An answer that lists topics under `answered`, and in each the partitions under `inner`."""
    topic = _element(kind, answered)
    partition = _element(topic, inner)
    name = fields(topic)[0].name
    answers = [
        topic(**{name: one, inner: tuple(_refused(partition, index, code) for index in indexes)})
        for one, indexes in asked
    ]
    return kind(**{answered: tuple(answers)}) if answers else None


_FIRST_LOG_DIRS_WITH_TOP: Final = 3
_FIRST_ELECTION_WITH_TOP: Final = 1

_PLACES: Final[dict[int, tuple[str, str]]] = {  # the answer's list, and the list of the request that it follows
    apis.LIST_OFFSETS: ("topics", "topics"),
    apis.OFFSET_COMMIT: ("topics", "topics"),
    apis.DESCRIBE_GROUPS: ("groups", "groups"),
    apis.CREATE_TOPICS: ("topics", "topics"),
    apis.DELETE_RECORDS: ("topics", "topics"),
    apis.OFFSET_FOR_LEADER_EPOCH: ("topics", "topics"),
    apis.DESCRIBE_CONFIGS: ("results", "resources"),
    apis.ALTER_CONFIGS: ("responses", "resources"),
    apis.CREATE_PARTITIONS: ("results", "topics"),
    apis.DELETE_GROUPS: ("results", "groups_names"),
    apis.INCREMENTAL_ALTER_CONFIGS: ("responses", "resources"),
    apis.DESCRIBE_PRODUCERS: ("topics", "topics"),
    apis.CONSUMER_GROUP_DESCRIBE: ("groups", "group_ids"),
    apis.DESCRIBE_TOPIC_PARTITIONS: ("topics", "topics"),
    apis.SHARE_GROUP_DESCRIBE: ("groups", "group_ids"),
    apis.DESCRIBE_SHARE_GROUP_OFFSETS: ("groups", "groups"),
    apis.INITIALIZE_SHARE_GROUP_STATE: ("results", "topics"),
    apis.READ_SHARE_GROUP_STATE: ("results", "topics"),
    apis.WRITE_SHARE_GROUP_STATE: ("results", "topics"),
    apis.DELETE_SHARE_GROUP_STATE: ("results", "topics"),
    apis.READ_SHARE_GROUP_STATE_SUMMARY: ("results", "topics"),
}


def _place(key: int, version: int) -> tuple[str, str] | None:
    """None: at the top."""
    if key == apis.OFFSET_FETCH:
        return ("groups", "groups") if version >= 8 else ("topics", "topics") if version < 2 else None
    if key == apis.FIND_COORDINATOR:
        return ("coordinators", "coordinator_keys") if version >= 4 else None
    if key == apis.DELETE_TOPICS:
        return ("responses", "topics" if version >= 6 else "topic_names")
    return _PLACES.get(key)


_NAMES: Final = frozenset(  # by these an answer says what it is about
    (
        "name",
        "topic",
        "topic_id",
        "partition",
        "partition_index",
        "group_id",
        "member_id",
        "resource_type",
        "resource_name",
    )
)


def _refused(kind: type[Any], asked: Any, code: ErrorCode) -> Any:
    """An object of `kind` that says no to `asked`: a part of the request, or the bare name of something."""
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name == "error_code":
            values["error_code"] = code
        elif field.name == "error_message":
            values["error_message"] = MESSAGE
        elif field.name in _NAMES and hasattr(asked, field.name):
            values[field.name] = getattr(asked, field.name)
        elif isinstance(asked, str | int) and not values.keys() - _ERROR:
            values[field.name] = asked
        elif field.default is MISSING:
            values[field.name] = _nothing(field)
    if "error_code" not in values:
        indexes = getattr(asked, "partition_indexes", None)
        partitions = getattr(asked, "partitions", ()) if indexes is None else indexes
        values["partitions"] = tuple(_refused(_element(kind, "partitions"), one, code) for one in partitions)
    return kind(**values)


_ERROR: Final = {"error_code", "error_message"}
_EMPTY: Final[dict[str, Any]] = {"int": -1, "str": "", "bool": False, "UUID": NO_TOPIC_ID}


def _nothing(field: Field[Any]) -> Any:
    """What stands in a field that a refusal has nothing for."""
    return () if str(field.type).startswith("tuple") else _EMPTY[str(field.type)]


def _element(kind: type[Any], name: str) -> type[Any]:
    element: type[Any] = neutral_struct(get_type_hints(kind)[name])
    return element
