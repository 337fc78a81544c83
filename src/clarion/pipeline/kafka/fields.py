"""The fields that Kafka's requests and answers are made of, written and read one after the other.

Names with `compact` are those of flexible versions: lengths are varints, one greater than what they count, and every
structure ends in tagged fields, of which we send none and skip all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Final, TypeVar
from uuid import UUID

from clarion.pipeline.kafka.errors import CorruptDataError

T = TypeVar("T")

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")


class FieldWriter:
    """Every method appends one field and gives the writer back, so that a request reads like its schema."""

    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out = bytearray()

    def int8(self, number: int) -> FieldWriter:
        self.out += _INT8.pack(number)
        return self

    def int16(self, number: int) -> FieldWriter:
        self.out += _INT16.pack(number)
        return self

    def int32(self, number: int) -> FieldWriter:
        self.out += _INT32.pack(number)
        return self

    def int64(self, number: int) -> FieldWriter:
        self.out += _INT64.pack(number)
        return self

    def boolean(self, value: bool) -> FieldWriter:
        self.out.append(value)
        return self

    def uuid(self, value: UUID) -> FieldWriter:
        self.out += value.bytes
        return self

    def string(self, text: str | None) -> FieldWriter:
        if text is None:
            return self.int16(-1)
        data = text.encode()
        self.int16(len(data)).out.extend(data)
        return self

    def bytes(self, data: bytes | bytearray | memoryview) -> FieldWriter:
        self.int32(len(data)).out.extend(data)
        return self

    def array(self, items: Sequence[T], write: Callable[[FieldWriter, T], object]) -> FieldWriter:
        self.int32(len(items))
        for item in items:
            write(self, item)
        return self

    def unsigned_varint(self, number: int) -> FieldWriter:
        while number > 0x7F:
            self.out.append(number & 0x7F | 0x80)
            number >>= 7
        self.out.append(number)
        return self

    def compact_string(self, text: str | None) -> FieldWriter:
        if text is None:
            return self.unsigned_varint(0)
        data = text.encode()
        self.unsigned_varint(len(data) + 1).out.extend(data)
        return self

    def compact_array(self, items: Sequence[T] | None, write: Callable[[FieldWriter, T], object]) -> FieldWriter:
        if items is None:
            return self.unsigned_varint(0)
        self.unsigned_varint(len(items) + 1)
        for item in items:
            write(self, item)
        return self

    def no_tags(self) -> FieldWriter:
        self.out.append(0)
        return self


class FieldReader:
    """Reads an answer field by field; anything that does not fit into it is a CorruptDataError."""

    __slots__ = ("at", "data", "what")

    def __init__(self, data: memoryview, at: int = 0, what: str = "an answer") -> None:
        self.data = data
        self.at = at
        self.what = what

    def _number(self, kind: Struct) -> int:
        try:
            (number,) = kind.unpack_from(self.data, self.at)
        except error:
            raise self._cut() from None
        self.at += kind.size
        return int(number)

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
        return UUID(bytes=bytes(self._take(16)))

    def string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else str(self._take(length), "utf-8", "replace")

    def text(self) -> str:
        return self.string() or ""

    def array(self, read: Callable[[FieldReader], T]) -> list[T]:
        return self._items(self.int32(), read)

    def unsigned_varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self._number(_INT8) & 0xFF
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise CorruptDataError(f"{self.what} has a length of more than five bytes")

    def compact_string(self) -> str | None:
        length = self.unsigned_varint() - 1
        return None if length < 0 else str(self._take(length), "utf-8", "replace")

    def compact_text(self) -> str:
        return self.compact_string() or ""

    def compact_array(self, read: Callable[[FieldReader], T]) -> list[T]:
        return self._items(self.unsigned_varint() - 1, read)

    def compact_bytes_place(self) -> tuple[int, int]:
        """Where bytes begin and how many they are, without copying them; null counts as none."""
        length = max(self.unsigned_varint() - 1, 0)
        at = self.at
        self._take(length)
        return at, length

    def skip_tags(self) -> None:
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self._take(self.unsigned_varint())

    def _items(self, count: int, read: Callable[[FieldReader], T]) -> list[T]:
        if count > len(self.data) - self.at:  # an item has at least one byte
            raise self._cut()
        return [read(self) for _ in range(count)]

    def _take(self, length: int) -> memoryview:
        end = self.at + length
        if end > len(self.data):
            raise self._cut()
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def _cut(self) -> CorruptDataError:
        return CorruptDataError(f"{self.what} is cut off at byte {self.at} of {len(self.data)}")


NO_TOPIC_ID: Final = UUID(int=0)
