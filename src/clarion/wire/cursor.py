"""Kafka's fields one after the other, read and written: of messages, of the records of groups, of assignments.

In a flexible version lengths are varints, one greater than what they count, and every struct ends in tagged fields;
elsewhere lengths are fixed numbers and nothing is tagged. Reader and writer are told once which it is. The hand-written
codecs of the hot path use the functions of `wire.fields` instead, where a place is a number and no object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import TypeVar
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.wire.fields import Body
from clarion.wire.limits import ELEMENTS_MAX

T = TypeVar("T")

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")


class FieldReader:
    """What runs off the end, or is null where it must not be, raises MalformedError, or what the caller has for it."""

    __slots__ = ("at", "data", "elements_left", "end", "error", "flexible", "version", "what")

    def __init__(
        self,
        data: Body,
        *,
        flexible: bool = False,
        elements_max: int = ELEMENTS_MAX,
        what: str = "a message",
        error: type[Exception] = MalformedError,
    ) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self.flexible = flexible
        self.elements_left = elements_max
        self.version = 0
        self.what = what
        self.error = error

    def with_version(self) -> FieldReader:
        """For records, which begin with their version; whether that is a flexible one, the caller knows."""
        self.version = self.int16()
        return self

    def expect_elements(self, count: int, element_bytes_min: int) -> None:
        """Refuse an array before anything is built for it."""
        if count * element_bytes_min > self.end - self.at:
            raise self.error(f"{count} elements announced, {self.end - self.at} bytes left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise self.error(f"{self.what} has {-self.elements_left} elements more than are taken")

    def take(self, length: int) -> Body:
        """A slice would not complain, so its length is checked first."""
        start = self.at
        end = start + length
        if length < 0 or end > self.end:
            raise self.error(f"{self.what} is cut off: {length} bytes announced, {self.end - start} left")
        self.at = end
        return self.data[start:end]

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def boolean(self) -> bool:
        return self._number(_INT8) != 0

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.take(16)))

    def uvarint(self) -> int:
        """At most five bytes and 32 bits."""
        data, at = self.data, self.at
        if at + 5 > self.end:
            return self._last_uvarint()
        byte = data[at]
        if byte < 0x80:
            self.at = at + 1
            return byte
        value = byte & 0x7F
        for shift in (7, 14, 21):
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at + 1
                return value
        byte = data[at + 1]
        if byte > 0x0F:
            raise self.error(f"{self.what}: a varint has more than 32 bits")
        self.at = at + 2
        return value | byte << 28

    def _last_uvarint(self) -> int:
        """Among the last bytes, where each has to be looked for."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte >= 0x80 or value >> 32:
            raise self.error(f"{self.what}: a varint has more than 32 bits")
        return value

    def string_length(self) -> int:
        """-1 is null."""
        return self.uvarint() - 1 if self.flexible else self._not_below_null(self.int16())

    def length(self) -> int:
        """Of bytes or of an array; -1 is null."""
        return self.uvarint() - 1 if self.flexible else self._not_below_null(self.int32())

    def count(self) -> int:
        """Of an array that must not be null; no more than the bytes that remain could hold."""
        return self._count(self.length())

    def nullable_string(self) -> str | None:
        length = self.string_length()
        if length < 0:
            return None
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as not_text:
            raise self.error(f"{self.what}: a string is not UTF-8") from not_text

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise self.error(f"{self.what}: a string that must not be null is null")
        return value

    def text(self) -> str:
        """A string; null counts as empty."""
        return self.nullable_string() or ""

    def nullable_bytes(self) -> bytes | None:
        length = self.length()
        return None if length < 0 else bytes(self.take(length))

    def bytes_(self) -> bytes:
        value = self.nullable_bytes()
        if value is None:
            raise self.error(f"{self.what}: bytes that must not be null are null")
        return value

    def bytes_place(self) -> tuple[int, int]:
        """Where bytes begin and how many they are, without copying them; null counts as none."""
        length = max(self.length(), 0)
        at = self.at
        self.take(length)
        return at, length

    def array(self, read: Callable[[FieldReader], T]) -> list[T]:
        """Null counts as empty."""
        length = self.length()
        return [read(self) for _ in range(self._count(length))] if length > 0 else []

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible struct; unknown ones are for the caller to ignore."""
        found = {}
        for _ in range(self.uvarint() if self.flexible else 0):
            tag = self.uvarint()
            found[tag] = bytes(self.take(self.uvarint()))
        return found

    def skip_tags(self) -> None:
        for _ in range(self.uvarint() if self.flexible else 0):
            self.uvarint()
            self.take(self.uvarint())

    def _number(self, kind: Struct) -> int:
        try:
            (value,) = kind.unpack_from(self.data, self.at)
        except StructError as cut_off:
            raise self.error(f"{self.what} is cut off at byte {self.at} of {self.end}") from cut_off
        self.at += kind.size
        number: int = value
        return number

    def _not_below_null(self, length: int) -> int:
        if length < -1:
            raise self.error(f"{self.what}: a length of {length}")
        return length

    def _count(self, length: int) -> int:
        if not 0 <= length <= self.end - self.at:
            raise self.error(f"{self.what}: a length of {length} with {self.end - self.at} bytes left")
        return length


class FieldWriter:
    """Every method appends one field and gives the writer back, so that a request reads like its schema."""

    __slots__ = ("flexible", "out")

    def __init__(self, *, flexible: bool = False) -> None:
        self.flexible = flexible
        self.out = bytearray()

    def done(self) -> bytes:
        return bytes(self.out)

    def int8(self, value: int) -> FieldWriter:
        self.out += _INT8.pack(value)
        return self

    def int16(self, value: int) -> FieldWriter:
        self.out += _INT16.pack(value)
        return self

    def int32(self, value: int) -> FieldWriter:
        self.out += _INT32.pack(value)
        return self

    def int64(self, value: int) -> FieldWriter:
        self.out += _INT64.pack(value)
        return self

    def boolean(self, value: bool) -> FieldWriter:
        self.out.append(value)
        return self

    def uuid(self, value: UUID) -> FieldWriter:
        self.out += value.bytes
        return self

    def uvarint(self, value: int) -> FieldWriter:
        write_uvarint(self.out, value)
        return self

    def string(self, text: str | None) -> FieldWriter:
        content = None if text is None else text.encode()
        length = -1 if content is None else len(content)
        if self.flexible:
            write_uvarint(self.out, length + 1)
        else:
            self.out += _INT16.pack(length)
        self.out += content or b""
        return self

    def bytes_(self, content: Body | None) -> FieldWriter:
        self.count(-1 if content is None else len(content))
        self.out += content or b""
        return self

    def count(self, length: int) -> FieldWriter:
        """The length of an array or of bytes; -1 is null."""
        if self.flexible:
            write_uvarint(self.out, length + 1)
        else:
            self.out += _INT32.pack(length)
        return self

    def array(self, items: Sequence[T] | None, write: Callable[[FieldWriter, T], object]) -> FieldWriter:
        self.count(-1 if items is None else len(items))
        for item in items or ():
            write(self, item)
        return self

    def tags(self, fields: Mapping[int, Body] | None = None) -> FieldWriter:
        """The end of a struct, which is nothing where the version is not flexible."""
        if self.flexible:
            present = fields or {}
            write_uvarint(self.out, len(present))
            for tag, content in sorted(present.items()):
                write_uvarint(self.out, tag)
                write_uvarint(self.out, len(content))
                self.out += content
        return self


def write_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
