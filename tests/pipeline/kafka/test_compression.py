"""The executor's codecs against the broker's: each reads what the other writes, and neither is fooled."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.pipeline.kafka.compression import CODES, UncompressedError, compress, decompress
from clarion.wire import compression as broker
from tests.pipeline.kafka.messages import unhurried

codes = st.sampled_from(sorted(set(CODES.values()) - {0}))


@unhurried
@given(codes, st.binary(max_size=5000), st.integers(1, 40))
def test_each_reads_what_the_other_writes(code, data, repeat):
    data = data * repeat
    assert decompress(code, broker.compress(code, data), 10**6) == data
    assert broker.decompress(code, bytes(compress(code, data)), 10**6) == data


@pytest.mark.parametrize("size", [0, 100, 300_000])
def test_lz4_is_written_in_independent_blocks_because_java_reads_no_others(size):
    for data in (os.urandom(size), bytes(size)):
        packed = bytes(compress(CODES["lz4"], data))
        assert packed[4] & 0x20
        assert broker.decompress(CODES["lz4"], packed, 10**6) == data


@unhurried
@given(codes, st.binary(max_size=300))
def test_garbage_is_refused_or_harmless(code, data):
    try:
        assert len(decompress(code, data, 1000)) <= 1000
    except UncompressedError:
        pass


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_cut_off_data_is_refused(code):
    data = bytes(compress(code, b"hello " * 1000))
    with pytest.raises(UncompressedError):
        decompress(code, data[:-3], 10**6)


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_the_limit_is_exact(code):
    data = bytes(compress(code, b"x" * 1000))
    assert len(decompress(code, data, 1000)) == 1000
    with pytest.raises(UncompressedError, match="more than 999 bytes"):
        decompress(code, data, 999)


def test_a_snappy_block_that_claims_more_than_it_can_hold_is_refused_before_room_is_made():
    with pytest.raises(UncompressedError, match="cannot hold"):
        decompress(2, b"\xff\xff\xff\x1f" + b"x" * 10, 10**8)
