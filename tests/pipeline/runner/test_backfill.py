"""A backfill: all that a large topic holds, through a function that takes its time, complete and in little memory.

`CLARION_BACKFILL_MB` says how large the campaign's topic is (10 GB by default, and twice that on disk is wise).
"""

import os

import pyarrow.compute as pc
import pytest
from bench.rows.spark_peers import PythonMemory
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.pipeline.topics import create

# A busy machine takes a minute for a first batch; and one Spark is enough.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("spark-runner")]

ROW_BYTES = 1_024
PARTITIONS = 8
PYTHON_MB_MAX = 1_000
CAMPAIGN_MB = int(os.environ.get("CLARION_BACKFILL_MB", "10000"))

SLOW = """
import time
from pyspark.sql.functions import udf
from clarion.pipeline import pipeline, table, topic

@udf("int")
def measured(value):
    end = time.perf_counter_ns() + 50_000
    while time.perf_counter_ns() < end:
        pass
    return len(value)

@pipeline(reads=topic("{topic}"), writes=table("{folder}/measured"))
def measure(messages):
    return messages.select("partition", "offset", measured("value").alias("bytes"))
"""


def test_a_small_backfill_is_complete(stage):
    backfill(stage, "small", 8)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_a_large_backfill_is_complete_in_time_and_in_little_memory(stage):
    memory_mb = backfill(stage, "large", CAMPAIGN_MB)
    assert memory_mb < PYTHON_MB_MAX, f"{memory_mb:.0f} MB in Python"


def backfill(stage, name: str, megabytes: int) -> float:
    """Returns the most megabytes that Spark's Pythons held; those of earlier tests on the same Spark among them."""
    rows = megabytes * 1_000_000 // ROW_BYTES // PARTITIONS
    create(stage.bootstrap, name, PARTITIONS, retention_ms="-1")
    fill(stage.bootstrap, name, rows)
    path = stage.file(SLOW.replace("{topic}", name).replace("{folder}", str(stage.folder)))
    jvm = int(stage.spark._jvm.java.lang.ProcessHandle.current().pid())
    with PythonMemory(jvm) as memory:  # planners and workers; the broker and this test are not Spark's
        (measured,) = stage.play(path).progresses
    assert (measured.state, measured.last_error) == ("ended", "")
    assert (measured.rows_in, measured.rows_out, measured.lag) == (rows * PARTITIONS, rows * PARTITIONS, 0)
    found = DeltaTable(f"{stage.folder}/measured").to_pyarrow_table()
    assert pc.sum(found["bytes"]).as_py() == rows * PARTITIONS * ROW_BYTES
    for partition in range(PARTITIONS):
        offsets = found.filter(pc.equal(found["partition"], partition))["offset"]
        assert len(offsets) == len(offsets.unique()) == rows, f"partition {partition}"
        assert pc.max(offsets).as_py() == rows - 1
    return memory.peak_mb


def fill(bootstrap: str, topic: str, rows: int) -> None:
    """Rows that do not compress well, so that what is stored is what is read."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000,
                         "queue.buffering.max.messages": 200_000})  # fmt: skip
    value = os.urandom(ROW_BYTES)
    for number in range(rows):
        for partition in range(PARTITIONS):
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
