"""What an application gets wrong is told at once, in words, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.testing import EmbeddedBroker, embedded

from .words import take, wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(metrics_port=0) as broker:
        yield broker


def client_threads() -> int:
    return sum(thread.name.startswith("clarion-client") for thread in threading.enumerate())


def test_a_connection_that_does_not_come_about_leaves_no_thread() -> None:
    before = client_threads()
    with pytest.raises(clarion.NotConnected):
        clarion.connect("127.0.0.1:1")
    with pytest.raises(clarion.InvalidRequest, match="cannot use /no/such/file"):
        clarion.connect("127.0.0.1:1", settings={"security.protocol": "ssl", "ssl.ca.location": "/no/such/file"})
    assert client_threads() == before


def test_the_verbs_take_their_arguments_by_name_too(bus: Bus, topic: str) -> None:
    assert bus.write(topic_id=topic, message=b"by name").topic == topic
    assert bus.write(topic_id=topic, partition_id=2, message=b"by name").partition == 2
    assert bus.write(topic, 1, message=b"half by name").partition == 1
    assert bus.write(topic, message=None, key="gone").topic == topic


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        ((b"v",), {"partition": "1"}, "a partition is an int, not str"),
        ((True, b"v"), {}, "a partition is an int, not bool"),
        ((b"v",), {"timestamp": "2026-01-31"}, "timestamp is str; write a datetime"),
        ((b"v",), {"timestamp": 1.5}, "timestamp is float; write a datetime"),
        ((b"v",), {"timestamp": 0}, "means now to librdkafka; write 1"),
        ((b"v",), {"timestamp": datetime(1970, 1, 1, tzinfo=UTC)}, "means now to librdkafka; write 1"),
        ((b"v",), {"kee": b"k"}, "write knows no kee; it takes key, headers"),
        ((b"v",), {"message": b"w", "partition_id": 1}, "given twice"),
        ((), {}, r"write\(topic, message\) or write\(topic, partition, message\)"),
    ],
)
def test_what_cannot_be_written_is_told_in_words(
    bus: Bus, topic: str, arguments: tuple[Any, ...], more: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        bus.write(topic, *arguments, **more)


@pytest.mark.parametrize("messages", ["text", b"bytes", {"value": b"v"}, [("key", "value", "more")]])
def test_one_message_is_not_taken_for_many(bus: Bus, topic: str, messages: Any) -> None:
    with pytest.raises(TypeError, match=r"messages is one|a pair is a key and a value"):
        bus.write_many(topic, messages)
    assert bus.write(topic, 0, b"the first").offset == 0


@pytest.mark.parametrize("partitioner", [None, 1.5, True, {"0": 1}])
def test_a_partitioner_that_cannot_be_is_told_before_anything_is_written(
    broker: EmbeddedBroker, partitioner: Any
) -> None:
    with pytest.raises(TypeError, match=r"partitioner is|weights are numbers"):
        clarion.connect(broker.bootstrap, partitioner=partitioner)


def test_a_partitioner_that_answers_no_partition_is_told(broker: EmbeddedBroker, topic: str) -> None:
    answer: Any = "first"
    with (
        clarion.connect(broker.bootstrap, partitioner=lambda *_: answer) as bus,
        pytest.raises(TypeError, match="the partitioner answered 'first'"),
    ):
        bus.write(topic, b"v")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"timeout": []}, "timeout is list; write seconds"),
        ({"timeout": float("nan")}, "nan is no time"),
        ({"timeout": "999999999999d"}, "is no time"),
        ({"mode": "quue"}, "mode 'quue': it is queue or stream"),
        ({"mode": "queue"}, "say which, with subscription="),
        ({"prefetch": "many"}, "prefetch is an int, not str"),
        ({"partition": "0"}, "partition is an int, not str"),
    ],
)
def test_a_reading_that_cannot_be_does_not_begin(bus: Bus, topic: str, arguments: dict[str, Any], words: str) -> None:
    wait_for(lambda: not bus._open)  # what came before
    with pytest.raises((TypeError, ValueError), match=words):
        bus.read(topic, **arguments)
    assert not bus._open


def test_a_queue_is_not_read_from_a_place_of_ones_own(bus: Bus, topic: str) -> None:
    bus.subscribe(topic)
    for place in ({"partition": 0}, {"start": "latest"}, {"partition": 0, "offset": 0}):
        with pytest.raises(clarion.InvalidRequest, match="hands out what comes next"):
            bus.read(topic, subscription=topic, **place)  # type: ignore[arg-type]


def test_a_subscription_is_checked_whoever_has_made_it(bus: Bus, broker: EmbeddedBroker, topic: str) -> None:
    other = bus.create(f"{topic}-other").name
    bus.subscribe(topic)
    with clarion.connect(broker.bootstrap) as another:
        for each in (bus, another):
            with pytest.raises(clarion.InvalidRequest, match=f"does not read '{other}', but {topic}"):
                each.read(other, subscription=topic)
    with pytest.raises(clarion.InvalidRequest, match=r'filters nothing; write mode "queue"'):
        bus.subscribe(topic, name=f"{topic}-filtered", mode="stream", filter='key == "1"')


def test_a_subscription_of_its_topics_name_ends_by_the_topics_id(bus: Bus) -> None:
    made = bus.create("ended-by-its-id")
    assert bus.subscribe(made.id).name == "ended-by-its-id"
    bus.read(made.id, subscription="ended-by-its-id")
    bus.unsubscribe(made.id)
    assert "ended-by-its-id" not in bus.subscriptions()
    with pytest.raises(clarion.UnknownSubscription):
        bus.unsubscribe(made.id)
    like_an_id = bus.subscribe("ended-by-its-id", name="like-an-id-in-its-form").name
    assert len(like_an_id) == 22
    bus.unsubscribe(like_an_id)
    with pytest.raises(TypeError, match="name is a str"):
        bus.unsubscribe(None)  # type: ignore[arg-type]


def test_rules_may_be_said_as_timedeltas(bus: Bus, topic: str) -> None:
    made = bus.subscribe(topic, start=timedelta(hours=1), backoff=timedelta(hours=1))
    assert (made.start, made.backoff_min_ms, made.backoff_max_ms) == ("by_duration:PT3600S", 3_600_000, 3_600_000)


@pytest.mark.parametrize(
    "say",
    [
        lambda message: message.reject(None),
        lambda message: message.reject(ValueError("why")),
        lambda message: message.release("31d"),
        lambda message: message.extend("13h"),
    ],
)
def test_what_cannot_be_said_of_a_message_leaves_its_reading_alive(
    bus: Bus, topic: str, say: Callable[[Any], None]
) -> None:
    bus.write(topic, b"v")
    bus.subscribe(topic)
    with bus.read(topic, subscription=topic) as reading:
        (message,) = take(reading, 1)
        with pytest.raises((TypeError, ValueError), match=r"a reason is a str|is too long"):
            say(message)
        message.ack()
        reading.flush()


def test_a_long_reason_is_cut_and_the_message_is_rejected_all_the_same(bus: Bus, topic: str) -> None:
    bus.write(topic, b"v")
    bus.subscribe(topic)
    with bus.read(topic, subscription=topic) as reading:
        take(reading, 1)[0].reject("é\ud800" * 1000)
        reading.flush()
    dead = f"{topic}.dead-letters"
    wait_for(lambda: dead in {*bus._run(bus._core.links.describe(None))})
    (letter,) = take(bus.read(dead), 1)
    reason = dict(letter.headers)["clarion-dead-letter-reason"]
    assert reason is not None
    assert reason.decode() == "é?" * 127 + "é…"


def test_an_unreadable_reading_of_the_twin_is_told_the_same_way(broker: EmbeddedBroker, topic: str) -> None:
    async def try_it() -> None:
        async with clarion.connect_async(broker.bootstrap) as bus:
            with pytest.raises(clarion.InvalidRequest, match="mode 'quue'"):
                bus.read(topic, mode="quue")
            await bus.subscribe(topic)
            with pytest.raises(clarion.InvalidRequest, match="hands out what comes next"):
                await bus.read(topic, subscription=topic, partition=0).next()
            await bus.unsubscribe(topic)

    asyncio.run(try_it())
