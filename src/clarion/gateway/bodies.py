"""Request bodies: read within limits, decoded off the loop where they are long; NDJSON as it arrives, in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from fastapi import Request

from clarion.broker.turns import Turns
from clarion.gateway.message_forms import MessageToWrite, message_from_json, parse_json
from clarion.gateway.problems import HttpProblem
from clarion.wire.records import Headers

DECODED_AT_ONCE_BYTES: Final = 16 * 1024  # some tenths of a millisecond; more is decoded in a thread
_ENCODED_AT_ONCE_BYTES: Final = 32 * 1024  # of messages: a millisecond or two at worst, where values are told as JSON
_MESSAGE_BYTES: Final = 500  # what one costs beside its key and value
_BODY_SECONDS_MAX: Final = 60.0  # for a body that is read as a whole
_PACE_SECONDS: Final = 30.0  # of waiting for lines, over which their pace is counted: a train in a tunnel
_PACE_BYTES_PER_SECOND: Final = 500  # a few messages: a slow line sends a hundred times as much
_JSON_SLACK_BYTES: Final = 64 * 1024  # names, headers and escapes around a message's bytes
_CHUNK_BYTES: Final = 256 * 1024  # of NDJSON that is decoded and written at a time
WRITTEN_AT_A_TIME: Final = 1_000  # messages: they are placed in one go, a millisecond or two
BATCH_MESSAGES_MAX: Final = 100_000  # of one request: their results are kept until the last is there, some 5 MB

Result = TypeVar("Result")


def body_bytes_max(message_bytes_max: int) -> int:
    """Base64 takes a third more; JSON's escapes take three times as much as the letters that most of them stand for."""
    return 3 * message_bytes_max + _JSON_SLACK_BYTES


async def read_body(request: Request, bytes_max: int) -> bytes:
    _check_announced(request, bytes_max)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS_MAX):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise _too_large(bytes_max)
    except TimeoutError as error:
        raise _too_slow(f"the body took longer than {_BODY_SECONDS_MAX:.0f} s") from error
    return bytes(body)


def _check_announced(request: Request, bytes_max: int) -> None:
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdecimal() and int(announced) > bytes_max:
        raise _too_large(bytes_max)


def _too_slow(what: str) -> HttpProblem:
    return HttpProblem(408, f"{what}: send it in parts", headers={"Connection": "close"})


def _too_large(bytes_max: int) -> HttpProblem:
    return HttpProblem(
        413,
        f"a body has at most {bytes_max} bytes here: send less at a time, send NDJSON, or raise max.message.bytes of "
        "the topic",
        kind="body-too-large",
    )


async def decoded(turns: Turns, work: Callable[[bytes], Result], body: bytes) -> Result:
    """`work` done at once where the body is short, else in a thread."""
    return work(body) if len(body) <= DECODED_AT_ONCE_BYTES else await turns.aside(work, body)


class _Message(Protocol):
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


async def encoded(turns: Turns, messages: Iterable[_Message], work: Callable[..., Result], *args: Any) -> Result:
    """`work`, which writes these messages down, done at once where they are few and short, else in a thread."""
    return work(*args) if sum(map(_size, messages)) <= _ENCODED_AT_ONCE_BYTES else await turns.aside(work, *args)


def _size(message: _Message) -> int:
    in_headers = sum(len(value or b"") for _, value in message.headers)
    return _MESSAGE_BYTES + len(message.key or b"") + len(message.value or b"") + in_headers


# ------------------------------------------------------------------------------------------------ what they hold


def one_or_several(body: bytes) -> MessageToWrite | list[MessageToWrite | HttpProblem]:
    """A JSON object is one message, a JSON array several; of those each may be wrong by itself."""
    try:
        told = parse_json(body)
    except ValueError as error:
        raise _no_json(error) from error
    if not isinstance(told, list):
        return message_from_json(told)
    if len(told) > BATCH_MESSAGES_MAX:
        raise too_many_messages()
    return [_or_problem(one) for one in told]


def messages_of_lines(chunk: bytes) -> list[MessageToWrite | HttpProblem]:
    found: list[MessageToWrite | HttpProblem] = []
    for line in chunk.split(b"\n"):
        if not line.strip():
            continue
        try:
            found.append(message_from_json(parse_json(line)))
        except HttpProblem as problem:
            found.append(problem)
        except ValueError as error:
            found.append(_no_json(error))
    return found


async def ndjson_chunks(request: Request, line_bytes_max: int) -> AsyncIterator[bytes]:
    """Whole lines, a bounded number of bytes and lines at a time, as they arrive."""
    held = bytearray()
    async for chunk in _quick_enough(request):
        held += chunk
        while (cut := _whole_lines(held)) and (cut >= _CHUNK_BYTES or held.count(b"\n", 0, cut) >= WRITTEN_AT_A_TIME):
            cut = _at_most(held, cut)
            yield bytes(held[:cut])
            del held[:cut]
        if len(held) > line_bytes_max and held.find(b"\n") < 0:
            raise _too_large(line_bytes_max)
    if held:
        yield bytes(held)


async def _quick_enough(request: Request) -> AsyncIterator[bytes]:
    """A body that is as long as it likes: whoever sends a byte now and then would keep its connection and memory for
    ever. What we take for the lines is not counted."""
    loop = asyncio.get_running_loop()
    waited, came, began = 0.0, 0, loop.time()
    async for chunk in request.stream():
        waited += loop.time() - began
        came += len(chunk)
        if waited > _PACE_SECONDS:
            if came < waited * _PACE_BYTES_PER_SECOND:
                raise _too_slow(f"lines came slower than {_PACE_BYTES_PER_SECOND} bytes a second")
            waited, came = 0.0, 0
        yield chunk
        began = loop.time()


def _whole_lines(held: bytearray) -> int:
    return held.rfind(b"\n") + 1


def _at_most(held: bytearray, cut: int) -> int:
    """The end of the last line within a chunk; of the first, where that alone is longer."""
    at = 0
    for _ in range(WRITTEN_AT_A_TIME):
        following = held.find(b"\n", at, cut) + 1
        if not following or (at and following > _CHUNK_BYTES):
            break
        at = following
    return at


def too_many_messages() -> HttpProblem:
    return HttpProblem(
        413, f"at most {BATCH_MESSAGES_MAX} messages in one request: send the others in another", kind="batch-too-large"
    )


def _or_problem(told: object) -> MessageToWrite | HttpProblem:
    try:
        return message_from_json(told)
    except HttpProblem as problem:
        return problem


def _no_json(error: ValueError) -> HttpProblem:
    return HttpProblem(400, f"this is no JSON: {error}", kind="no-json")
