"""Streams through Spark: from topic to topic, over restarts, failures and losses."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import StreamingQueryException

from tests.pipeline.connector.frames import finished, into_topic, stream
from tests.pipeline.topics import contents, create, delete, fill, numbered
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


def wait_until_copied(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "wait-until-copied"})
    place = TopicPartition(topic, 0)
    wait_for(lambda: consumer.get_watermark_offsets(place, timeout=15)[1] >= count, seconds=90, what=f"{count} copies")
    consumer.close()
    return contents(bootstrap, topic)


@pytest.fixture
def topics(bootstrap: str, unique: str) -> tuple[str, str]:
    """A source and a target."""
    return both(bootstrap, unique)


def both(bootstrap: str, name: str) -> tuple[str, str]:
    source, target = f"{name}.in", f"{name}.out"
    create(bootstrap, source, 2)
    create(bootstrap, target)
    return source, target


def test_a_stream_goes_on_where_it_was(spark, bootstrap, topics, checkpoint, unique):
    source, target = topics
    frame = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest", groupId=unique)
    fill(bootstrap, source, numbered(100), 0)
    query = into_topic(frame, bootstrap, target, checkpoint)
    assert sorted(wait_until_copied(bootstrap, target, 100)) == numbered(100)
    fill(bootstrap, source, numbered(100), 1)
    wait_until_copied(bootstrap, target, 200)
    query.processAllAvailable()
    query.stop()
    fill(bootstrap, source, [b"while it was away"])
    finished(into_topic(frame, bootstrap, target, checkpoint, now=True))
    assert sorted(contents(bootstrap, target)) == sorted(numbered(100) * 2 + [b"while it was away"])
    assert committed(bootstrap, unique, source) == [101, 100], "lag is nought, seen from the broker"


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=15)
    consumer.close()
    return [one.offset for one in found]


def test_available_now_takes_limited_bites(spark, bootstrap, topics, checkpoint):
    source, target = topics
    fill(bootstrap, source, numbered(1000), 0)
    frame = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="400")
    query = finished(into_topic(frame, bootstrap, target, checkpoint, now=True))
    assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [400, 400, 200]
    assert contents(bootstrap, target) == numbered(1000)


def test_a_batch_that_was_not_recorded_as_done_is_written_again(spark, bootstrap, topics, checkpoint):
    """At least once, and said so: the driver died between the sink's commit and the checkpoint's."""
    source, target = topics
    fill(bootstrap, source, numbered(100))
    frame = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest")
    finished(into_topic(frame, bootstrap, target, checkpoint, now=True))
    Path(checkpoint, "commits", "0").unlink()
    for crc in Path(checkpoint, "commits").glob(".0.crc"):
        crc.unlink()
    fill(bootstrap, source, [b"more"])
    finished(into_topic(frame, bootstrap, target, checkpoint, now=True))
    assert contents(bootstrap, target) == numbered(100) * 2 + [b"more"]


def test_a_deleted_checkpoint_starts_where_the_options_say(spark, bootstrap, topics, tmp_path, unique):
    source, target = topics
    fill(bootstrap, source, numbered(10))
    frame = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest", groupId=unique)
    for checkpoint in ("one", "two"):
        finished(into_topic(frame, bootstrap, target, str(tmp_path / checkpoint), now=True))
    assert contents(bootstrap, target) == numbered(10) * 2


def test_offsets_stand_in_the_checkpoint_with_the_topics_id(spark, bootstrap, topics, checkpoint):
    source, target = topics
    fill(bootstrap, source, numbered(10))
    frame = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest")
    finished(into_topic(frame, bootstrap, target, checkpoint, now=True))
    line = Path(checkpoint, "offsets", "0").read_text().splitlines()[-1]
    assert list(json.loads(line)[source]) == ["id", "epochs", "0", "1"]


def test_a_broker_that_restarts_or_freezes_in_mid_batch_is_waited_for(spark, own_server, unique, checkpoint):
    bootstrap = own_server.bootstrap
    source, target = both(bootstrap, unique)
    frame = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="5000")
    query = into_topic(frame, bootstrap, target, checkpoint)
    fill(bootstrap, source, numbered(20_000, size=100))
    wait_until_copied(bootstrap, target, 5000)
    own_server.restart(kill=True)
    fill(bootstrap, source, numbered(20_000, size=100))
    os.kill(own_server.pid, signal.SIGSTOP)
    time.sleep(1)  # not a wait for anything: this is how long it is frozen
    os.kill(own_server.pid, signal.SIGCONT)
    wait_for(lambda: query.exception() or not query.status["isDataAvailable"], seconds=120)
    query.processAllAvailable()
    assert query.exception() is None
    query.stop()
    got = contents(bootstrap, target)
    assert set(got) == set(numbered(20_000, size=100))
    assert len(got) >= 40_000


def test_a_topic_made_again_ends_the_query_with_a_reason(spark, bootstrap, topics, checkpoint):
    source, target = topics
    fill(bootstrap, source, numbered(10))
    frame = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest")
    finished(into_topic(frame, bootstrap, target, checkpoint, now=True))
    delete(bootstrap, source)
    create(bootstrap, source, 2)
    fill(bootstrap, source, [b"new"])
    with pytest.raises(StreamingQueryException, match="was deleted and made again"):
        finished(into_topic(frame, bootstrap, target, checkpoint, now=True))
    lenient = stream(spark, bootstrap, subscribe=source, startingOffsets="earliest", failOnDataLoss="false")
    finished(into_topic(lenient, bootstrap, target, checkpoint, now=True))
    assert contents(bootstrap, target) == [*numbered(10), b"new"]
