"""Subscriptions are made over HTTP, whose address the broker's settings tell, and read as they were made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.testing import EmbeddedBroker, embedded

from .words import take, wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(metrics_port=0) as broker:
        yield broker


def test_the_example_of_the_first_page(broker: EmbeddedBroker) -> None:
    with clarion.connect(broker.bootstrap) as bus:
        bus.create("orders", partitions=3)
        bus.write("orders", b"...", key=b"42")
        billing = bus.subscribe("orders", name="billing", retention="14d", ack_timeout="30s", dead_letter_after=5)
        for message in bus.read("orders", subscription="billing"):
            assert (message.key, message.value, message.deliveries) == (b"42", b"...", 1)
            message.ack()
            break
    assert (billing.name, billing.topics, billing.mode) == ("billing", ("orders",), "queue")
    assert (billing.retention_ms, billing.ack_timeout_ms, billing.max_deliveries) == (14 * 86_400_000, 30_000, 5)
    with clarion.connect(broker.bootstrap) as another:
        assert another.subscription("billing") == billing
        assert another.subscriptions() == ["billing"]
        reading = another.read("orders", subscription="billing")  # a queue, as the broker says
        assert reading.batch(timeout=0.3) == []  # what was said was durable when the bus was closed
        reading.close()
        another.unsubscribe("billing")
        with pytest.raises(clarion.UnknownSubscription):
            another.unsubscribe("billing")
        with pytest.raises(clarion.UnknownSubscription, match="makes one"):
            another.read("orders", subscription="billing")


def test_the_same_subscription_once_more_is_no_mistake_and_another_one_of_its_name_is(bus: Bus, topic: str) -> None:
    first = bus.subscribe(topic, name=f"{topic}-twice")
    assert bus.subscribe(topic, name=f"{topic}-twice").name == first.name
    with pytest.raises(clarion.SubscriptionExists):
        bus.subscribe(topic, name=f"{topic}-twice", mode="stream")
    wrongly = f"{topic}-twise"
    for ask in (lambda: bus.read(topic, subscription=wrongly), lambda: bus.unsubscribe(wrongly)):
        with pytest.raises(clarion.UnknownSubscription, match=f"did you mean '{topic}-twice'"):
            ask()
    with pytest.raises(clarion.UnknownSubscription, match=f"did you mean '{topic}-twice'"):
        bus.subscription(wrongly)


def test_rules_that_cannot_be_are_refused_in_words(bus: Bus, topic: str) -> None:
    with pytest.raises(clarion.InvalidRequest, match="ack_timeout"):
        bus.subscribe(topic, ack_timeout="1ms")
    with pytest.raises(clarion.InvalidRequest, match="mode"):
        bus.subscribe(topic, mode="both")
    with pytest.raises(clarion.UnknownTopic):
        bus.subscribe(f"{topic}-not-there")


def test_a_message_that_nobody_can_work_on_goes_to_the_dead_letters_with_the_reason(bus: Bus, topic: str) -> None:
    name = bus.subscribe(topic, dead_letter_after=2, ack_timeout="1m").name
    bus.write_many(topic, [{"value": word, "partition": 0} for word in ("rejected", "released twice")])
    with bus.read(topic, subscription=name) as reading:
        rejected, released = take(reading, 2)
        rejected.reject("no such customer")
        released.release()
        (again,) = take(reading, 1)
        assert (again.text, again.deliveries) == ("released twice", 2)
        again.release(delay=0)
        reading.flush()

        def dead_letters_are_there() -> bool:
            try:
                return len(take(bus.read(f"{name}.dead-letters"), 2)) == 2
            except clarion.UnknownTopic:
                return False

        wait_for(dead_letters_are_there)
    found = {one.text: dict(one.headers) for one in take(bus.read(f"{name}.dead-letters"), 2)}
    assert {*found} == {"rejected", "released twice"}
    assert found["rejected"]["clarion-dead-letter-reason"] == b"no such customer"
    assert found["released twice"]["clarion-dead-letter-deliveries"] == b"2"


def test_a_queue_with_a_filter_delivers_what_matches(bus: Bus, topic: str) -> None:
    name = bus.subscribe(topic, filter="value.total > 100").name
    bus.write_many(topic, ['{"total": 50}', '{"total": 150}', '{"total": 99}', '{"total": 101}'])
    with bus.read(topic, subscription=name) as reading:
        assert sorted(one.text for one in take(reading, 2)) == ['{"total": 101}', '{"total": 150}']
        assert reading.batch(timeout=0.3) == []


def test_a_stream_subscription_is_read_as_a_stream(bus: Bus, topic: str) -> None:
    bus.subscribe(topic, name=f"{topic}-stream", mode="stream")
    bus.write(topic, "one")
    with bus.read(topic, subscription=f"{topic}-stream") as reading:
        (one,) = take(reading, 1)
        with pytest.raises(clarion.NotAQueue):
            one.release()
        one.ack()
    with pytest.raises(clarion.InvalidRequest, match="clarion subscription seek"):
        bus.read(topic, subscription=f"{topic}-stream", start="1h")


def test_a_pushed_subscription_and_another_topic_are_not_read(bus: Bus, topic: str, broker: EmbeddedBroker) -> None:
    bus.subscribe(topic, name=f"{topic}-push", push={"url": "http://127.0.0.1:1/hook", "allow_private": True})
    other = bus.create(f"{topic}-other").name
    bus.subscribe(topic)
    with clarion.connect(broker.bootstrap) as another:
        with pytest.raises(clarion.InvalidRequest, match="is pushed to"):
            another.read(topic, subscription=f"{topic}-push")
        with pytest.raises(clarion.InvalidRequest, match=f"does not read '{other}'"):
            another.read(other, subscription=topic)


async def test_subscriptions_with_asyncio(broker: EmbeddedBroker, topic: str) -> None:
    async with clarion.connect_async(broker.bootstrap) as bus:
        made = await bus.subscribe(topic, name=f"{topic}-async", backoff=("1s", "1m"))
        assert (made.backoff_min_ms, made.backoff_max_ms) == (1_000, 60_000)
        assert await bus.subscription(made.name) == made
        assert made.name in await bus.subscriptions()
        await bus.unsubscribe(made.name)


def test_a_broker_without_http_says_what_is_missing() -> None:
    with embedded(topics=["orders"]) as broker, clarion.connect(broker.bootstrap) as bus:
        with pytest.raises(clarion.Unsupported, match="start one with an HTTP port"):
            bus.subscribe("orders")
        with pytest.raises(clarion.UnknownSubscription):
            bus.read("orders", subscription="billing")


@pytest.mark.parametrize("mode", ["queue", "stream"])
def test_a_subscription_ends_though_the_loop_over_it_has_only_just_ended(bus: Bus, topic: str, mode: str) -> None:
    """The reading that nobody holds any more is closed in the background; the one that is held, by `unsubscribe`."""
    bus.write(topic, "one")
    for name in (f"{topic}-left", f"{topic}-held"):
        bus.subscribe(topic, name=name, mode=mode)
        reading = bus.read(topic, subscription=name)
        (message,) = take(reading, 1)
        message.ack()
        held = [reading] if name.endswith("held") else []
        del reading
        bus.unsubscribe(name)
        assert name not in bus.subscriptions()
        assert [one.batch(timeout=60) for one in held] in ([], [[]]), "its reading has ended"


@pytest.mark.parametrize("mode", ["queue", "stream"])
async def test_a_subscription_ends_after_its_async_loop(broker: EmbeddedBroker, topic: str, mode: str) -> None:
    async with clarion.connect_async(broker.bootstrap) as bus:
        await bus.write(topic, "one")
        for name in (f"{topic}-left", f"{topic}-held"):
            await bus.subscribe(topic, name=name, mode=mode)
            reading = bus.read(topic, subscription=name)
            message = await reading.next(timeout=60)
            assert message is not None
            message.ack()
            if name.endswith("left"):
                del reading
            await bus.unsubscribe(name)
            assert name not in await bus.subscriptions()


def test_a_subscription_that_others_read_stays_and_what_to_do_is_said_once(broker: EmbeddedBroker, topic: str) -> None:
    with clarion.connect(broker.bootstrap) as bus, clarion.connect(broker.bootstrap) as another:
        bus.subscribe(topic)
        with another.read(topic, subscription=topic), pytest.raises(clarion.ClarionError) as refused:
            bus.unsubscribe(topic)
        assert str(refused.value).count("stop its consumers first") == 1
        bus.unsubscribe(topic)
