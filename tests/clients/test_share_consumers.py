"""confluent-kafka's share consumer: records are shared, acknowledged implicitly or one by one, and come again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.servers import ClarionProcess

pytestmark = pytest.mark.timeout(300)
PATIENCE_SECONDS = 60


def made(bootstrap: str, topic: str, count: int, *, partitions: int = 1, **settings: str) -> None:
    """A topic with so many messages, and a group of the same name that begins at its start."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result()
    wanted = {
        "share.auto.offset.reset": "earliest",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.GROUP, topic, incremental_configs=entries)]
    ).values():
        done.result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(PATIENCE_SECONDS) == 0


@contextmanager
def consumer(bootstrap: str, topic: str, **settings: str) -> Iterator[ShareConsumer]:
    told = {name.replace("_", "."): value for name, value in settings.items()}
    one = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": topic, **told})
    one.subscribe([topic])
    try:
        yield one
    finally:
        one.close()


def some(one: ShareConsumer, at_least: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < at_least:
        assert time.monotonic() < deadline, f"{len(found)} of {at_least} came"
        found += [message for message in one.poll(timeout=1.0) if message.error() is None]
    return found


def test_two_consumers_share_a_partition_and_nothing_comes_twice(bootstrap: str, unique: str) -> None:
    made(bootstrap, unique, 200)
    seen: list[bytes | None] = []
    with consumer(bootstrap, unique) as one, consumer(bootstrap, unique) as other:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < 200:
            assert time.monotonic() < deadline
            for who in (one, other):
                seen += [message.value() for message in who.poll(timeout=0.2) if message.error() is None]
    assert sorted(seen) == sorted(b"%d" % number for number in range(200))


def test_what_is_released_comes_again_and_what_is_accepted_or_rejected_does_not(bootstrap: str, unique: str) -> None:
    made(bootstrap, unique, 3)
    with consumer(bootstrap, unique, share_acknowledgement_mode="explicit") as one:
        words = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
        for message, word in zip(some(one, 3), words, strict=True):
            one.acknowledge(message, word)
        assert list(one.commit_sync(timeout=PATIENCE_SECONDS).values()) == [None]
        (again,) = some(one, 1)
        assert again.value() == b"1"
        one.acknowledge(again)
        one.commit_sync(timeout=PATIENCE_SECONDS)
    with consumer(bootstrap, unique) as later:
        made_again = Producer({"bootstrap.servers": bootstrap})
        made_again.produce(unique, b"last")
        made_again.flush(PATIENCE_SECONDS)
        assert [message.value() for message in some(later, 1)] == [b"last"]


def test_positions_survive_a_broker_that_is_killed(own_server: ClarionProcess, unique: str) -> None:
    made(own_server.bootstrap, unique, 10)
    with consumer(own_server.bootstrap, unique, share_acknowledgement_mode="explicit") as one:
        for message in some(one, 10):
            word = AcknowledgeType.ACCEPT if message.offset() % 2 else AcknowledgeType.RELEASE
            one.acknowledge(message, word)
        assert list(one.commit_sync(timeout=PATIENCE_SECONDS).values()) == [None]
    own_server.restart(kill=True)
    with consumer(own_server.bootstrap, unique) as later:
        assert sorted(message.offset() for message in some(later, 5)) == [0, 2, 4, 6, 8]
