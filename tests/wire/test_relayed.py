"""Produce and Fetch for a client of another broker: read by what reads every client's, and answers read back."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import MalformedError
from clarion.wire import fetch, produce, relayed
from clarion.wire.current_leader import CurrentLeader

TOPIC = UUID(int=7)


@given(st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=300))
def test_a_produce_is_read_as_a_clients(index, batch):
    body = relayed.produce_request(TOPIC, index, batch, 1234)
    request = produce.decode_request(memoryview(bytearray(body)), relayed.PRODUCE_VERSION)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 1234, None)
    (topic,) = request.topics
    assert topic.topic_id == TOPIC
    (partition,) = topic.partitions
    assert (partition.index, bytes(partition.records or b"")) == (index, batch)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_a_fetch_is_read_as_a_consumers(index, offset):
    for version in range(15, relayed.FETCH_VERSION + 1):
        request = fetch.decode_request(relayed.fetch_request(TOPIC, index, offset, 1000, 50), version)
        assert (request.replica_id, request.session_epoch, request.max_wait_ms) == (-1, -1, 50)
        (topic,) = request.topics
        (partition,) = topic.partitions
        assert (topic.topic_id, partition.index, partition.fetch_offset) == (TOPIC, index, offset)


@pytest.mark.parametrize(
    "produced",
    [
        produce.PartitionProduced(3, 0, 42, -1, 0),
        produce.PartitionProduced(3, 6, -1, -1, -1, "moved", CurrentLeader(2, 5, "host", 9092, None)),
        produce.PartitionProduced(3, 87, -1, -1, -1, "no key", None, [1, 2, 3]),
    ],
)
def test_an_answer_is_read_back_whatever_it_carries(produced):
    body = produce.encode_response(relayed.PRODUCE_VERSION, [("", TOPIC, [produced])])
    found = relayed.read_produced(memoryview(body))
    assert found == (produced.error_code, produced.base_offset, produced.error_message)


def test_an_answer_that_is_cut_off_is_malformed():
    body = produce.encode_response(relayed.PRODUCE_VERSION, [("", TOPIC, [produce.PartitionProduced(3, 0, 42)])])
    for size in range(len(body) - 7):
        with pytest.raises(MalformedError):
            relayed.read_produced(body[:size])
