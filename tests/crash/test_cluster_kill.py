"""`clarion serve --brokers 3` with real clients: leaders are killed under load, and nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.crash.brokers import PATIENCE_SECONDS, STORES, Brokers, running_brokers
from tests.waiting import wait_for


@pytest.fixture(params=STORES)
def brokers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    with running_brokers(tmp_path, request.param) as made:
        yield made


class Writer:
    """Numbered messages, and where the acknowledged ones are."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
            }
        )
        self._next = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failures: list[str] = []

    def write(self, count: int) -> None:
        """Returns when so many more are acknowledged."""
        goal = len(self.acknowledged) + count

        def step() -> bool:
            while len(self._producer) < 20:
                number, self._next = self._next, self._next + 1
                self._producer.produce(self._topic, b"%d" % number, partition=number % 2, on_delivery=self._note)
            self._producer.poll(0.01)
            return len(self.acknowledged) >= goal or bool(self.failures)

        wait_for(step, seconds=PATIENCE_SECONDS)
        assert not self.failures

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        assert not self.failures

    def _note(self, error: object, message: object) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged[int(message.value())] = (message.partition(), message.offset())  # type: ignore[attr-defined]


def read_all(bootstrap: str, topic: str, count: int) -> dict[int, list[tuple[int, int]]]:
    """By partition: offsets and numbers, in order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, index, 0) for index in (0, 1)])
    found: dict[int, list[tuple[int, int]]] = {0: [], 1: []}

    def step() -> bool:
        for message in consumer.consume(500, 0.1):
            assert message.error() is None
            found[message.partition()].append((message.offset(), int(message.value())))
        return sum(map(len, found.values())) >= count

    try:
        wait_for(step, seconds=PATIENCE_SECONDS)
    finally:
        consumer.close()
    return found


def test_leaders_are_killed_under_load_and_nothing_acknowledged_is_lost(brokers: Brokers):
    brokers.create("t", 2, min_insync_replicas="2")
    writer = Writer(brokers.bootstrap, "t")
    writer.write(200)
    for index in (0, 1):
        wait_for(lambda: all(len(isr) == 3 for _, isr in brokers.partitions("t").values()), seconds=PATIENCE_SECONDS)
        leader, _ = brokers.partitions("t")[index]
        brokers.kill9(leader)
        writer.write(300)
    writer.finish()
    wait_for(lambda: all(len(isr) == 3 for _, isr in brokers.partitions("t").values()), seconds=PATIENCE_SECONDS)
    found = read_all(brokers.bootstrap, "t", len(writer.acknowledged))
    for index, messages in found.items():
        assert [offset for offset, _ in messages] == list(range(len(messages)))
        numbers = [number for _, number in messages]
        assert numbers == sorted(set(numbers)), "each once, and in order"
        told = {offset: number for number, (at, offset) in writer.acknowledged.items() if at == index}
        assert told.items() <= dict(messages).items()
