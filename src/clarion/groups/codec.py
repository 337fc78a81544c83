"""The few primitive types of Kafka's records, read and written by hand.

Records start with a version; from some version on a type is "flexible": lengths are unsigned varints plus one, and
each structure ends with tagged fields.
"""

from __future__ import annotations

from struct import Struct
from uuid import UUID

from clarion.model.errors import MalformedError

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")


class Writer:
    def __init__(self, version: int | None, *, flexible: bool = False) -> None:
        """`version` is None for what lies inside a tagged field."""
        self._parts = bytearray() if version is None else bytearray(_INT16.pack(version))
        self._flexible = flexible

    def done(self) -> bytes:
        return bytes(self._parts)

    def int8(self, value: int) -> Writer:
        self._parts += _INT8.pack(value)
        return self

    def int32(self, value: int) -> Writer:
        self._parts += _INT32.pack(value)
        return self

    def int64(self, value: int) -> Writer:
        self._parts += _INT64.pack(value)
        return self

    def uuid(self, value: UUID) -> Writer:
        self._parts += value.bytes
        return self

    def string(self, value: str | None) -> Writer:
        encoded = None if value is None else value.encode()
        if self._flexible:
            self.uvarint(0 if encoded is None else len(encoded) + 1)
        else:
            self._parts += _INT16.pack(-1 if encoded is None else len(encoded))
        self._parts += encoded or b""
        return self

    def bytes_(self, value: bytes) -> Writer:
        self.count(len(value))
        self._parts += value
        return self

    def count(self, length: int) -> Writer:
        """The length of an array or of bytes."""
        return self.uvarint(length + 1) if self._flexible else self.int32(length)

    def uvarint(self, value: int) -> Writer:
        while value > 0x7F:
            self._parts.append(value & 0x7F | 0x80)
            value >>= 7
        self._parts.append(value)
        return self

    def tags(self, fields: dict[int, bytes] | None = None) -> Writer:
        """The end of a flexible structure."""
        present = fields or {}
        self.uvarint(len(present))
        for tag, content in sorted(present.items()):
            self.uvarint(tag).uvarint(len(content))
            self._parts += content
        return self


class Reader:
    """Reads what `Writer` writes, and what Kafka wrote; anything else is a MalformedError."""

    def __init__(self, data: bytes, *, has_version: bool = True) -> None:
        self._data = data
        self._at = 0
        self.version = self.int16() if has_version else 0
        self.flexible = False

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedError("a string that must not be null is null")
        return value

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedError("a string is not UTF-8") from error

    def bytes_(self) -> bytes:
        return self._take(self.count())

    def nullable_bytes(self) -> bytes | None:
        """Not in flexible structures: nobody needs it there."""
        length = self.int32()
        return None if length == -1 else self._take(length)

    def count(self) -> int:
        """The length of an array or of bytes; never more than the bytes that remain could hold."""
        length = self.uvarint() - 1 if self.flexible else self.int32()
        if not 0 <= length <= len(self._data) - self._at:
            raise MalformedError(f"a length of {length} with {len(self._data) - self._at} bytes left")
        return length

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedError("a varint of more than five bytes")

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible structure; unknown ones are for the caller to ignore."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self._take(self.uvarint())
        return found

    def _number(self, kind: Struct) -> int:
        value: int = kind.unpack(self._take(kind.size))[0]
        return value

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise MalformedError(f"{length} bytes wanted at {self._at} of {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken


def pack_int64(value: int) -> bytes:
    return _INT64.pack(value)


def unpack_int64(content: bytes | None, default: int) -> int:
    if content is None or len(content) != 8:
        return default
    value: int = _INT64.unpack(content)[0]
    return value
