"""A broker's say in who is in sync: what it relies on must still be so when it is written."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

from clarion.cluster.coordination import Put
from clarion.cluster.elections import ElectionRules
from clarion.cluster.image import ClusterImage
from clarion.cluster.in_sync import InSyncSets
from clarion.cluster.schema import (
    BrokerRegistration,
    Endpoint,
    PartitionState,
    TopicEntry,
    broker_key,
    partition_key,
    topic_key,
    write_broker,
    write_partition,
    write_topic,
)
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore

ORDERS = UUID(int=1)


def registered(number: int, epoch: int) -> Put:
    return Put(broker_key(number), write_broker(BrokerRegistration(number, epoch, (Endpoint("h", number),))))


async def test_a_damaged_replica_leaves_only_for_one_that_is_known_in_its_present_life() -> None:
    """The other one has restarted, and this broker has not heard of it yet: it may have lost what it had."""
    service = SimulatedService()
    store = SimulatedStore(service, random.Random(0))
    state = PartitionState(1, 0, (1, 2), (1, 2), lives=(1, 2), min_in_sync=1)
    entry = TopicEntry(ORDERS, 1, {}, None)
    puts = [Put(partition_key(ORDERS, 0), write_partition(state)), Put(topic_key("orders"), write_topic(entry))]
    await store.transact((), [registered(1, 1), registered(2, 2), *puts])
    images = [ClusterImage.of(service.range(""))]
    asked = asyncio.Event()

    def image() -> ClusterImage:
        asked.set()
        return images[-1]

    def partition() -> PartitionState:
        return ClusterImage.of(service.range("")).topics["orders"].partitions[0]

    await store.transact((), [registered(2, 7)])
    sets = InSyncSets(store, 1, image, lambda _: ElectionRules())
    leaving = asyncio.ensure_future(sets.leave(images[0].topics["orders"], 0, "it is damaged"))
    for _ in range(2):  # the second time it has found that it was too late
        asked.clear()
        await asked.wait()
    assert partition().in_sync == (1, 2)
    images.append(ClusterImage.of(service.range("")))
    assert await leaving == 1
    assert partition().in_sync == (2,)
