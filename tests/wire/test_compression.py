"""Compression: what goes in comes out, and a bomb never does."""

import gzip
import os
import struct
import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.compression import Codec, compress, decompress

ALL = list(Codec)
REAL = [codec for codec in Codec if codec is not Codec.NONE]
MEGABYTE = 1024 * 1024


def refusal(codec, data, limit=MEGABYTE):
    with pytest.raises(KafkaError) as caught:
        decompress(codec, data, limit)
    return caught.value


@given(st.sampled_from(ALL), st.binary(max_size=5000), st.integers(1, 40))
def test_what_was_compressed_comes_back(codec, piece, times):
    data = piece * times
    assert decompress(codec, compress(codec, data), max(len(data), 1)) == data


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_comes_out_is_not_copied_once_more(codec):
    data = os.urandom(8 * MEGABYTE)
    packed = bytes(cramjam.snappy.compress_raw(data)) if codec is Codec.SNAPPY else compress(codec, data)
    tracemalloc.start()
    try:
        assert len(decompress(codec, packed, len(data))) == len(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(data)


@pytest.mark.parametrize("codec", ALL)
def test_any_kind_of_buffer_is_taken(codec):
    data = os.urandom(100) * 1000
    packed = compress(codec, memoryview(bytearray(data)))
    for shape in (bytes, bytearray, lambda raw: memoryview(bytearray(raw))):
        assert decompress(codec, shape(packed), len(data)) == data


@pytest.mark.parametrize("codec", ALL)
def test_the_limit_is_exact(codec):
    data = b"ab" * 100_000
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert "more than 199999 bytes" in refusal(codec, packed, len(data) - 1).message


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_is_refused_before_it_takes_the_memory(codec):
    bomb = compress(codec, bytes(40 * MEGABYTE)) if codec is not Codec.SNAPPY else raw_snappy_of_zeros(40 * MEGABYTE)
    tracemalloc.start()
    error = refusal(codec, bomb, MEGABYTE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.code is ErrorCode.INVALID_RECORD
    assert "decompresses to more than" in error.message
    assert peak < 6 * MEGABYTE


def raw_snappy_of_zeros(size):
    return bytes(cramjam.snappy.compress_raw(bytes(size)))


@pytest.mark.parametrize("size", [0, 100, 300_000])
def test_lz4_is_written_in_independent_blocks_because_java_reads_no_others(size):
    packed = compress(Codec.LZ4, os.urandom(size))
    magic, flags = struct.unpack_from("<IB", packed)
    assert magic == 0x184D2204
    assert flags >> 6 == 1, "the version"
    assert flags & 0x20, "blocks do not refer to those before them"


def test_gzip_with_many_members_is_read_in_one_go(monkeypatch):
    contents = [os.urandom(1000) for _ in range(900)]
    packed = b"".join(gzip.compress(content, mtime=0) for content in contents)
    fed = []
    make = zlib.decompressobj

    class Counting:
        def __init__(self, **how):
            self._real = make(**how)

        def decompress(self, data, length):
            fed.append(len(data))
            return self._real.decompress(data, length)

        def __getattr__(self, name):
            return getattr(self._real, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    assert decompress(Codec.GZIP, packed, MEGABYTE) == b"".join(contents)
    assert sum(fed) < 5 * len(packed), "not all the rest again for every member"


def test_gzip_with_more_members_than_anybody_writes_is_refused():
    packed = gzip.compress(b"", mtime=0) * 52_415
    assert "more than 1000 members" in refusal(Codec.GZIP, packed).message


def test_gzip_that_is_cut_off_in_a_later_member_is_refused():
    packed = gzip.compress(b"one") + gzip.compress(os.urandom(3000))[:-9]
    assert "cut off" in refusal(Codec.GZIP, packed).message
    assert (
        "more than 2999 bytes" in refusal(Codec.GZIP, gzip.compress(b"one") + gzip.compress(bytes(3000)), 2999).message
    )


def test_raw_snappy_as_librdkafka_sends_it_is_read():
    data = b"hello snappy " * 9000
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), len(data)) == data


def test_xerial_snappy_in_blocks_of_any_size_is_read():
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (b"a" * 10, b"b" * 70_000, b"c")]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    framed += b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    assert decompress(Codec.SNAPPY, framed, 100_000) == b"a" * 10 + b"b" * 70_000 + b"c"


def test_the_limit_counts_all_blocks_of_a_xerial_frame_together():
    block = bytes(cramjam.snappy.compress_raw(bytes(60_000)))
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * 50
    assert "more than 1048576" in refusal(Codec.SNAPPY, framed).message


def test_gzip_in_several_members_is_read_and_limited_as_a_whole():
    data = gzip.compress(b"a" * 1000) + gzip.compress(b"b" * 1000)
    assert decompress(Codec.GZIP, data, 2000) == b"a" * 1000 + b"b" * 1000
    refusal(Codec.GZIP, data, 1999)


def test_endless_empty_members_take_time_in_proportion_to_their_bytes():
    assert decompress(Codec.GZIP, gzip.compress(b"", mtime=0) * 200, 10) == b""


def test_a_frame_of_another_library_is_read():
    body = b"x" * 100_000
    with_checksum = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    with_checksum.compress(body)
    assert decompress(Codec.LZ4, bytes(with_checksum.finish()), len(body)) == body
    assert decompress(Codec.GZIP, zlib.compress(body, 9, 31), len(body)) == body


def test_a_snappy_block_that_claims_four_gigabytes_is_refused_by_its_claim():
    assert "more than" in refusal(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20).message


def test_an_unknown_codec_has_its_own_error():
    assert refusal(5, b"").code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(KafkaError):
        compress(7, b"")


@pytest.mark.parametrize("codec", REAL)
def test_empty_and_foreign_bytes_are_refused(codec):
    for data in (b"", b"\x01", b"no codec makes this", bytes(50), b"\xff" * 50):
        assert refusal(codec, data).code is ErrorCode.INVALID_RECORD


@settings(max_examples=400, deadline=1000)
@given(st.sampled_from(REAL), st.binary(min_size=1, max_size=300), st.integers(1, 300), st.data())
def test_damaged_frames_give_data_or_a_refusal_and_nothing_else(codec, piece, times, draw):
    packed = bytearray(compress(codec, piece * times))
    for _ in range(draw.draw(st.integers(1, 4))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] = draw.draw(st.integers(0, 255))
    packed = packed[: draw.draw(st.integers(1, len(packed)))]
    try:
        assert len(decompress(codec, packed, 50_000)) <= 50_000
    except KafkaError:
        pass


@settings(max_examples=300, deadline=1000)
@given(st.sampled_from(REAL), st.binary(max_size=200))
def test_random_bytes_give_data_or_a_refusal_and_nothing_else(codec, data):
    try:
        assert len(decompress(codec, data, 50_000)) <= 50_000
    except KafkaError:
        pass
