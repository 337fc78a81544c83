"""/v1/topics/{topic}/messages and /v1/topics/{topic}/partitions/{partition}/messages: write and read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response

from clarion.gateway import schemas
from clarion.gateway.bodies import encoded
from clarion.gateway.brokers import Brokers
from clarion.gateway.identity import principal
from clarion.gateway.message_forms import TIMESTAMP_MAX
from clarion.gateway.message_service import JSON, NDJSON, RAW, MessageService, RawMessage, as_json
from clarion.gateway.problems import HttpProblem
from clarion.gateway.queries import CheckedRoute
from clarion.gateway.read_room import ReadRoom
from clarion.gateway.reading import MESSAGES_MAX, MessageReader, check_may_read, check_partition, told_message
from clarion.gateway.streams import Streams
from clarion.gateway.topic_routes import TopicText
from clarion.gateway.writing import PartitionWriter

_WAIT_MS_MAX: Final = 30_000  # as long as proxies wait

_PLACE: Final[dict[str, Any]] = {"max_length": 8_000, "pattern": "^[0-9:,]+$"}

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A write repeated with the same key within ten minutes is done once, and answered the same.",
        min_length=1,
        max_length=200,
    ),
]
Key = Annotated[str | None, Query(description="Of a raw body: the message's key.", max_length=10_000)]
KeyBase64 = Annotated[str | None, Query(description="The same for a key that is no text.", max_length=10_000)]
HeaderTexts = Annotated[
    list[str] | None, Query(alias="header", description="Of a raw body: NAME:VALUE; repeatable.", max_length=100)
]
Timestamp = Annotated[int | None, Query(description="Of a raw body: milliseconds since 1970.", ge=0, le=TIMESTAMP_MAX)]
PartitionIndex = Annotated[int, Path(ge=0, le=2**31 - 1)]
Start = Annotated[
    str,
    Query(alias="from", description="earliest, latest, milliseconds since 1970, or a time as 2026-01-31T12:00:00Z."),
]
After = Annotated[str | None, Query(description="What the read before gave as `next`.", **_PLACE)]
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="The id of the last event that came.", **_PLACE),
]
Limit = Annotated[int, Query(ge=1, le=MESSAGES_MAX, description="Messages at most.")]
WaitMs = Annotated[
    int, Query(ge=0, le=_WAIT_MS_MAX, description="How long to wait for a message where there is none yet.")
]
Form = Annotated[
    schemas.Encoding,
    Query(
        description="How values are told: as text where they are text, as JSON where they are JSON, or all in base64."
    ),
]

_MESSAGE_SCHEMA: Final = {"$ref": "#/components/schemas/MessageIn"}
_WRITE_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": {"oneOf": [_MESSAGE_SCHEMA, {"type": "array", "items": _MESSAGE_SCHEMA}]}},
            NDJSON: {"schema": {"type": "string", "description": "A message on each line."}},
            RAW: {"schema": {"type": "string", "format": "binary", "description": "The value of one message."}},
        },
    }
}
_BATCH: Final[dict[str, Any]] = {
    JSON: {"schema": {"$ref": "#/components/schemas/WrittenBatch"}},
    NDJSON: {"schema": {"type": "string", "description": "The result of each line, as a BatchResult on a line."}},
}
_WRITTEN: Final[dict[int | str, dict[str, Any]]] = {
    **schemas.PROBLEM,
    200: {
        "description": "Written and committed. Of several messages: where each is.",
        "content": {
            **_BATCH,
            JSON: {
                "schema": {
                    "oneOf": [
                        {"$ref": "#/components/schemas/WrittenMessage"},
                        {"$ref": "#/components/schemas/WrittenBatch"},
                    ]
                }
            },
        },
    },
    207: {"description": "Some of several messages were refused: the result of each says why.", "content": _BATCH},
}
_FOUND: Final[dict[int | str, dict[str, Any]]] = {
    **schemas.PROBLEM,
    200: {
        "description": "The messages; as NDJSON if asked for with Accept, with `next` in the header Clarion-Next.",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/MessageList"}},
            NDJSON: {"schema": {"type": "string"}},
        },
    },
}
_ONE: Final[dict[int | str, dict[str, Any]]] = {
    **schemas.PROBLEM,
    200: {
        "description": "The message; its value alone if asked for as application/octet-stream.",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/MessageOut"}},
            RAW: {"schema": {"type": "string", "format": "binary"}},
        },
    },
}


def message_routes(
    brokers: Brokers, writer: PartitionWriter, reader: MessageReader, streams: Streams, room: ReadRoom
) -> APIRouter:
    router = APIRouter(route_class=CheckedRoute, prefix="/v1/topics", tags=["messages"])
    service = MessageService(brokers, writer, reader, room)

    @router.post(
        "/{topic}/messages",
        summary="Write messages",
        responses=_WRITTEN,
        openapi_extra=_WRITE_BODY,
        response_model=None,
    )
    async def write(
        request: Request,
        topic: TopicText,
        idempotency_key: IdempotencyKey = None,
        key: Key = None,
        key_base64: KeyBase64 = None,
        headers: HeaderTexts = None,
        timestamp: Timestamp = None,
    ) -> Response:
        raw = RawMessage(key, key_base64, headers or (), timestamp)
        return await service.write(request, topic, None, idempotency_key, raw)

    @router.post(
        "/{topic}/partitions/{partition}/messages",
        summary="Write messages into one partition",
        responses=_WRITTEN,
        openapi_extra=_WRITE_BODY,
        response_model=None,
    )
    async def write_there(
        request: Request,
        topic: TopicText,
        partition: PartitionIndex,
        idempotency_key: IdempotencyKey = None,
        key: Key = None,
        key_base64: KeyBase64 = None,
        headers: HeaderTexts = None,
        timestamp: Timestamp = None,
    ) -> Response:
        raw = RawMessage(key, key_base64, headers or (), timestamp)
        return await service.write(request, topic, partition, idempotency_key, raw)

    @router.get("/{topic}/messages", summary="Read messages of all partitions", responses=_FOUND, response_model=None)
    async def read(
        request: Request,
        topic: TopicText,
        start: Start = "earliest",
        after: After = None,
        limit: Limit = 100,
        wait_ms: WaitMs = 0,
        encoding: Form = "text",
    ) -> Response:
        found = check_may_read(brokers, principal(), topic)
        indexes: Iterable[int] = range(found.partition_count)
        place = await service.place(found, indexes, start, after)
        return await service.read(request, found, place, limit, wait_ms, encoding)

    @router.get(
        "/{topic}/partitions/{partition}/messages",
        summary="Read messages of one partition",
        responses=_FOUND,
        response_model=None,
    )
    async def read_there(
        request: Request,
        topic: TopicText,
        partition: PartitionIndex,
        offset: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
        start: Start = "earliest",
        after: After = None,
        limit: Limit = 100,
        wait_ms: WaitMs = 0,
        encoding: Form = "text",
    ) -> Response:
        found = check_may_read(brokers, principal(), topic)
        check_partition(found, partition)
        place = {partition: offset} if offset is not None else await service.place(found, [partition], start, after)
        return await service.read(request, found, place, limit, wait_ms, encoding)

    @router.get(
        "/{topic}/partitions/{partition}/messages/{offset}",
        summary="Read one message",
        responses=_ONE,
        response_model=None,
    )
    async def read_one(
        request: Request,
        topic: TopicText,
        partition: PartitionIndex,
        offset: Annotated[int, Path(ge=0, le=2**63 - 1)],
        encoding: Form = "text",
    ) -> Response:
        found = check_may_read(brokers, principal(), topic)
        check_partition(found, partition)
        with room.turn() as turn:
            result = await reader.read(principal(), found, {partition: offset}, messages_max=1, turn=turn)
            if not result.found or result.found[0].record.offset != offset:
                raise HttpProblem(
                    404, f"{found.name}-{partition} has no message at offset {offset}", kind="no-such-message"
                )
            record = result.found[0].record
            if RAW in request.headers.get("accept", ""):
                return Response(record.value or b"", media_type=RAW)
            return await encoded(
                brokers.broker.turns, [record], lambda: as_json(told_message(found, result.found[0], encoding))
            )

    @router.get(
        "/{topic}/events", summary="Messages as server-sent events", responses=schemas.EVENTS, response_class=Response
    )
    async def events(
        topic: TopicText,
        start: Start = "latest",
        after: After = None,
        last_event_id: LastEventId = None,
        encoding: Form = "text",
    ) -> Response:
        found = check_may_read(brokers, principal(), topic)
        place = await service.place(found, range(found.partition_count), start, last_event_id or after)
        return streams.of_topic(found, place, encoding)

    return router
