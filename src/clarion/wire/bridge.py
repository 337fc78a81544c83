"""The bridge between bytes of any version and one neutral message per API.

kio tells what each version looks like (`plan`), `reader` and `writer` compile that into functions on first use. This is
the door for every request that is not hand-written: whatever the bytes are, the outcome is a message or MalformedError.
"""

from __future__ import annotations

from functools import cache
from struct import error as StructError
from typing import Any, TypeVar

from clarion.model.errors import MalformedError
from clarion.wire.cursor import Cursor
from clarion.wire.plan import Direction, plan_of
from clarion.wire.reader import Read, compile_reader
from clarion.wire.writer import Write, compile_writer

Message = TypeVar("Message")


def decode(
    neutral: type[Message], api_key: int, version: int, direction: Direction, body: bytes | bytearray | memoryview
) -> Message:
    """The message in `body`. The result shares no memory with `body`.

    Bytes behind a request are passed over, as Kafka does: librdkafka sends three too many with Metadata v13.
    """
    wanted: Any = neutral
    read = _reader(wanted, api_key, version, direction)
    cursor = Cursor(bytes(body))
    try:
        message: Message = read(cursor)
    except (StructError, IndexError) as end_reached:
        raise MalformedError(f"{neutral.__name__} v{version} ends too early") from end_reached
    except UnicodeDecodeError as not_text:
        raise MalformedError(f"{neutral.__name__} v{version}: a string is not UTF-8") from not_text
    if cursor.at != cursor.end and direction == "response":
        raise MalformedError(f"{cursor.end - cursor.at} bytes follow {neutral.__name__} v{version}")
    return message


def encode(message: Any, api_key: int, version: int, direction: Direction) -> bytes:
    """The body of `message`, without a header. ValueError if this version cannot carry it: that is our own mistake."""
    wanted: Any = type(message)
    write = _writer(wanted, api_key, version, direction)
    out = bytearray()
    try:
        write(out, message)
    except StructError as unfit:
        raise ValueError(f"{type(message).__name__} does not fit into version {version}: {unfit}") from unfit
    return bytes(out)


@cache
def _reader(neutral: Any, api_key: int, version: int, direction: Direction) -> Read:
    return compile_reader(plan_of(api_key, version, direction), neutral)


@cache
def _writer(neutral: Any, api_key: int, version: int, direction: Direction) -> Write:
    return compile_writer(plan_of(api_key, version, direction), neutral)
