"""The bench's own encoder, checked by the broker's header reader and by other people's codecs."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kio.schema.create_topics.v4.request import CreateTopicsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.metadata.v1.request import MetadataRequest
from kio.schema.metadata.v1.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.produce.v9.request import ProduceRequest
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

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


def test_a_placed_topic_names_the_replicas_of_each_partition():
    frame = frames.create_placed_topic("orders", [[1, 2, 3], [2, 3, 1]], {"min.insync.replicas": "2"})
    (topic,) = _body(frame, CreateTopicsRequest, is_flexible=False).topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("orders", -1, -1)
    assert [(one.partition_index, one.broker_ids) for one in topic.assignments] == [(0, (1, 2, 3)), (1, (2, 3, 1))]
    assert [(one.name, one.value) for one in topic.configs] == [("min.insync.replicas", "2")]


def test_metadata_is_read_as_an_independent_codec_wrote_it():
    (asked,) = _body(frames.metadata(["orders"]), MetadataRequest, is_flexible=False).topics
    assert asked.name == "orders"
    brokers = tuple(
        MetadataResponseBroker(node_id=BrokerId(node), host="127.0.0.1", port=i32(9000 + node), rack=rack)
        for node, rack in ((1, None), (2, "a"))
    )
    partitions = (
        _partition(0, leader=2, replicas=(1, 2, 3), in_sync=(2, 3)),
        _partition(1, leader=-1, replicas=(1,), in_sync=()),
    )
    topic = MetadataResponseTopic(
        error_code=ErrorCode.none, name=TopicName("orders"), is_internal=False, partitions=partitions
    )
    response = MetadataResponse(brokers=brokers, controller_id=BrokerId(1), topics=(topic,))
    state = frames.read_metadata(_written(response))
    assert state.ports == {1: 9001, 2: 9002}
    assert state.topic_error == 0
    assert state.partitions == {0: (0, 2, (2, 3)), 1: (5, -1, ())}
    nobody_asked = MetadataResponse(brokers=brokers, controller_id=BrokerId(1), topics=())
    assert frames.read_metadata(_written(nobody_asked)) == ({1: 9001, 2: 9002}, 0, {})


def _partition(index, leader, replicas, in_sync):
    return MetadataResponsePartition(
        error_code=ErrorCode.none if leader > 0 else ErrorCode.leader_not_available,
        partition_index=i32(index),
        leader_id=BrokerId(leader),
        replica_nodes=replicas,
        isr_nodes=in_sync,
    )


def _written(response):
    """With the correlation id in front, as it comes from a socket."""
    file = io.BytesIO(b"\0\0\0\1")
    file.seek(4)
    entity_writer(type(response))(file, response)
    return file.getvalue()


@given(st.integers(0, 2**31 - 1))
def test_variable_length_numbers_come_back(number):
    encoded = frames.uvarint(number)
    assert frames.read_uvarint(memoryview(encoded), 0) == (number, len(encoded))


def _body(frame, cls, is_flexible=True):
    """Skips length, header and client id, and lets kio read the body to its last byte."""
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    body = frame[4 + 8 + 2 + len("bench") + is_flexible :]
    read, consumed = entity_reader(cls)(body, 0)
    assert consumed == len(body)
    return read
