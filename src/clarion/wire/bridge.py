"""The bridge between bytes of any version and one neutral message per API.

`plan` tells what each version looks like, `reader` and `writer` compile that into functions on first use. This is
the way of every request that is not hand-written: whatever the bytes are, the outcome is a message or MalformedError.
"""

from __future__ import annotations

from functools import cache
from struct import error as StructError
from typing import Any, TypeVar, get_origin, get_type_hints

from clarion.model.errors import MalformedError
from clarion.wire.apis import APIS
from clarion.wire.cursor import FieldReader
from clarion.wire.left_out import LeftOut
from clarion.wire.limits import ELEMENTS_MAX, request_elements_max
from clarion.wire.messages import is_message
from clarion.wire.plan import Direction, plan_of, strip_optional
from clarion.wire.reader import Read, compile_reader
from clarion.wire.writer import Out, Write, compile_writer

Message = TypeVar("Message")


def decode(
    neutral: type[Message], api_key: int, version: int, direction: Direction, body: bytes | bytearray | memoryview
) -> Message:
    """The message in `body`. The result shares no memory with `body`.

    Bytes behind a request are passed over, as Kafka does: librdkafka sends three too many with Metadata v13.
    """
    wanted: Any = neutral
    read = _reader(wanted, api_key, version, direction)
    elements_max = request_elements_max(api_key) if direction == "request" else ELEMENTS_MAX
    is_flexible = APIS[api_key].is_flexible(version)
    cursor = FieldReader(bytes(body), flexible=is_flexible, elements_max=elements_max)
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
    out = _written(message, api_key, version, direction)
    assert not out.left_out, "part of the message is elsewhere"
    return bytes(out)


def encode_around(message: Any, api_key: int, version: int, direction: Direction) -> list[bytes | LeftOut]:
    """The same, of a message whose longest fields may be `LeftOut`: in their order, with what stands between them."""
    out = _written(message, api_key, version, direction)
    pieces: list[bytes | LeftOut] = []
    at = 0
    for ends, left_out in out.left_out:
        pieces += (bytes(out[at:ends]), left_out)
        at = ends
    pieces.append(bytes(out[at:]) if at else bytes(out))
    return pieces


def _written(message: Any, api_key: int, version: int, direction: Direction) -> Out:
    wanted: Any = type(message)
    write = _writer(wanted, api_key, version, direction)
    out = Out()
    try:
        write(out, message)
    except StructError as unfit:
        raise ValueError(f"{type(message).__name__} does not fit into version {version}: {unfit}") from unfit
    return out


def has_more_elements(message: Any, limit: int) -> bool:
    """Whether the arrays of a message hold more than `limit` elements in all; looks at about as many."""
    count, inside = 0, [message]
    while inside:
        one = inside.pop()
        of_message: Any = type(one)
        for name in _nesting_fields(of_message):
            value = getattr(one, name)
            if type(value) is not tuple:
                inside.append(value)
                continue
            count += len(value)
            if count > limit:
                return True
            if value:
                of_element: Any = type(value[0])
                inside.extend(value if _nesting_fields(of_element) else ())
    return False


@cache
def _nesting_fields(message: Any) -> tuple[str, ...]:
    """The fields of a message class that hold arrays or other messages."""
    if not is_message(message):
        return ()
    inner = ((name, strip_optional(hint)[0]) for name, hint in get_type_hints(message).items())
    return tuple(name for name, hint in inner if get_origin(hint) is tuple or is_message(hint))


@cache
def _reader(neutral: Any, api_key: int, version: int, direction: Direction) -> Read:
    return compile_reader(plan_of(api_key, version, direction), neutral)


@cache
def _writer(neutral: Any, api_key: int, version: int, direction: Direction) -> Write:
    return compile_writer(plan_of(api_key, version, direction), neutral)
