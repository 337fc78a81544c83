"""Runs killed at any moment: the table holds every row once, the topic at least once."""

import json
import random
import signal
import threading

import pytest
from confluent_kafka import Producer

from tests.pipeline.runner.test_commands import SLOW, SMALL, desk  # noqa: F401
from tests.pipeline.topics import contents, create
from tests.waiting import wait_for

ROWS = 30_000
KILLS = 4

COPY = """
from clarion.pipeline import pipeline, topic, table

@pipeline(reads=topic("numbers", json="n long", options={"maxOffsetsPerTrigger": 2000}),
          writes=[topic("copies", partitions=1), table("lake/copies")])
def copy(numbers):
    return numbers
"""


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_a_pipeline_with_two_targets_that_is_killed_again_and_again(desk, broker):  # noqa: F811
    from deltalake import DeltaTable

    create(broker.bootstrap, "numbers", 2)
    (desk.folder / "copy.py").write_text(COPY)
    feeder = threading.Thread(target=feed, args=(broker.bootstrap,))
    feeder.start()
    chance = random.Random(4)
    command = ["run", "copy.py", "--json", "-b", broker.bootstrap, *SMALL]
    for _ in range(KILLS):
        with desk.begin(*command) as run:
            wait_for(
                lambda: run.poll() is not None or any(each["batches"] for each in desk.reports()),
                seconds=600,
                what="a batch",
            )
            assert run.poll() is None, desk.errors()
            threading.Event().wait(chance.uniform(0, 3))
            run.send_signal(signal.SIGKILL)
    feeder.join()
    done = desk("run", "copy.py", "--once", "-b", broker.bootstrap, *SMALL)
    assert done.returncode == 0, done.stderr
    table = DeltaTable(str(desk.folder / "lake" / "copies")).to_pyarrow_table()
    assert sorted(table["n"].to_pylist()) == list(range(ROWS))
    assert {json.loads(each)["n"] for each in contents(broker.bootstrap, "copies")} == set(range(ROWS))


def feed(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(ROWS):
        producer.produce("numbers", json.dumps({"n": number}).encode(), partition=number % 2)
        if number % 1000 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
