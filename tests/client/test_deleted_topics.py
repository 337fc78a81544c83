"""A topic that is deleted under its writers and readers: nobody makes it anew, and nobody waits for it in silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

import clarion
from clarion.client.broker_links import LedTopic
from clarion.client.bus import Bus
from clarion.client.writer import MessageWriter, NewMessage
from clarion.model.errors import ErrorCode
from clarion.testing import EmbeddedBroker, embedded

from .words import PATIENCE_SECONDS, take


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """It makes topics for whoever asks for them, as Kafka does."""
    with embedded(metrics_port=0, auto_create_topics_enable=True) as broker:
        yield broker


def test_a_write_makes_no_topic_anew_that_was_deleted(bus: Bus, broker: EmbeddedBroker, topic: str) -> None:
    bus.write(topic, b"while it is there")
    with clarion.connect(broker.bootstrap) as another:
        another.delete_topic(topic)
    with pytest.raises(clarion.UnknownTopic, match=rf"was deleted; bus.create\('{topic}'\)") as caught:
        bus.write(topic, b"too late")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(clarion.UnknownTopic):
        bus.write_many(topic, [b"too", b"late"])
    assert topic not in broker.topics()


def test_a_topic_that_is_made_anew_is_written_to_by_those_who_wrote_to_the_one_before(
    bus: Bus, broker: EmbeddedBroker, topic: str
) -> None:
    bus.write(topic, b"before")
    with clarion.connect(broker.bootstrap) as another:
        another.delete_topic(topic)
        with pytest.raises(clarion.UnknownTopic):
            bus.write(topic, b"in between")
        another.create(topic)
    assert bus.write(topic, b"after").offset == 0


def test_a_message_that_waits_while_its_topic_is_deleted_is_told_as_that(bus: Bus, topic: str) -> None:
    """confluent-kafka says of it that its handle was destroyed, sooner or later, as busy as the machine is."""
    writer = bus._writing()
    found, on_written = writer.pending(bus._find(topic, None), NewMessage(b"waits"), is_awaited=True)
    on_written(KafkaError(KafkaError._DESTROY), None)
    with pytest.raises(clarion.UnknownTopic, match="was deleted"):
        found.result()


async def test_the_loop_goes_on_while_a_topic_that_was_made_anew_is_looked_at(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_in: list[int] = []
    looks = MessageWriter.look_at

    def look_at(writer: MessageWriter, seen: LedTopic) -> None:
        waited_in.append(threading.get_ident())
        looks(writer, seen)

    monkeypatch.setattr(MessageWriter, "look_at", look_at)
    async with clarion.connect_async(broker.bootstrap) as bus:
        await bus.write_many(topic, [{"value": b"before", "partition": number} for number in range(3)])
        await bus.delete_topic(topic)
        await bus.create(topic, partitions=1)
        written = await bus.write_many(topic, [b"after"] * 10)
    assert {(one.partition, one.offset) for one in written} == {(0, offset) for offset in range(10)}
    assert waited_in
    assert threading.get_ident() not in waited_in


@pytest.mark.parametrize("subscription", [None, "stream", "queue"])
def test_who_reads_a_topic_that_is_deleted_is_told(
    bus: Bus, broker: EmbeddedBroker, topic: str, subscription: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clarion.client.stream_source._LOOK_SECONDS", 1.0)
    name = None if subscription is None else bus.subscribe(topic, f"{topic}-{subscription}", mode=subscription).name
    bus.write(topic, b"the last one")
    with bus.read(topic, subscription=name) as reading:
        take(reading, 1)
        with clarion.connect(broker.bootstrap) as another:
            another.delete_topic(topic)
        with pytest.raises(clarion.UnknownTopic, match=f"read '{topic}'"):
            take(reading, 1)
    assert topic not in broker.topics()


async def test_so_is_who_reads_it_with_asyncio(broker: EmbeddedBroker, topic: str) -> None:
    async with clarion.connect_async(broker.bootstrap) as bus:
        name = (await bus.subscribe(topic)).name
        async with asyncio.timeout(PATIENCE_SECONDS), bus.read(topic, subscription=name) as reading:
            await bus.delete_topic(topic)
            with pytest.raises(clarion.UnknownTopic, match=f"read '{topic}' for '{name}': the topic was deleted"):
                await reading.next()


def test_what_is_said_of_messages_of_a_deleted_topic_is_not_said_for_ever(
    bus: Bus, broker: EmbeddedBroker, topic: str
) -> None:
    name = bus.subscribe(topic).name
    bus.write_many(topic, [b"one", b"two"])
    with bus.read(topic, subscription=name) as reading:
        one, two = take(reading, 2)
        bus.delete_topic(topic)
        one.ack()
        with pytest.raises(clarion.UnknownTopic):
            take(reading, 1)
        with pytest.raises(clarion.NotAcknowledged, match=f"{topic}-"):
            reading.flush()
        with pytest.raises(clarion.ClosedError):
            two.ack()


def test_a_queue_is_read_on_when_its_topic_is_made_anew(bus: Bus, broker: EmbeddedBroker, topic: str) -> None:
    name = bus.subscribe(topic).name
    with bus.read(topic, subscription=name) as reading:
        bus.write(topic, b"of the first")
        assert take(reading, 1)[0].value == b"of the first"
        bus.delete_topic(topic)
        bus.create(topic)
        bus.write(topic, b"of the second")
        assert take(reading, 1)[0].value == b"of the second"
