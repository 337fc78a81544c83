"""Spark's own Kafka connector reads from Clarion and writes to it, batch and streaming, and the two can be mixed."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from bench.peers.process import ROOT, PeerUnavailable
from bench.peers.spark_kafka import spark_jars
from confluent_kafka import Producer

from tests.pipeline import topics

DRIVER_SECONDS_MAX = 280  # 25 on a quiet machine
# A driver of its own, and a connector that must be fetched first: a minute, where it can be had at all.
pytestmark = [pytest.mark.campaign, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]

COPIES = ("batch", "stream", "there", "back", "moved", "moved-from", "unfinished", "unfinished-from")
LAST_BATCH = 12  # 25 messages at a time are twelve of each partition, so sixty are 24, 24 and these
MESSAGES = [(f"key-{n}", f"value {n}", [("n", str(n)), ("kind", "test")], n % 2) for n in range(60)]


@pytest.fixture(scope="module")
def jars_or_skip() -> None:
    try:
        spark_jars()
    except PeerUnavailable as reason:
        pytest.skip(f"Spark's Kafka connector cannot be had here: {reason}")


@pytest.fixture(scope="module")
def seen(jars_or_skip, bootstrap, tmp_path_factory) -> dict:
    """What a driver saw that used Spark's connector for everything, told in its own words."""
    topic = f"interop-{os.getpid()}"
    for each in (topic, *(f"{topic}-{copy}" for copy in COPIES)):
        topics.create(bootstrap, each, 2)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 5})
    for key, value, headers, partition in MESSAGES:
        producer.produce(topic, value, key, partition=partition, headers=headers)
    assert producer.flush(30) == 0
    command = [sys.executable, "-m", "tests.pipeline.interop.sparks_own", bootstrap, topic]
    done = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("checkpoints"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DRIVER_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def expected() -> list[list]:
    places = {0: 0, 1: 0}
    rows = []
    for key, value, headers, partition in MESSAGES:
        rows.append([key, value, [f"{name}={text}" for name, text in headers], partition, places[partition]])
        places[partition] += 1
    return sorted(rows, key=lambda row: (row[3], row[4]))


def test_a_batch_reads_every_message_as_it_was(seen):
    assert seen["batch"] == expected()


def test_a_batch_reads_only_the_offsets_it_was_asked_for(seen):
    assert seen["some"] == 4 + 29


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param("batch", id="by a batch"),
        pytest.param("stream", id="by a stream"),
        pytest.param("there", id="by a stream that our connector ends"),
        pytest.param("back", id="by a stream that our connector begins"),
    ],
)
def test_what_was_copied_is_what_was_sent(seen, copy):
    assert seen[copy] == expected()


def test_both_connectors_have_the_same_columns(seen):
    theirs, ours = seen["columns"]
    assert ours == theirs


def test_a_checkpoint_of_sparks_connector_goes_on_in_ours(seen):
    """The second half comes behind the first, nothing twice and nothing left out."""
    assert contents(seen["moved"]) == contents(2 * expected())


def test_a_batch_that_sparks_connector_planned_and_did_not_end_is_played_by_ours(seen):
    """A topic gets it again, that batch alone; offsets without a topic's id are those of the topic as it is."""
    found, wanted = contents(seen["unfinished"]), contents(2 * expected())
    assert not wanted - found
    assert set((found - wanted).values()) == {1}
    assert (found - wanted).total() == LAST_BATCH


def contents(rows: list[list]) -> Counter[str]:
    """Messages without their offsets, and how often each is there."""
    return Counter(json.dumps(row[:4]) for row in rows)
