"""Fetch's hand-written codec against kio, version by version, and against broken frames."""

from __future__ import annotations

import time
from datetime import timedelta
from struct import pack
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioError
from kio.static.primitive import i32Timedelta

from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.current_leader import CurrentLeader
from clarion.wire.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, decode_request
from clarion.wire.fetch_response import PartitionFetched, encode_response
from tests.wire import oracle

VERSIONS = range(4, 19)
TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
OTHER_ID = UUID(int=77)


def milliseconds(value: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=value))


def request_bytes(version: int, request: FetchRequest, *, with_tags: bool = True) -> bytes:
    """`with_tags` adds the tagged fields that our reader reads over."""
    kio = oracle.schema("fetch", version, "request")

    def partition(row: FetchPartition):
        return oracle.pick(
            kio.FetchPartition,
            partition=row.index,
            current_leader_epoch=row.current_leader_epoch,
            fetch_offset=row.fetch_offset,
            last_fetched_epoch=row.last_fetched_epoch,
            log_start_offset=row.log_start_offset,
            partition_max_bytes=row.max_bytes,
            **({"replica_directory_id": TOPIC_ID, "high_watermark": 5} if with_tags else {}),
        )

    topics = tuple(
        oracle.pick(kio.FetchTopic, topic=t.name, topic_id=t.topic_id, partitions=tuple(map(partition, t.partitions)))
        for t in request.topics
    )
    forgotten = {}
    if version >= 7:
        forgotten["forgotten_topics_data"] = tuple(
            oracle.pick(kio.ForgottenTopic, topic=t.name, topic_id=t.topic_id, partitions=tuple(t.partitions))
            for t in request.forgotten
        )
    if version >= 15 and (with_tags or request.replica_id != -1):
        forgotten["replica_state"] = kio.ReplicaState(replica_id=request.replica_id, replica_epoch=REPLICA_EPOCH)
    return oracle.write(
        oracle.pick(
            kio.FetchRequest,
            cluster_id="cluster" if with_tags else None,
            replica_id=request.replica_id,
            max_wait=milliseconds(request.max_wait_ms),
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=request.isolation_level,
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            topics=topics,
            rack_id=request.rack_id,
            **forgotten,
        )
    )


def as_of(version: int, request: FetchRequest) -> FetchRequest:
    """What is left of a request in an old version."""

    def named(topic):
        return topic._replace(name="") if version >= 13 else topic._replace(topic_id=NO_TOPIC_ID)

    def partition(row: FetchPartition) -> FetchPartition:
        return row._replace(
            log_start_offset=row.log_start_offset if version >= 5 else -1,
            current_leader_epoch=row.current_leader_epoch if version >= 9 else -1,
            last_fetched_epoch=row.last_fetched_epoch if version >= 12 else -1,
        )

    topics = [named(t)._replace(partitions=[partition(p) for p in t.partitions]) for t in request.topics]
    return request._replace(
        topics=topics,
        forgotten=[named(t) for t in request.forgotten] if version >= 7 else [],
        session_id=request.session_id if version >= 7 else 0,
        session_epoch=request.session_epoch if version >= 7 else -1,
        rack_id=request.rack_id if version >= 11 else "",
    )


REPLICA_EPOCH = 4

FULL = FetchRequest(
    replica_id=2,
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=52_428_800,
    isolation_level=1,
    session_id=99,
    session_epoch=3,
    topics=[
        FetchTopic(
            "orders", TOPIC_ID, [FetchPartition(0, 4, 2**40, 3, 17, 1_048_576), FetchPartition(1, -1, 0, -1, -1, 1)]
        ),
        FetchTopic("café", OTHER_ID, []),
        FetchTopic("many", OTHER_ID, [FetchPartition(i, 0, i, 0, 0, 4096) for i in range(300)]),
    ],
    forgotten=[ForgottenTopic("old", TOPIC_ID, [0, 1, 2]), ForgottenTopic("older", OTHER_ID, [])],
    rack_id="rack-a",
)
SMALL = FULL._replace(
    replica_id=-1, topics=[FetchTopic("orders", TOPIC_ID, [FetchPartition(0, -1, 7, -1, -1, 1024)])], forgotten=[]
)
EMPTY = SMALL._replace(topics=[], rack_id="")
SINGLE = SMALL._replace(rack_id="")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("request_", [FULL, SMALL, EMPTY, SINGLE], ids=["full", "small", "empty", "single"])
def test_a_request_is_read_as_kio_wrote_it(version, request_):
    body = request_bytes(version, request_)
    expected = as_of(version, request_)
    tagged = expected._replace(broker_epoch=REPLICA_EPOCH) if version >= 15 else expected
    assert decode_request(memoryview(body), version) == tagged
    assert decode_request(body, version) == tagged
    bare = request_bytes(version, request_, with_tags=False)
    assert decode_request(memoryview(bare), version) == (tagged if request_.replica_id >= 0 else expected)


@pytest.mark.parametrize("version", range(15, 19))
def test_a_request_of_one_partitions_size_but_another_shape_is_not_mistaken_for_it(version):
    size = len(request_bytes(version, SINGLE, with_tags=False))
    for request in (EMPTY, SINGLE._replace(topics=[FetchTopic("", TOPIC_ID, [])])):
        bare = len(request_bytes(version, request, with_tags=False))
        padded = request._replace(rack_id="r" * (size - bare))
        body = request_bytes(version, padded, with_tags=False)
        assert len(body) == size
        assert decode_request(body, version) == as_of(version, padded)


FETCHED = [
    ("orders", TOPIC_ID, [PartitionFetched(0, 0, 10, 9, 1, 100)]),
    (
        "café",
        OTHER_ID,
        [
            PartitionFetched(1, 0, 10, 10, 0, 0),
            PartitionFetched(2, 1, -1, -1, -1, 0, diverging_epoch=(3, 2**40)),
            PartitionFetched(3, 6, -1, -1, -1, 0, current_leader=CurrentLeader(2, 5, "h2", 9092)),
            PartitionFetched(
                4, 0, 11, 10, 0, 70_000, (1, 2), CurrentLeader(3, 4, "h3", 9093, "north"), [(1000, 5), (1001, 6)]
            ),
            PartitionFetched(5, 0, 11, 10, 0, 100, aborted=[]),
        ],
    ),
    ("none", TOPIC_ID, []),
]

# Each partition as the only one of a response, which has a shorter road: none may be mistaken for its plain shape.
ALONE = {f"only partition {row.index}": [(name, id_, [row])] for name, id_, rows in FETCHED for row in rows}


def joined(pieces: list[bytes], topics) -> bytes:
    records = [b"t" * row.records_length for _, _, rows in topics for row in rows if row.records_length > 0]
    assert len(pieces) == len(records) + 1
    return b"".join(part for pair in zip(pieces, [*records, b""], strict=True) for part in pair)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fetched", [FETCHED, [], *ALONE.values()], ids=["full", "empty", *ALONE])
def test_a_response_with_its_records_is_what_kio_writes(version, fetched):
    kio = oracle.schema("fetch", version, "response")

    def partition(row: PartitionFetched):
        tagged = {}
        if version >= 12 and row.diverging_epoch is not None:
            tagged["diverging_epoch"] = kio.EpochEndOffset(
                epoch=row.diverging_epoch[0], end_offset=row.diverging_epoch[1]
            )
        if version >= 16 and row.current_leader is not None:
            leader = row.current_leader
            tagged["current_leader"] = kio.LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
        aborted = None
        if row.aborted is not None:
            aborted = tuple(kio.AbortedTransaction(producer_id=p, first_offset=o) for p, o in row.aborted)
        return oracle.pick(
            kio.PartitionData,
            partition_index=row.index,
            error_code=KioError(row.error_code),
            high_watermark=row.high_watermark,
            last_stable_offset=row.last_stable_offset,
            log_start_offset=row.log_start_offset,
            aborted_transactions=aborted,
            records=b"t" * row.records_length,
            **tagged,
        )

    topics = tuple(
        oracle.pick(kio.FetchableTopicResponse, topic=name, topic_id=id_, partitions=tuple(partition(r) for r in rows))
        for name, id_, rows in fetched
    )
    named = [row.current_leader for _, _, rows in fetched for row in rows if row.current_leader is not None]
    expected = oracle.write(
        oracle.pick(
            kio.FetchResponse,
            throttle_time=milliseconds(7),
            error_code=KioError(0),
            session_id=99,
            responses=topics,
            node_endpoints=oracle.endpoints(kio, named) if version >= 16 else (),
        )
    )
    pieces = encode_response(version, throttle_ms=7, error_code=0, session_id=99, topics=fetched)
    assert joined(pieces, fetched) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_and_every_tail_is_malformed(version):
    for shape in (FULL._replace(topics=FULL.topics[:2]), SINGLE):
        body = request_bytes(version, shape, with_tags=shape is not SINGLE)
        for end in range(len(body)):
            with pytest.raises(MalformedError):
                decode_request(memoryview(body)[:end], version)
        with pytest.raises(MalformedError, match="follow"):
            decode_request(memoryview(body + b"\0"), version)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.binary(max_size=120))
@settings(max_examples=40, deadline=None)
def test_random_bytes_are_read_or_malformed_and_nothing_else(version, body):
    _read_or_refuse(body, version)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_flipped_bits_are_read_or_malformed_and_nothing_else(version, data):
    shape = data.draw(st.sampled_from([FULL._replace(topics=FULL.topics[:2]), SINGLE]))
    body = bytearray(request_bytes(version, shape, with_tags=shape is not SINGLE))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _read_or_refuse(bytes(body), version)


def _read_or_refuse(body, version):
    try:
        decode_request(memoryview(body), version)
    except MalformedError:
        pass


def test_a_replica_state_that_ends_elsewhere_than_it_says_is_malformed():
    body = request_bytes(15, SMALL._replace(replica_id=3))
    good = b"\x01\x0d" + pack(">iq", 3, 4) + b"\0"
    assert good in body
    with pytest.raises(MalformedError):
        decode_request(body.replace(good, b"\x01\x0c" + pack(">iq", 3, 4) + b"\0"), 15)


def test_more_partitions_than_bytes_are_refused_before_the_first_is_read():
    head = pack(">iiiib", -1, 500, 1, 1000, 0)
    with pytest.raises(MalformedError, match="elements announced"):
        decode_request(head + pack(">i", 2**31 - 1) + bytes(50), 4)
    with pytest.raises(MalformedError, match="elements announced"):
        decode_request(head + pack(">ih1si", 1, 1, b"t", 2**30) + bytes(50), 4)


def test_two_thousand_partitions_take_a_few_milliseconds():
    many = SMALL._replace(
        topics=[FetchTopic("t", TOPIC_ID, [FetchPartition(i, 0, i, 0, 0, 4096) for i in range(2000)])]
    )
    body = request_bytes(16, many)
    fetched = [("t", TOPIC_ID, [PartitionFetched(i, 0, 10, 10, 0, 100) for i in range(2000)])]
    took = []
    for _ in range(5):
        started = time.thread_time()
        decode_request(memoryview(body), 16)
        pieces = encode_response(16, throttle_ms=0, error_code=0, session_id=1, topics=fetched)
        took.append(time.thread_time() - started)
    assert min(took) < 0.1  # 3 ms
    assert len(pieces) == 2001
