"""Metadata's hand-written codec against kio, version by version, and against broken frames."""

from __future__ import annotations

import time
from struct import pack
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire import bridge
from clarion.wire.apis import METADATA
from clarion.wire.messages import k03_metadata as neutral
from clarion.wire.metadata import (
    BrokerMetadata,
    MetadataRequest,
    PartitionMetadata,
    TopicAsked,
    TopicMetadata,
    decode_request,
    encode_response,
    encode_topic,
)

VERSIONS = range(14)
TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def request_bytes(version, topics, *, auto=True, cluster_operations=False, topic_operations=False) -> bytes:
    """Through the bridge, which is held to kio by its own tests."""
    asked = topics and tuple(neutral.MetadataRequestTopic(name=t.name, topic_id=t.topic_id) for t in topics)
    request = neutral.MetadataRequest(
        topics=asked,
        allow_auto_topic_creation=auto,
        include_cluster_authorized_operations=cluster_operations,
        include_topic_authorized_operations=topic_operations,
    )
    return bridge.encode(request, METADATA, version, "request")


@pytest.mark.parametrize("version", VERSIONS)
def test_named_topics_are_read(version):
    topics = [TopicAsked("orders", NO_TOPIC_ID), TopicAsked("café", NO_TOPIC_ID)]
    body = request_bytes(version, topics, auto=False, cluster_operations=True, topic_operations=True)
    assert decode_request(memoryview(body), version) == MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=version < 4,
        include_cluster_authorized_operations=8 <= version <= 10,
        include_topic_authorized_operations=version >= 8,
    )


@pytest.mark.parametrize("version", range(10, 14))
def test_topics_are_asked_for_by_id_without_a_name(version):
    topics = [TopicAsked(None, TOPIC_ID), TopicAsked("named", TOPIC_ID)]
    assert decode_request(request_bytes(version, topics), version).topics == topics


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_are_null_and_in_version_0_an_empty_list(version):
    assert decode_request(request_bytes(version, () if version == 0 else None), version).topics is None
    if version >= 1:
        assert decode_request(request_bytes(version, ()), version).topics == []


TOPICS = [
    TopicMetadata(
        0, "orders", TOPIC_ID, False, [PartitionMetadata(0, i, 1, 7, [1, 2, 3], [1, 2], [3]) for i in range(3)]
    ),
    TopicMetadata(3, "missing", NO_TOPIC_ID, False, []),
    TopicMetadata(0, "__consumer_offsets", UUID(int=9), True, [PartitionMetadata(5, 0, -1, -1, [], [], [])]),
]
BROKERS = [BrokerMetadata(1, "localhost", 9092, None), BrokerMetadata(2, "café.example", 9093, "rack-a")]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cluster_id", [None, "cluster"])
def test_a_response_is_written_as_the_bridge_writes_it(version, cluster_id):
    expected = neutral.MetadataResponse(
        throttle_time=9,
        brokers=tuple(neutral.MetadataResponseBroker(node_id=n, host=h, port=p, rack=r) for n, h, p, r in BROKERS),
        cluster_id=cluster_id,
        controller_id=1,
        topics=tuple(
            neutral.MetadataResponseTopic(
                error_code=topic.error_code,
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=tuple(
                    neutral.MetadataResponsePartition(
                        error_code=p.error_code,
                        partition_index=p.index,
                        leader_id=p.leader,
                        leader_epoch=p.leader_epoch,
                        replica_nodes=tuple(p.replicas),
                        isr_nodes=tuple(p.isr),
                        offline_replicas=tuple(p.offline),
                    )
                    for p in topic.partitions
                ),
            )
            for topic in TOPICS
        ),
        error_code=35,
    )
    written = encode_response(
        version,
        throttle_ms=9,
        brokers=BROKERS,
        cluster_id=cluster_id,
        controller_id=1,
        topics=[encode_topic(version, topic) for topic in TOPICS],
        error_code=35,
    )
    assert written == bridge.encode(expected, METADATA, version, "response")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_without_a_name_is_null_where_null_is_known_and_empty_elsewhere(version):
    topic = encode_topic(version, TopicMetadata(100, None, TOPIC_ID, False, []))
    body = encode_response(version, throttle_ms=0, brokers=[], cluster_id=None, controller_id=-1, topics=[topic])
    (read,) = bridge.decode(neutral.MetadataResponse, METADATA, version, "response", body).topics
    assert read.name == (None if version >= 12 else "")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_and_every_tail_is_malformed(version):
    body = request_bytes(version, [TopicAsked("orders", NO_TOPIC_ID)])
    for end in range(len(body)):
        with pytest.raises(MalformedError):
            decode_request(body[:end], version)
    with pytest.raises(MalformedError, match="follow"):
        decode_request(body + b"\0", version)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.binary(max_size=60))
@settings(max_examples=40, deadline=None)
def test_random_bytes_are_read_or_malformed_and_nothing_else(version, body):
    try:
        decode_request(body, version)
    except MalformedError:
        pass


def test_more_names_than_bytes_are_refused_before_the_first_is_read():
    with pytest.raises(MalformedError, match="elements announced"):
        decode_request(pack(">i", 2**31 - 1) + bytes(20), 1)
    with pytest.raises(MalformedError, match="elements announced"):
        decode_request(b"\xff\xff\xff\xff\x0f" + bytes(20), 12)
    with pytest.raises(MalformedError):
        decode_request(pack(">i", -2), 1)


def test_ten_thousand_kept_topics_are_joined_in_milliseconds():
    partition = PartitionMetadata(0, 0, 1, 0, [1], [1], [])
    topics = [encode_topic(12, TopicMetadata(0, f"topic-{i}", UUID(int=i), False, [partition])) for i in range(10_000)]
    started = time.perf_counter()
    encode_response(12, throttle_ms=0, brokers=BROKERS, cluster_id="c", controller_id=1, topics=topics)
    assert time.perf_counter() - started < 0.05  # 1 ms when nobody else is at work
