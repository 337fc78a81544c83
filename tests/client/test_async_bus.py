"""The asyncio twin: the same verbs, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator

import pytest

import clarion
from clarion.client.async_bus import AsyncBus
from clarion.client.async_reading import AsyncReading
from clarion.client.bus import Bus
from clarion.client.reading import MessageReading
from clarion.client.received import ReceivedMessage
from clarion.testing import EmbeddedBroker

from .words import PATIENCE_SECONDS, queue_settings


@pytest.fixture
async def async_bus(broker: EmbeddedBroker) -> AsyncIterator[AsyncBus]:
    async with clarion.connect_async(broker.bootstrap) as bus:
        yield bus


@pytest.fixture
async def async_topic(async_bus: AsyncBus) -> str:
    return (await async_bus.create(f"a-{uuid.uuid4().hex[:8]}", partitions=3)).name


async def taken(reading: AsyncReading, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await reading.batch(count - len(found), timeout=1)
    return found


@pytest.mark.parametrize(("blocking", "twin"), [(Bus, AsyncBus), (MessageReading, AsyncReading)])
def test_the_twins_have_the_same_verbs_with_the_same_arguments(blocking: type, twin: type) -> None:
    names = [name for name, _ in inspect.getmembers(blocking, inspect.isfunction) if not name.startswith("_")]
    assert {*names} <= {name for name, _ in inspect.getmembers(twin, inspect.isfunction)}
    for name in names:
        one, other = (inspect.signature(getattr(each, name)).parameters for each in (blocking, twin))
        assert [*one] == [*other], name
        assert [each.default for each in one.values()] == [each.default for each in other.values()], name


async def test_messages_are_written_and_read(async_bus: AsyncBus, async_topic: str) -> None:
    written = await async_bus.write(async_topic, 1, b"one")
    assert (written.partition, written.offset) == (1, 0)
    await async_bus.write_many(async_topic, ["two", ("k", "three")])
    future = await async_bus.write_soon(async_topic, "four")
    await async_bus.flush()
    assert (await future).topic == async_topic
    async with async_bus.read(async_topic) as reading:
        assert sorted(one.text for one in await taken(reading, 4)) == ["four", "one", "three", "two"]


async def test_a_loop_over_a_queue_acknowledges(async_bus: AsyncBus, async_topic: str, broker: EmbeddedBroker) -> None:
    queue_settings(broker.bootstrap, async_topic)
    await async_bus.write_many(async_topic, [f"{number}" for number in range(50)])
    seen = []
    async with async_bus.read(async_topic, subscription=async_topic, mode="queue") as reading:
        async for message in reading:
            seen.append(int(message.text))
            message.ack()
            if len(seen) == 50:
                break
        await reading.flush()
        assert await reading.batch(timeout=0.2) == []
    assert sorted(seen) == list(range(50))


async def test_errors_are_those_of_the_blocking_client(async_bus: AsyncBus, async_topic: str) -> None:
    with pytest.raises(clarion.TopicExists):
        await async_bus.create(async_topic)
    with pytest.raises(clarion.UnknownTopic, match="did you mean"):
        await async_bus.write(async_topic[:-1], b"x")
    with pytest.raises(clarion.UnknownTopic):
        await async_bus.read("zzz").next()
    with pytest.raises(clarion.NotConnected):
        await clarion.connect_async("127.0.0.1:1")
    await async_bus.delete_topic(async_topic)


async def test_who_is_cancelled_while_reading_a_stream_loses_nothing(async_bus: AsyncBus, async_topic: str) -> None:
    async with async_bus.read(async_topic) as reading:
        waiting = asyncio.ensure_future(reading.next())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await async_bus.write(async_topic, "late")
        assert [one.text for one in await taken(reading, 1)] == ["late"]


async def test_a_reading_that_was_never_begun_is_closed_without_a_word(async_bus: AsyncBus, async_topic: str) -> None:
    reading = async_bus.read(async_topic)
    await reading.close()
    assert await reading.batch() == []
