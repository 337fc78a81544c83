"""Lag as the brokers tell it: messages, bytes and seconds per partition, against a real broker and without Spark."""

import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from clarion.model.ids import TopicPartition as Place
from clarion.pipeline.definition import RunSettings
from clarion.pipeline.lag import FirstBatch, LagProbe, PipelineLagWatch, partition_lag
from clarion.pipeline.progress import PartitionLag, PipelineProgress, read_report
from clarion.pipeline.topic_reference import topic
from clarion.testing import embedded
from tests.pipeline.topics import create
from tests.waiting import wait_for

NOW_MS = 1_700_000_000_000
FIVE_SECONDS_AGO = NOW_MS - 5_000


class Clock:
    def now_ms(self) -> int:
        return NOW_MS


@pytest.fixture
def bootstrap():
    with embedded() as broker:
        yield broker.bootstrap


def write(bootstrap: str, name: str, partition: int, count: int, size: int = 100) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(name, b"." * size, partition=partition, timestamp=FIVE_SECONDS_AGO + number)
    assert producer.flush(15) == 0


def stand_at(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """As the source stores it before a batch."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False)
    consumer.close()


def looked(bootstrap: str, *topics, progress: PipelineProgress | None = None) -> PipelineProgress:
    progress = progress or PipelineProgress("p")
    probe = LagProbe(progress, topics, RunSettings("p", bootstrap), Clock())
    probe.look()
    probe.close()
    return progress


def test_a_partition_that_is_behind_says_by_how_much_and_one_that_is_not_says_nought(bootstrap):
    create(bootstrap, "logs", 2, retention_ms="-1")
    write(bootstrap, "logs", 0, 50)
    write(bootstrap, "logs", 1, 7)
    stand_at(bootstrap, "clarion-pipeline-p", {("logs", 0): 0, ("logs", 1): 7})
    behind, read = looked(bootstrap, topic("logs")).lags
    assert (behind.topic, behind.partition, behind.messages, behind.seconds) == ("logs", 0, 50, 5.0)
    assert 50 * 100 < behind.bytes < 50 * 200
    assert read == PartitionLag("logs", 1, 0, 0, 0.0)


def test_the_end_of_the_last_batch_counts_before_the_group_has_heard_of_it(bootstrap):
    create(bootstrap, "logs", 1, retention_ms="-1")
    write(bootstrap, "logs", 0, 10)
    stand_at(bootstrap, "clarion-pipeline-p", {("logs", 0): 2})
    progress = PipelineProgress("p")
    assert looked(bootstrap, topic("logs"), progress=progress).lag == 8
    progress.add(read_report({"batchId": 1, "sources": [{"endOffset": '{"logs": {"id": "x", "0": 9}}'}]}), 0.0)
    assert looked(bootstrap, topic("logs"), progress=progress).lag == 1


def test_topics_by_pattern_and_from_two_brokers(bootstrap):
    with embedded() as other:
        for where in (bootstrap, other.bootstrap):
            for name in ("logs-a", "logs-b", "orders"):
                create(where, name, 1, retention_ms="-1")
                write(where, name, 0, 3)
                stand_at(where, "clarion-pipeline-p", {(name, 0): 1})
        found = looked(bootstrap, topic("logs-.*"), topic("orders", bootstrap=other.bootstrap)).lags
    assert [(each.topic, each.messages) for each in found] == [("logs-a", 2), ("logs-b", 2), ("orders", 2)]


def test_nothing_is_said_of_what_nobody_has_begun_to_read(bootstrap):
    create(bootstrap, "logs", 1)
    assert looked(bootstrap, topic("logs"), topic("gone")).lags == ()


def test_a_broker_that_is_away_is_not_a_lag_of_nought():
    progress = PipelineProgress("p", lag=0)
    assert looked("127.0.0.1:1", topic("logs"), progress=progress).lag is None


def test_a_clock_that_is_behind_that_of_the_producer_makes_no_negative_lag():
    future = FirstBatch(10.0, NOW_MS + 60_000)
    assert partition_lag(Place("t", 0), 5, 9, future, NOW_MS) == PartitionLag("t", 0, 4, 40, 0.0)


def test_a_message_without_a_time_does_not_wait_since_1970():
    """Its producer gave it none (-1): how many wait is known, since when is not."""
    assert partition_lag(Place("t", 0), 5, 9, FirstBatch(10.0, -1), NOW_MS) == PartitionLag("t", 0, 4, 40, None)
    progress = PipelineProgress("p")
    progress.tell_lag([PartitionLag("t", 0, 4, 40, None), PartitionLag("t", 1, 0, 0, 0.0)])
    assert progress.lag_seconds is None, "the table is not up to date"


def test_the_watch_looks_until_its_block_ends(bootstrap):
    create(bootstrap, "logs", 1)
    write(bootstrap, "logs", 0, 4)
    stand_at(bootstrap, "clarion-pipeline-p", {("logs", 0): 0})
    progress = PipelineProgress("p")
    with PipelineLagWatch([LagProbe(progress, [topic("logs")], RunSettings("p", bootstrap))]):
        wait_for(lambda: progress.lag == 4, seconds=15, what="the first look")
    assert not [each for each in threading.enumerate() if each.name == "lag"]
