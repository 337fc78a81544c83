"""A place in a message's bytes, and the variable-length forms that can be read there, each bounded.

What runs off the end raises `struct.error`, `IndexError` or MalformedError; `bridge.decode` makes one error of them.
A slice would not complain, so its length is always checked first.
"""

from __future__ import annotations

from struct import Struct
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.wire.limits import ELEMENTS_MAX

_INT16 = Struct(">h")
_INT32 = Struct(">i")


class Cursor:
    __slots__ = ("at", "data", "elements_left", "end")

    def __init__(self, data: bytes, elements_max: int = ELEMENTS_MAX) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self.elements_left = elements_max

    def expect_elements(self, count: int, element_bytes_min: int) -> None:
        """Refuse an array before anything is built for it."""
        if count * element_bytes_min > self.end - self.at:
            raise MalformedError(f"{count} elements announced, {self.end - self.at} bytes left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise MalformedError(f"a message has {-self.elements_left} elements more than are taken")

    def take(self, length: int) -> bytes:
        start = self.at
        end = start + length
        if length < 0 or end > self.end:
            raise MalformedError(f"{length} bytes announced, {self.end - start} left")
        self.at = end
        return self.data[start:end]


def read_uvarint(cursor: Cursor) -> int:
    """At most five bytes and 32 bits."""
    byte = cursor.data[cursor.at]
    cursor.at += 1
    if byte < 0x80:
        return byte
    value = byte & 0x7F
    for shift in (7, 14, 21):
        byte = cursor.data[cursor.at]
        cursor.at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    byte = cursor.data[cursor.at]
    cursor.at += 1
    if byte > 0x0F:
        raise MalformedError("a varint has more than 32 bits")
    return value | byte << 28


def read_compact_length(cursor: Cursor) -> int:
    """-1 is null."""
    return read_uvarint(cursor) - 1


def read_int16_length(cursor: Cursor) -> int:
    (length,) = _INT16.unpack_from(cursor.data, cursor.at)
    cursor.at += 2
    return _not_below_null(length)


def read_int32_length(cursor: Cursor) -> int:
    (length,) = _INT32.unpack_from(cursor.data, cursor.at)
    cursor.at += 4
    return _not_below_null(length)


def _not_below_null(length: int) -> int:
    if length < -1:
        raise MalformedError(f"a length of {length}")
    return length


def read_uuid(cursor: Cursor) -> UUID:
    return UUID(bytes=cursor.take(16))


def skip_tagged_fields(cursor: Cursor) -> None:
    count = read_uvarint(cursor)
    if count:
        cursor.expect_elements(count, 2)
        for _ in range(count):
            read_uvarint(cursor)
            cursor.take(read_uvarint(cursor))
