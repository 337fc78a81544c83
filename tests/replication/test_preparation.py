"""Batches that are compressed anew: nothing but the codec changes, and what that may cost is bounded."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.topic_settings import TopicSettings, parse
from clarion.replication import preparation
from clarion.replication.preparation import preparation_for
from clarion.wire.batch import read_header
from clarion.wire.compression import Codec
from clarion.wire.limits import WorkBudget
from clarion.wire.records import decode_batch, encode_batch, read_whole_header
from tests.wire.test_records import reseal

NAMES = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec}}


def prepared(batch, **settings):
    overrides = {name.replace("_", "."): str(value) for name, value in settings.items()}
    prepare = preparation_for("t", parse(overrides, TopicSettings()))
    return prepare(memoryview(batch), WorkBudget.for_bytes(len(batch)))


records = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=8,
)


@given(records, st.sampled_from(list(Codec)), st.sampled_from(sorted(NAMES)))
def test_only_the_codec_changes(content, codec, wanted):
    batch = encode_batch(content, compression=codec, producer_id=7, producer_epoch=3, base_sequence=11)
    stored = prepared(batch, compression_type=wanted)
    header, before = read_whole_header(stored), read_header(batch)
    assert header.compression == NAMES[wanted]
    kept = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert header._replace(**kept) == before._replace(**kept)
    assert decode_batch(stored) == decode_batch(batch)


def test_a_batch_that_comes_as_it_should_be_stored_is_not_touched():
    for wanted, codec in NAMES.items():
        batch = memoryview(encode_batch([(None, b"x", (), 5)], compression=codec))
        assert (
            preparation_for("t", parse({"compression.type": wanted}, TopicSettings()))(batch, WorkBudget.for_bytes(0))
            is batch
        )
    assert preparation_for("t", TopicSettings()) is None, "by default all are stored as they come"


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_the_level_counts(codec):
    words = [os.urandom(6).hex().encode() for _ in range(500)]
    text = b" ".join(words[byte] for byte in os.urandom(40_000))
    batch = encode_batch([(None, text, (), 5)])
    sizes = [len(prepared(batch, compression_type=codec, **{f"compression_{codec}_level": level})) for level in (1, 9)]
    assert sizes[0] != sizes[1]


def test_levels_above_those_that_are_used_are_accepted():
    batch = encode_batch([(None, b"x" * 1000, (), 5)])
    for codec, level in (("lz4", 17), ("zstd", 22), ("zstd", -131_072), ("gzip", -1)):
        stored = prepared(batch, compression_type=codec, **{f"compression_{codec}_level": level})
        assert decode_batch(stored) == decode_batch(batch)


@pytest.mark.uncompiled
def test_a_batch_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(preparation, "COMPRESSED_ANEW_BYTES_MAX", 100_000)
    batch = encode_batch([(None, bytes(100_001), (), 5)], compression=Codec.ZSTD)
    with pytest.raises(KafkaError) as caught:
        prepared(batch, compression_type="gzip")
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_what_cannot_be_unpacked_is_refused():
    batch = encode_batch([(None, b"x", (), 5)], compression=Codec.GZIP)
    batch[-8] ^= 0xFF  # of gzip's own checksum
    reseal(batch)
    with pytest.raises(KafkaError) as caught:
        prepared(batch, compression_type="zstd")
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_all_batches_of_a_request_share_what_compressing_may_cost():
    batch = encode_batch([(None, bytes(1 << 20), (), 5)], compression=Codec.ZSTD)
    prepare = preparation_for("t", parse({"compression.type": "gzip"}, TopicSettings()))
    budget = WorkBudget(1000, 5 << 20)
    for _ in range(2):  # each costs what it unpacks to, twice
        prepare(memoryview(bytearray(batch)), budget)
    with pytest.raises(KafkaError):
        prepare(memoryview(bytearray(batch)), budget)
