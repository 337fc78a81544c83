"""The bench's own encoder, checked by the broker's header reader and by other people's codecs."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.produce.v9.request import ProduceRequest
from kio.serial import entity_reader

from bench import frames
from clarion.wire.batch import read_header


@pytest.mark.parametrize(("value_bytes", "messages"), [(100, 595), (1024, 63), (10240, 6)])
def test_a_64_kb_batch_holds_as_many_messages_as_fit(value_bytes, messages):
    batch = frames.batch_of(value_bytes, 65536, 0)
    assert batch.messages == messages
    assert len(batch.data) <= 65536


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_batches_are_read_back_by_an_independent_codec(values):
    batch = frames.record_batch(values, 1_700_000_000_000)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert [record.value for record in theirs] == values
    assert read_header(batch).record_count == len(values)


def test_produce_and_fetch_frames_are_what_the_protocol_says():
    batch = frames.record_batch([b"one"], 0)
    request = _body(frames.produce("orders", 7, batch, -1), ProduceRequest)
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (request.acks, topic.name, partition.index) == (-1, "orders", 7)
    assert bytes(partition.records) == batch

    frame = frames.fetch("orders", 7, 0, bytes_max=1000)
    frames.set_fetch_offset(frame, 123456)
    (topic,) = _body(bytes(frame), FetchRequest).topics
    (partition,) = topic.partitions
    assert (partition.partition, partition.fetch_offset, partition.partition_max_bytes) == (7, 123456, 1000)


@given(st.integers(0, 2**31 - 1))
def test_variable_length_numbers_come_back(number):
    encoded = frames.uvarint(number)
    assert frames.read_uvarint(memoryview(encoded), 0) == (number, len(encoded))


def _body(frame, cls):
    """Skips length, header and client id, and lets kio read the body to its last byte."""
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    body = frame[4 + 8 + 2 + len("bench") + 1 :]
    read, consumed = entity_reader(cls)(body, 0)
    assert consumed == len(body)
    return read
