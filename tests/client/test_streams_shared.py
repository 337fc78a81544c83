"""Readers of one stream subscription: when their time begins, and whose position is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

import clarion
from clarion.client.bus import Bus
from clarion.testing import EmbeddedBroker, embedded

from .words import take


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(metrics_port=0, group_initial_rebalance_delay_ms=1_500) as broker:
        yield broker


def test_the_time_of_a_reading_begins_when_its_group_has_taken_it_in(bus: Bus, topic: str) -> None:
    bus.write_many(topic, ["one", "two"])
    bus.subscribe(topic, mode="stream")
    with bus.read(topic, subscription=topic, timeout=2) as reading:
        assert sorted(message.text for message in reading) == ["one", "two"]


def test_what_another_reader_has_done_since_is_not_taken_back_by_a_flush(
    bus: Bus, broker: EmbeddedBroker, topic: str
) -> None:
    bus.subscribe(topic, mode="stream")
    bus.write_many(topic, [{"value": f"{number}", "partition": number % 3} for number in range(30)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with bus.read(topic, subscription=topic) as first, clarion.connect(broker.bootstrap) as elsewhere:
        take(first, 30)[-1].ack()
        assert first.next(timeout=0) is None  # all that came before is done
        first.flush()
        joining = ThreadPoolExecutor(1).submit(elsewhere.read, topic, subscription=topic)
        while not joining.done():
            first.batch(timeout=0.1)
        second = joining.result()
        bus.write_many(topic, [{"value": "late", "partition": number} for number in range(3)])
        late = second.batch(timeout=30)
        second.batch(timeout=0.1)
        second.flush()
        before = committed(admin, topic)
        assert before[late[0].partition] == 11
        first.flush()
        assert committed(admin, topic)[late[0].partition] == 11


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result()
    return {one.partition: one.offset for one in found.topic_partitions if isinstance(one, TopicPartition)}


def test_a_wait_that_was_given_up_does_not_hold_up_the_next_one(broker: EmbeddedBroker, topic: str) -> None:
    async def try_it() -> None:
        async with clarion.connect_async(broker.bootstrap) as bus, bus.read(topic) as reading:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reading.next(), 0.2)  # which by itself would wait for ever
            async with asyncio.timeout(10):
                assert await reading.next(timeout=0.2) is None
            await bus.write(topic, "late")
            found = await reading.next(timeout=10)
            assert found is not None
            assert found.text == "late"

    asyncio.run(try_it())
