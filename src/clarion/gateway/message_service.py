"""What becomes of a request to write or to read messages, and what its answer says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from fastapi import Request, Response

from clarion.broker.turns import Turns
from clarion.cluster import Topic
from clarion.gateway.bodies import (
    BATCH_MESSAGES_MAX,
    WRITTEN_AT_A_TIME,
    body_bytes_max,
    decoded,
    encoded,
    messages_of_lines,
    ndjson_chunks,
    one_or_several,
    read_body,
    too_many_messages,
)
from clarion.gateway.brokers import Brokers
from clarion.gateway.identity import principal
from clarion.gateway.message_forms import MessageToWrite, check_idempotency_key, from_base64
from clarion.gateway.problems import HttpProblem
from clarion.gateway.read_room import ReadRoom
from clarion.gateway.reading import (
    EARLIEST,
    MessageReader,
    Place,
    ReadResult,
    check_partition,
    read_place,
    told_message,
    write_place,
)
from clarion.gateway.writing import Outcome, PartitionWriter, PlacedMessage, max_message_bytes

NDJSON: Final = "application/x-ndjson"
RAW: Final = "application/octet-stream"
JSON: Final = "application/json"
_FORMS: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})
_TOLD_AT_ONCE: Final = 50  # messages; more are written down in a thread


class RawMessage:
    """What a query says of a message whose value is the whole body."""

    def __init__(self, key: str | None, key_base64: str | None, headers: Sequence[str], timestamp: int | None) -> None:
        if key is not None and key_base64 is not None:
            raise HttpProblem(422, "key or key_base64, not both", kind="invalid-message")
        self._key = from_base64(key_base64, "key_base64") if key_base64 is not None else _encoded(key)
        self._headers = tuple(_header(text) for text in headers)
        self._timestamp = timestamp

    @property
    def is_empty(self) -> bool:
        return self._key is None and not self._headers and self._timestamp is None

    def with_value(self, value: bytes) -> MessageToWrite:
        return MessageToWrite(self._key, value, self._headers, None, self._timestamp)


def _header(text: str) -> tuple[str, bytes]:
    name, colon, value = text.partition(":")
    if not colon or not name:
        raise HttpProblem(422, f"header {text[:100]!r}: write NAME:VALUE", kind="invalid-message")
    return name, _encoded(value) or b""


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


class MessageService:
    def __init__(self, brokers: Brokers, writer: PartitionWriter, reader: MessageReader, room: ReadRoom) -> None:
        self._brokers = brokers
        self._writer = writer
        self._reader = reader
        self._room = room

    # Writing

    async def write(
        self, request: Request, text: str, partition: int | None, idempotency_key: str | None, raw: RawMessage
    ) -> Response:
        topic = self._brokers.topic_to_write(principal(), text)
        if partition is not None:
            check_partition(topic, partition)
        key = check_idempotency_key(idempotency_key)
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == NDJSON:
            return await self._write_lines(request, topic, partition, key)
        bytes_max = max_message_bytes(self._brokers, topic)
        if content_type == JSON or content_type.endswith("+json"):
            if not raw.is_empty:
                raise HttpProblem(422, "key, header and timestamp of a query are for raw bodies: say them in the JSON")
            body = await read_body(request, body_bytes_max(bytes_max))
            told = await decoded(self._brokers.broker.turns, one_or_several, body)
            if isinstance(told, list):
                return await self._write_several(topic, partition, key, told)
            return await self._write_one(topic, partition, key, told)
        if not content_type or content_type in _FORMS:
            raise HttpProblem(
                415, f"say what the body is, with Content-Type: {JSON}, {NDJSON}, or {RAW} for a value as it is"
            )
        value = await read_body(request, bytes_max)
        return await self._write_one(topic, partition, key, raw.with_value(value))

    async def _write_one(
        self, topic: Topic, partition: int | None, key: str | None, message: MessageToWrite
    ) -> Response:
        if key is not None:
            message = message._replace(idempotency_key=message.idempotency_key or key)
        (outcome,) = await self._writer.write(principal(), topic, [message], partition)
        if isinstance(outcome, HttpProblem):
            raise outcome
        return as_json({"topic": topic.name, "topic_id": str(topic.id), **outcome.to_json()})

    async def _write_several(
        self, topic: Topic, partition: int | None, key: str | None, told: list[MessageToWrite | HttpProblem]
    ) -> Response:
        outcomes: list[Outcome] = []
        for first in range(0, len(told), WRITTEN_AT_A_TIME):
            part = _keyed(told[first : first + WRITTEN_AT_A_TIME], key, first)
            outcomes += await self._writer.write(principal(), topic, part, partition)
        return await self._told_outcomes(topic, outcomes)

    async def _told_outcomes(self, topic: Topic, outcomes: list[Outcome]) -> Response:
        def tell() -> Response:
            body = {"topic": topic.name, "topic_id": str(topic.id), "results": [one.to_json() for one in outcomes]}
            return as_json(body, _status(outcomes))

        return tell() if len(outcomes) <= _TOLD_AT_ONCE else await self._brokers.broker.turns.aside(tell)

    async def _write_lines(self, request: Request, topic: Topic, partition: int | None, key: str | None) -> Response:
        """Each line has its line in the answer, which begins when all are written: many clients read only then.

        If it comes to an end in the middle, the last line says why, and those before it what was written.
        """
        turns = self._brokers.broker.turns
        line_bytes_max = body_bytes_max(max_message_bytes(self._brokers, topic))
        results, headers = bytearray(), dict[str, str]()
        count, status = 0, 200
        try:
            async for chunk in ndjson_chunks(request, line_bytes_max):
                told = await decoded(turns, messages_of_lines, chunk)
                if count + len(told) > BATCH_MESSAGES_MAX:
                    raise too_many_messages()
                outcomes = await self._writer.write(principal(), topic, _keyed(told, key, count), partition)
                count += len(told)
                status = max(status, _status(outcomes))
                results += await _encoded_lines(turns, outcomes)
        except HttpProblem as problem:
            if not count:
                raise
            status, headers = 207, problem.headers
            results += _result_lines([_end_of_lines(problem, count)])
        return Response(bytes(results), status_code=status, headers=headers, media_type=NDJSON)

    # Reading

    async def place(self, topic: Topic, indexes: Iterable[int], start: str, after: str | None) -> Place:
        """Partitions that the topic has got since `after` are read from their start."""
        if after is None:
            return await self._reader.begin(principal(), topic, indexes, start)
        place = read_place(after)
        wanted = set(indexes)
        for index in place:
            check_partition(topic, index)
            if index not in wanted:
                raise HttpProblem(422, f"{after[:100]!r} is a place of other partitions", kind="invalid-place")
        added = sorted(wanted - place.keys())
        return {**place, **(await self._reader.begin(principal(), topic, added, EARLIEST) if added else {})}

    async def read(
        self, request: Request, topic: Topic, place: Place, limit: int, wait_ms: int, encoding: str
    ) -> Response:
        is_ndjson = NDJSON in request.headers.get("accept", "")
        write = _told_lines if is_ndjson else _told_list
        with self._room.turn() as turn:
            result = await self._reader.read(
                principal(), topic, place, messages_max=limit, wait_seconds=wait_ms / 1000, turn=turn
            )
            records = [one.record for one in result.found]
            body = await encoded(self._brokers.broker.turns, records, write, topic, result, encoding)
        headers = {"Clarion-Next": write_place(result.place)}
        return Response(body, media_type=NDJSON if is_ndjson else JSON, headers=headers)


def _keyed(
    told: Sequence[MessageToWrite | HttpProblem], key: str | None, first: int
) -> Sequence[MessageToWrite | HttpProblem]:
    """One key for a whole batch stands for one of each message, by its number."""
    if key is None:
        return told
    return [
        one
        if isinstance(one, HttpProblem) or one.idempotency_key is not None
        else one._replace(idempotency_key=f"{key}/{number}")
        for number, one in enumerate(told, start=first)
    ]


def _status(outcomes: Iterable[Outcome]) -> int:
    return 200 if all(isinstance(one, PlacedMessage) for one in outcomes) else 207


async def _encoded_lines(turns: Turns, outcomes: Sequence[Outcome]) -> bytes:
    if len(outcomes) <= _TOLD_AT_ONCE:
        return _result_lines(outcomes)
    return await turns.aside(_result_lines, outcomes)


def _result_lines(outcomes: Iterable[Outcome]) -> bytes:
    return b"".join(json.dumps(one.to_json()).encode() + b"\n" for one in outcomes)


def _end_of_lines(problem: HttpProblem, count: int) -> HttpProblem:
    detail = f"{problem.detail}; nothing was written behind the first {count} messages"
    return HttpProblem(problem.status, detail, kind=problem.kind)


def _told_list(topic: Topic, result: ReadResult, encoding: str) -> bytes:
    messages = [told_message(topic, one, encoding) for one in result.found]
    return json.dumps({"messages": messages, "next": write_place(result.place)}).encode()


def _told_lines(topic: Topic, result: ReadResult, encoding: str) -> bytes:
    lines = [json.dumps(told_message(topic, one, encoding)) for one in result.found]
    return "".join(f"{line}\n" for line in lines).encode()


def as_json(told: Any, status: int = 200) -> Response:
    return Response(json.dumps(told).encode(), status_code=status, media_type=JSON)
