"""Kafka's four compressions by what an executor has (zlib and pyarrow's codecs), with a bound on what may come out.

A few hundred bytes can claim to be gigabytes: `decompress` makes room for what has come out so far, never for what is
claimed, and stops at the limit. Snappy comes in two shapes: the Java client's (xerial framing, blocks of some
kilobytes) and librdkafka's (one raw block); we write the latter, which every client reads.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

import pyarrow as pa

Buffer = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODES: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_NAMES: Final = {code: name for name, code in CODES.items()}


class UncompressedError(ValueError):
    """Data that is not compressed as it says, or that would become too large."""


def compress(code: int, data: Buffer) -> Buffer:
    if code == NONE:
        return data
    if code == GZIP:
        return zlib.compress(data, level=6, wbits=_GZIP)
    if code == LZ4:
        return _pack_lz4(memoryview(data))
    # As bytes: a memoryview of the buffer that comes otherwise shows the room that was made, not what was written.
    compressed: bytes = _codec(code).compress(data, asbytes=True)
    return compressed


def decompress(code: int, data: Buffer, limit_bytes: int) -> bytes:
    """What was compressed, if it is at most `limit_bytes` long."""
    try:
        if code == GZIP:
            return _expand_gzip(data, limit_bytes)
        if code == SNAPPY:
            return _expand_snappy(memoryview(data), limit_bytes)
        if code in (LZ4, ZSTD):
            return _expand_stream(_NAMES[code], data, limit_bytes)
    except (zlib.error, OSError, pa.ArrowException) as error:
        raise UncompressedError(f"it is not {_NAMES[code]} as it says: {error}") from None
    raise UncompressedError(f"compression type {code} is unknown")


def _too_large(limit_bytes: int) -> UncompressedError:
    return UncompressedError(f"it decompresses to more than {limit_bytes} bytes")


def _codec(code: int) -> pa.Codec:
    if code not in _NAMES:
        raise UncompressedError(f"compression type {code} is unknown")
    return pa.Codec(_NAMES[code], compression_level=3 if code == ZSTD else None)


_GZIP: Final = 31  # zlib's wbits for a gzip header and trailer


def _expand_gzip(data: Buffer, limit_bytes: int) -> bytes:
    """All members, one after the other: RFC 1952 allows several, and Java reads them all."""
    parts: list[bytes] = []
    left = limit_bytes
    rest = bytes(data)
    while rest or not parts:
        member = zlib.decompressobj(wbits=_GZIP)
        part = member.decompress(rest, left + 1)
        left -= len(part)
        if left < 0:
            raise _too_large(limit_bytes)
        if not member.eof:
            raise UncompressedError("it is not gzip as it says: cut off")
        parts.append(part)
        rest = member.unused_data
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------ snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16  # magic, version, least compatible version
_BLOCK_LENGTH = Struct(">i")


def _expand_snappy(data: memoryview, limit_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _expand_block(data, limit_bytes, limit_bytes)
    parts: list[bytes] = []
    left = limit_bytes
    at = _XERIAL_HEADER_BYTES
    while at < len(data) or at == _XERIAL_HEADER_BYTES > len(data):
        if at + 4 > len(data):
            raise UncompressedError("it is not snappy as it says: cut off between blocks")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += 4
        if not 0 < length <= len(data) - at:
            raise UncompressedError(
                f"it is not snappy as it says: a block of {length} bytes with {len(data) - at} left"
            )
        parts.append(_expand_block(data[at : at + length], left, limit_bytes))
        left -= len(parts[-1])
        at += length
    return b"".join(parts)


def _expand_block(data: memoryview, room: int, limit_bytes: int) -> bytes:
    """A block says first how long its content is; that claim is judged before any room is made."""
    size = _claimed_size(data)
    if size > room:
        raise _too_large(limit_bytes)
    # Snappy cannot shrink data to less than about a 21st (a copy of 64 bytes takes three), so a greater claim is a lie.
    if size > len(data) * 32:
        raise UncompressedError(f"it is not snappy as it says: {len(data)} bytes cannot hold {size}")
    return bytes(pa.Codec("snappy").decompress(data, decompressed_size=size, asbytes=True))


def _claimed_size(data: memoryview) -> int:
    size = 0
    for nth, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * nth)
        if byte < 0x80:
            return size
    raise UncompressedError("it is not snappy as it says: no length")


# ------------------------------------------------------------------------------------------------ lz4 and zstd frames

_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_HEADER: Final = bytes.fromhex("04224d18 60 40 82")  # independent blocks of 64 KB without checksums
_LZ4_BLOCK = Struct("<I")
_LZ4_AS_IT_IS: Final = 0x8000_0000  # of a block that could not be made smaller


def _pack_lz4(data: memoryview) -> bytes:
    """A frame of independent blocks: Java's reader refuses blocks that refer back, which the codec would write."""
    codec = pa.Codec("lz4_raw")
    parts = [_LZ4_HEADER]
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[at : at + _LZ4_BLOCK_BYTES]
        packed = codec.compress(plain, asbytes=True)
        is_smaller = len(packed) < len(plain)
        parts.append(_LZ4_BLOCK.pack(len(packed) if is_smaller else len(plain) | _LZ4_AS_IT_IS))
        parts.append(packed if is_smaller else bytes(plain))
    return b"".join(parts) + _LZ4_BLOCK.pack(0)


_FIRST_READ_BYTES: Final = 1024 * 1024  # most batches are smaller than this, decompressed


def _expand_stream(name: str, data: Buffer, limit_bytes: int) -> bytes:
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name)
    parts: list[bytes] = []
    left = limit_bytes + 1
    room = min(left, _FIRST_READ_BYTES)
    while left:
        part = stream.read(room)
        parts.append(part)
        left -= len(part)
        if len(part) < room:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        room = min(left, 4 * room)
    raise _too_large(limit_bytes)
