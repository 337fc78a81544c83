"""Batches that are small on the wire and large inside, all of them legal."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from struct import pack_into

from crc32c import crc32c

from clarion.wire.batch import HEADER_BYTES, read_header
from clarion.wire.compression import Codec
from clarion.wire.records import assemble_batch, encode_batch
from clarion.wire.varints import put
from tests.broker.talk import now_ms

UNPACKED_BYTES = 63 << 20  # just below what one batch may unpack to
MESSAGE_BYTES_MAX = 1_000_000  # a topic's default


def of_headers(count: int, codec: Codec = Codec.ZSTD) -> bytes:
    """One record with this many empty headers, in two bytes each."""
    body = bytearray(b"\0\0\0\2k\2v")  # attributes, timestamp delta, offset delta, key, value
    put(body, count)
    body += bytes(2 * count)
    data = bytearray()
    put(data, len(body))
    data += body
    return _sealed(data, codec)


def of_zeros(size: int, codec: Codec = Codec.ZSTD) -> bytes:
    return bytes(encode_batch([(b"k", bytes(size), (), now_ms())], compression=codec))


def of_records(count: int, codec: Codec = Codec.ZSTD) -> bytes:
    at = now_ms()
    return bytes(encode_batch([(b"k", b"v", (), at)] * count, compression=codec))


def of_gzip_members(count: int) -> bytes:
    """A record, and then members of gzip with nothing in them."""
    batch = encode_batch([(b"k", b"v", (), now_ms())], compression=Codec.GZIP)
    header = read_header(batch)
    packed = bytes(batch[HEADER_BYTES:]) + gzip.compress(b"") * count
    plain = assemble_batch(header._replace(attributes=0), packed)  # as if it were the records, then say what it is
    return bytes(assemble_as(plain, header.attributes))


def assemble_as(batch: bytearray, attributes: int) -> bytearray:
    """The same bytes under other attributes, with a CRC that fits."""
    pack_into(">h", batch, 21, attributes)
    pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def worst(codec: Codec) -> Iterator[tuple[str, bytes]]:
    """What costs most to look into, of those that fit into a message."""
    factor = {Codec.NONE: 1, Codec.SNAPPY: 20, Codec.LZ4: 200}.get(codec, 1000)
    size = min(UNPACKED_BYTES, MESSAGE_BYTES_MAX * factor * 9 // 10)
    yield "headers", of_headers(size // 2, codec)
    yield "zeros", of_zeros(size, codec)
    yield "records", of_records(99_000 if codec is not Codec.NONE else 90_000, codec)
    if codec is Codec.GZIP:
        yield "members", of_gzip_members(45_000)


def _sealed(data: bytearray, codec: Codec) -> bytes:
    header = read_header(encode_batch([(b"k", b"v", (), now_ms())], compression=codec))
    return bytes(assemble_batch(header, data))
