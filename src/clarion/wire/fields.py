"""Kafka's variable-length forms at a place in a buffer, for the hand-written codecs: `(value, next place)` and back.

A number that runs off the end raises `struct.error` or `IndexError`, which the codecs turn into MalformedError; a slice
would not complain, so its length is checked first. "Compact" forms carry their length as a varint, plus one.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.wire.limits import TAGGED_FIELDS_MAX

Body = memoryview | bytes | bytearray

UNREADABLE: Final = (StructError, IndexError, UnicodeDecodeError)
"""What reading beyond the end, or reading no text, raises; the codecs make one MalformedError of it."""

NO_TAGS: Final = b"\0"
COMPACT_NULL: Final = b"\0"
INT16 = Struct(">h")
INT32 = Struct(">i")
UUID_BYTES: Final = 16

_KNOWN_NAMES_MAX: Final = 4096  # topics written again and again; 2 MB at most
_KNOWN_IDS_MAX: Final = 16_384  # making a UUID takes a microsecond, finding one a tenth of it; 2 MB at most


def read_uvarint(body: Body, at: int) -> tuple[int, int]:
    """At most five bytes and 32 bits."""
    byte = body[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in (7, 14, 21):
        at += 1
        byte = body[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    byte = body[at + 1]
    if byte > 0x0F:
        raise MalformedError("a varint has more than 32 bits")
    return value | byte << 28, at + 2


def read_compact_count(body: Body, at: int, element_bytes_min: int, elements_max: int) -> tuple[int, int]:
    """The length of an array that cannot be null, checked against what is left."""
    size = body[at]
    if size < 0x80:
        at += 1
    else:
        size, at = read_uvarint(body, at)
    return check_count(size - 1, len(body) - at, element_bytes_min, elements_max), at


def read_count(body: Body, at: int, element_bytes_min: int, elements_max: int) -> tuple[int, int]:
    (count,) = INT32.unpack_from(body, at)
    return check_count(count, len(body) - at - 4, element_bytes_min, elements_max), at + 4


def check_count(count: int, bytes_left: int, element_bytes_min: int, elements_max: int) -> int:
    if not 0 <= count * element_bytes_min <= bytes_left:
        raise MalformedError(f"{count} elements announced, {bytes_left} bytes left")
    if count > elements_max:
        raise MalformedError(f"{count} elements announced, the limit is {elements_max}")
    return count


def check_elements(total: int, elements_max: int) -> None:
    """For the sum over nested arrays."""
    if total > elements_max:
        raise MalformedError(f"a message has more than {elements_max} elements")


def read_compact_string(body: Body, at: int) -> tuple[str, int]:
    size = body[at]
    if size < 0x80:
        at += 1
    else:
        size, at = read_uvarint(body, at)
    if size == 0:
        raise MalformedError("a string is null")
    return _text(body, at, at + size - 1)


def read_compact_nullable_string(body: Body, at: int) -> tuple[str | None, int]:
    if body[at] == 0:
        return None, at + 1
    return read_compact_string(body, at)


def read_string(body: Body, at: int) -> tuple[str, int]:
    value, at = read_nullable_string(body, at)
    if value is None:
        raise MalformedError("a string is null")
    return value, at


def read_nullable_string(body: Body, at: int) -> tuple[str | None, int]:
    (length,) = INT16.unpack_from(body, at)
    at += 2
    if length < 0:
        if length != -1:
            raise MalformedError(f"a length of {length}")
        return None, at
    return _text(body, at, at + length)


def _text(body: Body, start: int, end: int) -> tuple[str, int]:
    if end > len(body):
        raise MalformedError(f"{end - start} bytes announced, {len(body) - start} left")
    return str(body[start:end], "utf-8"), end


def read_uuid(body: Body, at: int) -> tuple[UUID, int]:
    end = at + UUID_BYTES
    if end > len(body):
        raise MalformedError("a topic id is cut off")
    return known_uuid(bytes(body[at:end])), end


@lru_cache(maxsize=_KNOWN_IDS_MAX)
def known_uuid(content: bytes) -> UUID:
    return UUID(bytes=content)


def skip_tags(body: Body, at: int) -> int:
    if body[at] == 0:
        return at + 1
    count, at = read_uvarint(body, at)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedError(f"{count} tagged fields announced, the limit is {TAGGED_FIELDS_MAX}")
    for _ in range(count):
        _, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        at += size
        if at > len(body):
            raise MalformedError("a tagged field is cut off")
    return at


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_count(count: int) -> bytes:
    return uvarint(count + 1)


@lru_cache(maxsize=_KNOWN_NAMES_MAX)
def compact_string(text: str) -> bytes:
    content = text.encode()
    return uvarint(len(content) + 1) + content


def compact_nullable_string(text: str | None) -> bytes:
    return COMPACT_NULL if text is None else compact_string(text)


@lru_cache(maxsize=_KNOWN_NAMES_MAX)
def string(text: str) -> bytes:
    content = text.encode()
    return INT16.pack(len(content)) + content


def nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else string(text)
