"""Produce's hand-written codec against kio, version by version, and against broken frames."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from struct import pack
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioError
from kio.static.primitive import i32, i32Timedelta

from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.apis import PRODUCE
from clarion.wire.current_leader import CurrentLeader
from clarion.wire.frames import reply_head
from clarion.wire.limits import PRODUCE_ELEMENTS_MAX
from clarion.wire.produce import PartitionProduced, SingleReply, decode_request, encode_response
from tests.wire import oracle

VERSIONS = range(3, 14)
TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def request_bytes(version, topics, *, transactional_id=None, acks=-1, timeout_ms=1500) -> bytes:
    """`topics`: [(name, id, [(index, records)])]."""
    kio = oracle.schema("produce", version, "request")
    topic_data = tuple(
        oracle.pick(
            kio.TopicProduceData,
            name=name,
            topic_id=topic_id,
            partition_data=tuple(kio.PartitionProduceData(index=i, records=records) for i, records in partitions),
        )
        for name, topic_id, partitions in topics
    )
    return oracle.write(
        kio.ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
            topic_data=topic_data,
        )
    )


def as_plain(request):
    return [
        (t.name, t.topic_id, [(p.index, None if p.records is None else bytes(p.records)) for p in t.partitions])
        for t in request.topics
    ]


SHAPES = [
    [],
    [("orders", TOPIC_ID, [(0, b"batch")])],
    [("orders", TOPIC_ID, [(0, b"x" * 70_000), (7, None), (2**31 - 1, b"")]), ("café", NO_TOPIC_ID, [(1, b"y" * 200)])],
    [("n" * 249, TOPIC_ID, [])],
    [("n" * 249, TOPIC_ID, [(3, b"batch")])],
    [("orders", TOPIC_ID, [(0, None)])],
    [("orders", TOPIC_ID, [(0, b"")])],
    [("", TOPIC_ID, [(0, b"z" * 20_000)])],
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", SHAPES)
@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_a_request_is_read_as_kio_wrote_it(version, topics, transactional_id):
    body = request_bytes(version, topics, transactional_id=transactional_id, acks=1)
    request = decode_request(memoryview(body), version)
    by_id = version >= 13
    assert as_plain(request) == [("" if by_id else n, i if by_id else NO_TOPIC_ID, p) for n, i, p in topics]
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, 1, 1500)


def test_records_are_writable_views_of_the_frame():
    frame = bytearray(request_bytes(9, [("orders", NO_TOPIC_ID, [(0, b"batch")])]))
    records = decode_request(memoryview(frame), 9).topics[0].partitions[0].records
    records[0:5] = b"BATCH"
    assert b"BATCH" in frame


PRODUCED = [
    ("orders", TOPIC_ID, [PartitionProduced(0, 0, 42)]),
    (
        "café",
        NO_TOPIC_ID,
        [
            PartitionProduced(1, 6, -1, current_leader=CurrentLeader(3, 9, "h3", 9093, "north")),
            PartitionProduced(2, 87, -1, 1_700_000_000_000, 5, "a record without a key"),
            PartitionProduced(4, 87, -1, error_message="one", bad_records=(7,)),
            PartitionProduced(5, 87, -1, error_message="many", bad_records=range(0, 300, 2)),
            PartitionProduced(3, 0, 2**40, 1_700_000_000_000, 17, "", CurrentLeader(1, 2, "h1", 9091)),
            PartitionProduced(6, 6, -1, current_leader=CurrentLeader(3, 4, "h3", 9093, "north")),
        ],
    ),
    ("none", NO_TOPIC_ID, []),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("produced", [PRODUCED, PRODUCED[:1], []])
def test_a_response_is_written_as_kio_writes_it(version, produced):
    kio = oracle.schema("produce", version, "response")

    def record_errors(row: PartitionProduced):
        kind = getattr(kio, "BatchIndexAndErrorMessage", None)  # v8+
        return tuple(
            kind(batch_index=i32(number), batch_index_error_message=row.error_message)
            for number in (row.bad_records if kind else ())
        )

    def partition(row: PartitionProduced):
        leader = (
            {} if version < 10 or row.current_leader is None else {"current_leader": _leader(kio, row.current_leader)}
        )
        at = row.log_append_time_ms
        return oracle.pick(
            kio.PartitionProduceResponse,
            index=row.index,
            error_code=KioError(row.error_code),
            base_offset=row.base_offset,
            log_append_time=None if at < 0 else datetime.fromtimestamp(at / 1000, UTC),
            log_start_offset=row.log_start_offset,
            record_errors=record_errors(row),
            error_message=row.error_message,
            **leader,
        )

    topics = tuple(
        oracle.pick(
            kio.TopicProduceResponse,
            name=name,
            topic_id=topic_id,
            partition_responses=tuple(partition(row) for row in rows),
        )
        for name, topic_id, rows in produced
    )
    throttle = i32Timedelta.parse(timedelta(milliseconds=30))
    named = [row.current_leader for _, _, rows in produced for row in rows if row.current_leader is not None]
    expected = oracle.write(
        oracle.pick(
            kio.ProduceResponse,
            responses=topics,
            throttle_time=throttle,
            node_endpoints=oracle.endpoints(kio, named) if version >= 10 else (),
        )
    )
    assert encode_response(version, produced, throttle_ms=30) == expected


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 5])
def test_the_prepared_reply_is_the_one_that_would_be_written(version):
    prepared = SingleReply(version, "café", TOPIC_ID, 7)
    for place in ((0, -1, 0), (2**40, 1_700_000_000_000, 17)):
        body = encode_response(version, [("café", TOPIC_ID, [PartitionProduced(7, 0, *place)])])
        assert prepared.fill(99, *place) == reply_head(PRODUCE, version, 99, len(body)) + body


def _leader(kio, leader):
    return kio.LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_and_every_tail_is_malformed(version):
    body = request_bytes(version, SHAPES[1])
    for end in range(len(body)):
        with pytest.raises(MalformedError):
            decode_request(memoryview(body)[:end], version)
    with pytest.raises(MalformedError, match="follow"):
        decode_request(memoryview(body + b"\0"), version)


def test_unknown_tagged_fields_are_skipped_at_every_level():
    tags = b"\x02\x05\x01a\x09\x02bc"
    body = b"\x00" + pack(">hi", 1, 30) + b"\x02" + b"\x02t" + b"\x02" + pack(">i", 4) + b"\x04abc" + tags + tags + tags
    request = decode_request(memoryview(body), 9)
    assert as_plain(request) == [("t", NO_TOPIC_ID, [(4, b"abc")])]


@pytest.mark.parametrize("version", VERSIONS)
@given(st.binary(max_size=80))
@settings(max_examples=60, deadline=None)
def test_random_bytes_are_read_or_malformed_and_nothing_else(version, body):
    _read_or_refuse(body, version)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_flipped_bits_are_read_or_malformed_and_nothing_else(version, data):
    body = bytearray(request_bytes(version, SHAPES[1] * 2))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _read_or_refuse(bytes(body), version)


def _read_or_refuse(body, version):
    try:
        decode_request(memoryview(body), version)
    except MalformedError:
        pass


def test_more_topics_than_bytes_are_refused_before_the_first_is_read():
    plain = pack(">hhii", -1, 1, 30, 2**31 - 1) + bytes(100)
    with pytest.raises(MalformedError, match="2147483647 elements announced"):
        decode_request(memoryview(plain), 3)
    flexible = b"\0" + pack(">hi", 1, 30) + b"\xff\xff\xff\xff\x0f" + bytes(100)
    with pytest.raises(MalformedError, match="elements announced"):
        decode_request(memoryview(flexible), 9)


def test_more_partitions_than_the_limit_are_refused_even_if_their_bytes_are_there():
    count = PRODUCE_ELEMENTS_MAX // 2
    topic = pack(">h1si", 1, b"t", count) + pack(">ii", 0, -1) * count
    body = pack(">hhii", -1, 1, 30, 2) + topic * 2
    with pytest.raises(MalformedError, match="elements"):
        decode_request(memoryview(body), 3)


def test_more_tagged_fields_than_anybody_has_are_refused():
    body = b"\x00" + pack(">hi", 1, 30) + b"\x01" + bytes([100]) + b"\x07\x00" * 100
    with pytest.raises(MalformedError, match="100 tagged fields"):
        decode_request(memoryview(body), 9)
