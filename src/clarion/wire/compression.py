"""Kafka's four compressions, with a bound on what may come out.

A few hundred bytes can claim to be gigabytes. `decompress` never makes room for more than `limit_bytes` (and a little
working memory of the codec), does work in proportion to what it reads and writes, and answers anything else with one
KafkaError. The error is INVALID_RECORD: unlike CORRUPT_MESSAGE it tells a producer that sending again is of no use.

Snappy comes in two shapes: the Java client's (xerial framing, blocks of some kilobytes) and
librdkafka's (one raw block).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from io import BytesIO
from struct import Struct
from typing import Any, Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.world.disk import Buffer


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    """What was compressed, if it is at most `limit_bytes` long."""
    expand = _EXPANDERS.get(codec)
    if expand is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {codec} is unknown")
    return expand(data, limit_bytes)


_DEFAULT_LEVELS: Final[dict[int, int]] = {Codec.GZIP: -1, Codec.LZ4: 1, Codec.ZSTD: 3}  # where nobody says
_LEVEL_MAX: Final = 12  # lz4 knows no higher one, and zstd would take hundreds of megabytes


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`level` as Kafka counts it for the codec; None for its default."""
    if level is None:
        level = _DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, level=level, wbits=_GZIP)
        case Codec.SNAPPY:
            return _pack_xerial(data)
        case Codec.LZ4:
            return _pack_lz4(data, min(level, _LEVEL_MAX))
        case Codec.ZSTD:
            return bytes(_cramjam().zstd.compress(data, level=min(level, _LEVEL_MAX)))
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {codec} is unknown")


def _cramjam() -> Any:
    """Loaded for the first batch that needs it: it takes 1.6 MB, of the 38 of an idle broker."""
    import cramjam

    return cramjam


def _bomb(limit_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"a batch decompresses to more than {limit_bytes} bytes")


def _garbage(codec: Codec, error: object) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"a batch is not {codec.name.lower()} as it says: {error}")


def _as_it_is(data: Buffer, limit_bytes: int) -> bytes:
    if len(data) > limit_bytes:
        raise _bomb(limit_bytes)
    return bytes(data)


def _filled(room: int, fill: Callable[[memoryview], int]) -> bytes:
    """What `fill` writes, in `bytes` without a copy: nobody else has seen the object, so it may still be written to."""
    out = BytesIO(bytes(room))
    with out.getbuffer() as view:
        size = fill(view)
    out.truncate(size)
    return out.getvalue()


# ------------------------------------------------------------------------------------------------ gzip

_GZIP: Final = 31  # zlib's wbits for a gzip header and trailer


_MEMBERS_MAX: Final = 1000  # nobody writes more than one; each takes some microseconds, even an empty one
_FIRST_WINDOW_BYTES: Final = 512
_WINDOW_BYTES_MAX: Final = 1 << 20


def _expand_gzip(data: Buffer, limit_bytes: int) -> bytes:
    """All members, one after the other: RFC 1952 allows several, and Java reads them all."""
    first = zlib.decompressobj(wbits=_GZIP)
    content = _inflate(first, data, limit_bytes, limit_bytes)
    if not first.eof:
        raise _garbage(Codec.GZIP, "cut off" if len(data) else "empty")
    return content if not first.unused_data else _expand_more(content, first.unused_data, limit_bytes)


def _expand_more(content: bytes, rest: bytes, limit_bytes: int) -> bytes:
    """What follows the first member."""
    parts, left, at, view = [content], limit_bytes - len(content), 0, memoryview(rest)
    for _ in range(_MEMBERS_MAX - 1):
        part, at = _expand_member(view, at, left, limit_bytes)
        parts.append(part)
        left -= len(part)
        if at == len(view):
            return b"".join(parts)
    raise _garbage(Codec.GZIP, f"more than {_MEMBERS_MAX} members")


def _expand_member(data: memoryview, at: int, room: int, limit_bytes: int) -> tuple[bytes, int]:
    """One member and where it ends. It is fed in growing windows: what a window has too much is copied by zlib."""
    member, parts, window = zlib.decompressobj(wbits=_GZIP), [], _FIRST_WINDOW_BYTES
    while not member.eof:
        piece = data[at : at + window]
        if not piece:
            raise _garbage(Codec.GZIP, "cut off")
        part = _inflate(member, piece, room, limit_bytes)
        room -= len(part)
        parts.append(part)
        at += len(piece) - len(member.unused_data)
        window = min(4 * window, _WINDOW_BYTES_MAX)
    return b"".join(parts), at


def _inflate(member: zlib._Decompress, data: Buffer, room: int, limit_bytes: int) -> bytes:
    try:
        part = member.decompress(data, room + 1)
    except zlib.error as error:
        raise _garbage(Codec.GZIP, error) from None
    if len(part) > room:
        raise _bomb(limit_bytes)
    return part


# ------------------------------------------------------------------------------------------------ snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version, and least compatible version
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_BLOCK_LENGTH = Struct(">i")


def _expand_snappy(data: Buffer, limit_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _expand_snappy_block(data, limit_bytes, limit_bytes)
    if len(data) < len(_XERIAL_HEADER):
        raise _garbage(Codec.SNAPPY, "cut off in its header")
    return _expand_xerial(memoryview(data), limit_bytes)


def _expand_xerial(data: memoryview, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = limit_bytes
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if at + 4 > len(data):
            raise _garbage(Codec.SNAPPY, "cut off between blocks")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += 4
        if not 0 < length <= len(data) - at:
            raise _garbage(Codec.SNAPPY, f"a block of {length} bytes with {len(data) - at} left")
        part = _expand_snappy_block(data[at : at + length], left, limit_bytes)
        left -= len(part)
        parts.append(part)
        at += length
    return b"".join(parts)


def _expand_snappy_block(data: Buffer, room: int, limit_bytes: int) -> bytes:
    """A block says first how long its content is; that claim is judged before any room is made."""
    cramjam = _cramjam()
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > room:
            raise _bomb(limit_bytes)
        content = _filled(size, lambda out: cramjam.snappy.decompress_raw_into(data, out))
    except cramjam.DecompressionError as error:
        raise _garbage(Codec.SNAPPY, error) from None
    if len(content) != size:
        raise _garbage(Codec.SNAPPY, "shorter than it says")
    return content


def _pack_xerial(data: Buffer) -> bytes:
    view, snappy = memoryview(data), _cramjam().snappy
    parts = [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(view[at : at + _XERIAL_BLOCK_BYTES]))
        parts += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------ lz4 and zstd frames


def _pack_lz4(data: Buffer, level: int) -> bytes:
    """Independent blocks: Java's reader refuses those that refer back. The batch's CRC is checksum enough."""
    packer = _cramjam().lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    packer.compress(bytes(data))
    return bytes(packer.finish())


_FIRST_GUESS_FACTOR: Final = 6  # text and JSON shrink about this much, so that most batches need one try
_FIRST_GUESS_BYTES_MIN: Final = 64 * 1024
_NO_ROOM: Final = "failed to write whole buffer"  # what the library says when the output does not fit (tested)


def _expand_frames(codec: Codec, name: str) -> Callable[[Buffer, int], bytes]:
    """Decode into a buffer of our own choosing, and into a larger one while it does not fit.

    The codec cannot write past the buffer, so the buffer is the bound, whatever the frame's header claims. Each try
    has four times the room of the last: all of them together cost little more than the last one.
    """

    def run(data: Buffer, limit_bytes: int) -> bytes:
        cramjam = _cramjam()
        expand: Callable[[Buffer, memoryview], int] = getattr(cramjam, name).decompress_into
        room = min(limit_bytes, max(len(data) * _FIRST_GUESS_FACTOR, _FIRST_GUESS_BYTES_MIN))
        while True:
            try:
                return _filled(room, lambda out: expand(data, out))
            except cramjam.DecompressionError as error:
                if _NO_ROOM not in str(error):
                    raise _garbage(codec, error) from None
                if room >= limit_bytes:
                    raise _bomb(limit_bytes) from None
                room = min(limit_bytes, room * 4)

    return run


_EXPANDERS: Final[dict[int, Callable[[Buffer, int], bytes]]] = {
    Codec.NONE: _as_it_is,
    Codec.GZIP: _expand_gzip,
    Codec.SNAPPY: _expand_snappy,
    Codec.LZ4: _expand_frames(Codec.LZ4, "lz4"),
    Codec.ZSTD: _expand_frames(Codec.ZSTD, "zstd"),
}
