"""One broker for the whole folder."""

import json
import time
from pathlib import Path

import pytest

from clarion.pipeline.definition import BATCH, ONCE, Pipeline, Plan
from clarion.pipeline.runner import Runner
from tests.pipeline import topics
from tests.servers import ClarionProcess

DAY_MS = 86_400_000
# A round time that is past but young: the broker deletes what is older than a topic's retention.
NOON = int(time.time()) // 86_400 * DAY_MS - DAY_MS // 2


@pytest.fixture(scope="package")
def broker(tmp_path_factory):
    with ClarionProcess(tmp_path_factory.mktemp("broker") / "data", durability="page-cache") as process:
        yield process


@pytest.fixture
def house(spark, broker, tmp_path: Path):
    return House(spark, broker.bootstrap, tmp_path)


class House:
    """A broker with topics, a lake, and a place where pipelines keep their state."""

    def __init__(self, spark, bootstrap: str, folder: Path) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.state = folder / "state"

    def lake(self, name: str) -> str:
        return str(self.folder / "lake" / name)

    def make_topic(self, name: str, partitions: int = 2, **settings: str) -> None:
        topics.create(self.bootstrap, name, partitions, **settings)

    def delete_topic(self, name: str) -> None:
        topics.delete(self.bootstrap, name)

    def send(self, topic: str, values, *, key=None, partition=None, timestamp: int | None = None, headers=None) -> None:
        """`key`, `partition`: functions of the value's place; by default key-0 … key-9, partition by number."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for number, value in enumerate(values):
            more = {} if timestamp is None else {"timestamp": timestamp + number}
            producer.produce(
                topic,
                value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
                key=f"key-{number % 10}".encode() if key is None else key(number),
                partition=number % 2 if partition is None else partition(number),
                headers=headers,
                **more,
            )
            producer.poll(0)
        assert producer.flush(30) == 0

    def read(self, topic: str, count: int) -> list:
        """All messages of a topic, as the Kafka client gives them, until there are `count`."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.auto.commit": False})
        partitions = consumer.list_topics(topic).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        found: list = []
        while len(found) < count:
            batch = consumer.consume(1000, timeout=10)
            assert batch, f"only {len(found)} of {count} messages"
            found += [each for each in batch if not each.error()]
        consumer.close()
        return found

    def run(self, pipeline: Pipeline, how: str = ONCE, **plan) -> Runner:
        """Play it to its end; a failure of the pipeline is the test's failure."""
        runner = self.try_to_run(pipeline, how, **plan)
        assert runner.progresses[0].state == "ended", runner.progresses[0].last_error
        return runner

    def try_to_run(self, pipeline: Pipeline, how: str = ONCE, **plan) -> Runner:
        ending = {"endingOffsets": "latest"} if how == BATCH else {}
        settings = {"bootstrap": self.bootstrap, "state_dir": self.state, "must_wait": False, "ending": ending, **plan}
        runner = Runner([pipeline], Plan(how=how, **settings), lambda progresses: None)
        runner.run(lambda config: self.spark)
        return runner

    def checkpoint(self, pipeline: Pipeline) -> Path:
        from clarion.pipeline.state_files import StateFolder

        return StateFolder(self.state, pipeline.name).checkpoint
