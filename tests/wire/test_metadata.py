"""Metadata's hand-written replies against the bridge, version by version."""

from __future__ import annotations

import time
from uuid import UUID

import pytest

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire import bridge
from clarion.wire.apis import METADATA
from clarion.wire.messages import metadata as neutral
from clarion.wire.metadata import (
    BrokerMetadata,
    PartitionMetadata,
    TopicMetadata,
    encode_response,
    encode_topic,
)

VERSIONS = range(14)
TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


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


def test_ten_thousand_kept_topics_are_joined_in_milliseconds():
    partition = PartitionMetadata(0, 0, 1, 0, [1], [1], [])
    topics = [encode_topic(12, TopicMetadata(0, f"topic-{i}", UUID(int=i), False, [partition])) for i in range(10_000)]
    took = []
    for _ in range(5):
        started = time.thread_time()
        encode_response(12, throttle_ms=0, brokers=BROKERS, cluster_id="c", controller_id=1, topics=topics)
        took.append(time.thread_time() - started)
    assert min(took) < 0.05  # 1 ms
