"""A follower's fetch is read by the leader's side, and by Kafka's schema; replies likewise."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import MalformedError
from clarion.wire.current_leader import CurrentLeader
from clarion.wire.fetch import FetchRequest, _decode_flexible, _decode_follower, decode_request
from clarion.wire.fetch_response import PartitionFetched, encode_response
from clarion.wire.fields import UNREADABLE
from clarion.wire.replica_fetch import AskedPartition, FetchedPartition, ReplicaRequest, decode_reply, encode_request

ONE, TWO = UUID(int=1), UUID(int=2)
VERSIONS = (15, 16, 17, 18)
ASKED = {
    ONE: [AskedPartition(0, 5, 100, 4, 7, 1 << 20, 90)],
    TWO: [AskedPartition(i, 1, i, -1, 0, 9, -1) for i in (3, 4)],
}
REQUEST = ReplicaRequest(2, 77, b"secret", 12, 34, 500, 1, 10 << 20, ASKED, {TWO: [8, 9]})


@pytest.mark.parametrize("version", VERSIONS)
def test_the_leader_reads_what_a_follower_says(version: int) -> None:
    read = decode_request(memoryview(encode_request(REQUEST)), version)
    assert (read.replica_id, read.broker_epoch, read.secret) == (2, 77, b"secret")
    assert (read.session_id, read.session_epoch, read.max_wait_ms, read.min_bytes) == (12, 34, 500, 1)
    assert [(one.topic_id, one.partitions) for one in read.forgotten] == [(TWO, [8, 9])]
    said = {one.topic_id: one.partitions for one in read.topics}
    assert {topic: list(map(tuple, rows)) for topic, rows in said.items()} == {
        topic: list(map(tuple, rows)) for topic, rows in ASKED.items()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_without_news_names_nothing(version: int) -> None:
    body = encode_request(REQUEST._replace(asked={}, forgotten={}))
    assert len(body) < 80
    read = decode_request(memoryview(body), version)
    assert read.replica_id == 2
    assert not read.topics
    assert not read.forgotten


def read_the_long_way(body: bytes, version: int) -> FetchRequest | None:
    try:
        request, end = _decode_flexible(body, version)
    except (MalformedError, *UNREADABLE):
        return None
    return request if end == len(body) else None


@pytest.mark.parametrize("secret", [b"", b"s", b"s" * 64])
def test_news_of_one_partition_are_read_in_one_look_as_in_many(secret: bytes) -> None:
    body = encode_request(REQUEST._replace(asked={ONE: ASKED[ONE]}, forgotten={}, secret=secret))
    read = _decode_follower(memoryview(body))
    assert read is not None
    assert read == read_the_long_way(body, 18)
    assert (read.replica_id, read.broker_epoch, read.secret) == (2, 77, secret)
    assert [tuple(one) for one in read.topics[0].partitions] == [tuple(one) for one in ASKED[ONE]]


@given(st.integers(0, 110), st.integers(0, 255), st.sampled_from(VERSIONS))
def test_what_only_looks_like_news_of_one_partition_is_read_the_long_way(at: int, byte: int, version: int) -> None:
    body = bytearray(encode_request(REQUEST._replace(asked={ONE: ASKED[ONE]}, forgotten={})))
    body[at] = byte
    try:
        read = decode_request(bytes(body), version)
    except MalformedError:
        read = None
    assert read == read_the_long_way(bytes(body), version)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.sampled_from([0, 1, 6, 74]),
        st.integers(-1, 2**62),
        st.integers(-1, 2**62),
        st.binary(max_size=300),
        st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62)),
        st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    ),
    max_size=5,
)


@given(st.dictionaries(st.uuids(), ROWS, max_size=3), st.sampled_from(VERSIONS))
def test_a_follower_reads_what_the_leader_says(said: dict[UUID, list[tuple]], version: int) -> None:
    topics = [
        (
            "",
            topic,
            [
                PartitionFetched(
                    i, code, mark, mark, start, len(data), parts, leader and CurrentLeader(*leader, "host", 9092)
                )
                for i, code, mark, start, data, parts, leader in rows
            ],
        )
        for topic, rows in said.items()
    ]
    pieces = encode_response(version, throttle_ms=0, error_code=0, session_id=5, topics=topics)
    records = [row[4] for rows in said.values() for row in rows if row[4]]
    body = pieces[0] + b"".join(data + piece for data, piece in zip(records, pieces[1:], strict=True))
    reply = decode_reply(body)
    assert (reply.error_code, reply.session_id) == (0, 5)
    assert [read(one) for one in reply.partitions] == [
        (topic, i, code, mark, start, memoryview(data), parts)
        for topic, rows in said.items()
        for i, code, mark, start, data, parts, _ in rows
    ]


def read(one: FetchedPartition) -> tuple:
    known = (one.topic_id, one.index, one.error_code, one.high_watermark, one.log_start_offset)
    return (*known, one.records, one.diverging_epoch)


def test_a_reply_that_ends_too_early_or_too_late_is_malformed() -> None:
    row = PartitionFetched(0, 0, 1, 1, 0, 3, (1, 2))
    pieces = encode_response(17, throttle_ms=0, error_code=0, session_id=5, topics=[("", ONE, [row])])
    body = pieces[0] + b"abc" + pieces[1]
    for cut in range(10, len(body)):
        with pytest.raises(MalformedError):
            list(decode_reply(body[:cut]).partitions)
    with pytest.raises(MalformedError, match="follow"):
        list(decode_reply(body + b"\0").partitions)
