"""The image of the cluster: what the store says, at one revision, in one piece."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from clarion.cluster import BrokerRegistration, ClusterImage, Endpoint, PartitionState, TopicRegistry
from clarion.cluster.coordination import (
    OPERATIONS_MAX,
    Change,
    CoordinationStore,
    Delete,
    Entry,
    KeyEvent,
    Operation,
    Put,
    Revision,
    in_transactions,
)
from clarion.cluster.counters import BROKER_EPOCH
from clarion.cluster.image import EMPTY
from clarion.cluster.schema import (
    TopicEntry,
    broker_key,
    deleting_key,
    partition_key,
    removed_key,
    topic_key,
    write_broker,
    write_partition,
    write_topic,
)
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore
from clarion.model.errors import ErrorCode, KafkaError

LARGE = 3 * OPERATIONS_MAX  # partitions: more than fit into one transaction


def store_on(service: SimulatedService, **how: Callable[[], None]) -> SimulatedStore:
    return SimulatedStore(service, random.Random(0), **how)


async def load(store: CoordinationStore) -> TopicRegistry:
    return await TopicRegistry.load(store, uuid4, partitions_max=10_000, node_id=1)


async def image_of(service: SimulatedService) -> ClusterImage:
    return ClusterImage.of(service.range(""))


# What it holds


async def test_it_is_the_same_whether_it_is_read_at_once_or_followed_change_by_change():
    service = SimulatedService()
    store = store_on(service)
    followed = ClusterImage.of(service.range(""))
    watched = store.watch("", 1)
    registry, chance = await load(store), random.Random(3)
    for number in range(200):
        name = f"t.{chance.randrange(9)}"
        known = registry.image.topic(name)
        if known is None:
            await registry.create(name, chance.choice([1, 2, LARGE]), {})
        elif number % 4 == 0:
            await registry.delete(name)
        elif number % 4 == 1 and known.partition_count < LARGE:
            await registry.grow(registry.draft_grown(name, known.partition_count + 3))
        elif number % 4 == 2:
            await registry.configure(name, {"retention.ms": str(number)})
        elif registry.being_deleted:
            await registry.forget_deleted(registry.being_deleted)
        read_anew = await image_of(service)
        while followed.revision < service.revision:
            followed = followed.after(await anext(watched))
        for image in (followed, registry.image):
            assert image.topics == read_anew.topics
            assert image.topics_by_id == read_anew.topics_by_id
            assert (image.unclaimed, image.deleting, image.collisions, image.partition_total) == (
                read_anew.unclaimed,
                read_anew.deleting,
                read_anew.collisions,
                read_anew.partition_total,
            )


async def test_what_somebody_holds_does_not_change_and_topics_that_stay_as_they_are_are_shared():
    registry = await load(store_on(SimulatedService()))
    await registry.create("stays", 2, {})
    before = registry.image
    await registry.create("comes", 1, {})
    await registry.configure("comes", {"retention.ms": "1"})
    assert list(before.topics) == ["stays"]
    assert registry.image.topics["stays"] is before.topics["stays"]
    assert registry.image.brokers is before.brokers
    assert registry.image.revision > before.revision


async def test_brokers_come_with_their_endpoints_and_go():
    there = BrokerRegistration(2, 7, (Endpoint("a", 1), Endpoint("b", 2)), "rack-1")
    image = after(ClusterImage.of(SimulatedService().range("")), Put(broker_key(2), write_broker(there)))
    assert image.brokers == {2: there._replace(revision=image.revision)}
    assert [there.endpoint(listener) for listener in (0, 1, 2)] == [("a", 1), ("b", 2), ("b", 2)]
    assert after(image, Delete(broker_key(2))).brokers == {}


async def test_a_change_of_one_partition_leaves_the_others_as_they_are():
    registry = await load(store_on(SimulatedService()))
    topic = await registry.create("t", 3, {})
    moved = PartitionState(2, 9, (2, 1), (2,), 5)
    image = after(registry.image, Put(partition_key(topic.id, 1), write_partition(moved)))
    first, second, third = image.topics["t"].partitions
    assert (second.leader, second.leader_epoch, second.replicas, second.in_sync) == (2, 9, (2, 1), (2,))
    assert (first, third) == (topic.partitions[0], topic.partitions[2])
    assert image.topics_by_id[topic.id] is image.topics["t"]
    assert list(image.topics["t"].led_by(1)) == [0, 2]


@pytest.mark.parametrize("factor", [None, 1, 3])
async def test_whether_a_replication_factor_was_asked_for_is_recorded(factor: int | None):
    service = SimulatedService()
    registry = await load(store_on(service))
    await registry.add(registry.draft("t", 1, {}, factor))
    await registry.configure("t", {"retention.ms": "1"})
    assert (await image_of(service)).topics["t"].replication_factor == factor


async def test_topics_of_older_versions_count_as_with_the_default_factor_and_without_a_leader_yet():
    service = SimulatedService()
    entry = TopicEntry(uuid4(), 2, {}, None)
    service.transact((), [Put(topic_key("t"), write_topic(entry))])
    topic = (await image_of(service)).topics["t"]
    assert (topic.partition_count, topic.replication_factor) == (2, None)
    assert list(topic.led_by(1)) == [0, 1]


def after(image: ClusterImage, operation: Operation) -> ClusterImage:
    revision = Revision(image.revision + 1)
    entry = Entry(operation.key, operation.value, revision, revision) if isinstance(operation, Put) else None
    return image.after(Change(revision, (KeyEvent(operation.key, entry),)))


def test_what_does_not_change_stays_the_same_object_and_what_does_leaves_the_image_before_alone():
    """Whoever follows images tells by the object whether there is something to do."""
    gone, broker = uuid4(), BrokerRegistration(1, 5, (Endpoint("h", 1),), None)
    first = after(after(EMPTY, Put(broker_key(1), write_broker(broker))), Put(deleting_key(gone), b"t"))
    second = after(first, Put(removed_key(gone, 1), b""))
    assert (second.brokers is first.brokers, second.deleting is first.deleting) == (True, True)
    assert (first.removed, second.removed) == ({}, {gone: frozenset({1})})
    third = after(after(second, Delete(deleting_key(gone))), Delete(removed_key(gone, 1)))
    assert (dict(third.deleting), dict(third.removed)) == ({}, {})
    assert list(second.deleting) == [gone]
    assert list(after(third, Delete(broker_key(1))).brokers) == []
    assert list(third.brokers) == [1]


def test_a_thousand_deleted_topics_more_cost_the_next_image_what_the_first_thousand_did():
    """They wait for a broker that is away, and every controller begins with reading all of it."""

    def seconds_for(count: int) -> float:
        topics = [uuid4() for _ in range(count)]
        keys = [key for one in topics for key in (deleting_key(one), removed_key(one, 1))]
        change = Change(Revision(1), tuple(KeyEvent(key, Entry(key, b"", Revision(1), Revision(1))) for key in keys))
        tries = []
        for _ in range(3):
            before = time.process_time()
            EMPTY.after(change)
            tries.append(time.process_time() - before)
        return min(tries)

    seconds_for(100)
    assert seconds_for(8_000) < 24 * seconds_for(1_000), "in proportion it is 8, with a copy for each of them 64"


# More than one transaction


def test_operations_are_cut_into_transactions_that_a_store_takes():
    few = [Put(f"k{number}", b"v") for number in range(300)]
    assert [len(part) for part in in_transactions(few)] == [128, 128, 44]
    large = [Put(f"k{number}", bytes(400_000)) for number in range(5)]
    assert [len(part) for part in in_transactions(large)] == [2, 2, 1]
    assert [one for part in in_transactions(large) for one in part] == large


class PowerLoss(Exception):
    pass


async def crash_in(service: SimulatedService, at: int, change: Callable[[TopicRegistry], object]) -> bool:
    """Whether the change was cut short by a crash before its transaction number `at` (from 0)."""
    left = at

    def before_change() -> None:
        nonlocal left
        if left == 0:
            raise PowerLoss
        left -= 1

    registry = await load(store_on(service))
    registry._store = store_on(service, before_change=before_change)  # only now: reading makes no change
    try:
        await change(registry)
    except PowerLoss:
        return True
    return False


async def restart(service: SimulatedService) -> TopicRegistry:
    """As the broker does it."""
    registry = await load(store_on(service))
    await registry.forget_deleted(registry.being_deleted)
    await registry.forget_unclaimed()
    await registry.begin_term(lambda _topic, _index: -1, None)
    return registry


def partition_keys(service: SimulatedService) -> int:
    return len(service.range("partitions/").entries)


async def test_a_topic_that_takes_many_transactions_is_there_with_the_last_of_them_or_not_at_all():
    for at in range(10):
        service = SimulatedService()
        await (await load(store_on(service))).create("other", 2, {})
        was_cut = await crash_in(service, at, lambda registry: registry.create("t", LARGE, {}))
        seen = (await image_of(service)).topic("t")
        assert (seen is None) == was_cut
        registry = await restart(service)
        assert registry.image.partition_total == (2 if was_cut else 2 + LARGE) == partition_keys(service)
        assert registry.image.unclaimed == {}
        if not was_cut:
            assert at == -(-(LARGE + 1) // OPERATIONS_MAX), "every transaction was cut short once"
            return
        again = await registry.create("t", LARGE, {})
        assert all(one.leader == 1 for one in again.partitions)
    raise AssertionError("it was never whole")


async def test_a_topic_that_grows_by_many_transactions_has_all_its_new_partitions_or_none():
    for at in range(10):
        service = SimulatedService()
        await (await load(store_on(service))).create("t", 2, {})
        was_cut = await crash_in(service, at, lambda registry: registry.grow(registry.draft_grown("t", 2 + LARGE)))
        assert (await image_of(service)).topics["t"].partition_count == (2 if was_cut else 2 + LARGE)
        registry = await restart(service)
        assert registry.image.partition_total == (2 if was_cut else 2 + LARGE) == partition_keys(service)
        if not was_cut:
            return
        assert (await registry.grow(registry.draft_grown("t", LARGE))).partition_count == LARGE
    raise AssertionError("it was never whole")


async def test_a_deletion_that_takes_many_transactions_is_finished_by_the_next_start():
    async def delete(registry: TopicRegistry) -> None:
        topic = await registry.delete("t")
        await registry.forget_deleted([topic.id])

    for at in range(10):
        service = SimulatedService()
        await (await load(store_on(service))).create("t", LARGE, {})
        was_cut = await crash_in(service, at, delete)
        seen = (await image_of(service)).topic("t")
        assert (seen is None) == (at > 0), "gone with the first transaction"
        registry = await restart(service)
        assert partition_keys(service) == registry.image.partition_total == (0 if at else LARGE)
        assert registry.image.deleting == {}
        if not was_cut:
            return
    raise AssertionError("it was never whole")


async def test_growth_that_was_refused_in_the_middle_can_be_tried_again():
    service = SimulatedService()
    await (await load(store_on(service))).create("t", 2, {})
    registry = await load(store_on(service))
    calm, registry._store = registry._store, _FullAfter(registry._store, 1)
    with pytest.raises(OSError, match="full"):
        await registry.grow(registry.draft_grown("t", LARGE))
    registry._store = calm
    assert registry.image.unclaimed
    grown = await registry.grow(registry.draft_grown("t", LARGE))
    assert grown.partition_count == LARGE == partition_keys(service)
    assert registry.image.unclaimed == {}


class _FullAfter:
    """A store whose disk is full after so many transactions."""

    def __init__(self, store: CoordinationStore, transactions: int) -> None:
        self._store = store
        self._left = transactions
        self.get, self.range = store.get, store.range

    async def transact(self, compares, operations):
        self._left -= 1
        if self._left < 0:
            raise OSError("full")
        return await self._store.transact(compares, operations)


# Terms


async def epochs_after(service: SimulatedService, in_log: int = -1, marked: int | None = None) -> list[int]:
    registry = await load(store_on(service))
    await registry.begin_term(lambda _topic, _index: in_log, marked)
    assert registry.image.topics == (await image_of(service)).topics
    return [one.leader_epoch for one in registry.image.topics["t"].partitions]


async def test_a_start_raises_every_epoch_above_what_store_and_log_say():
    service = SimulatedService()
    await (await load(store_on(service))).create("t", 200, {})
    assert await epochs_after(service) == [1] * 200
    assert await epochs_after(service, in_log=17) == [18] * 200
    assert await epochs_after(service, in_log=3) == [19] * 200
    assert int(service.entries[BROKER_EPOCH].value) >= 19, "no topic made later begins below"


async def test_a_start_keeps_what_else_is_said_of_a_partition():
    service = SimulatedService()
    topic = await (await load(store_on(service))).create("t", 1, {})
    moving = topic.partitions[0]._replace(lives=(4,), eligible=(2,), adding=(3,), removing=(2,), min_in_sync=2)
    await store_on(service).transact((), [Put(partition_key(topic.id, 0), write_partition(moving))])
    await epochs_after(service)
    (found,) = (await image_of(service)).topics["t"].partitions
    assert found._replace(leader_epoch=0, partition_epoch=0, revision=0) == moving._replace(leader_epoch=0, revision=0)


async def test_after_a_clean_stop_the_logs_need_not_be_asked_unless_the_store_is_older():
    service = SimulatedService()
    await (await load(store_on(service))).create("t", 1, {})
    older = service.copy()
    for _ in range(3):
        await epochs_after(service)
    marked = int(service.entries[BROKER_EPOCH].value)
    assert await epochs_after(service, in_log=1_000, marked=marked) == [4]
    assert await epochs_after(older, in_log=1_000, marked=marked) == [marked + 1]


async def test_partitions_of_older_versions_go_on_above_the_epoch_that_all_had():
    service = SimulatedService()
    service.transact((), [Put(topic_key("t"), write_topic(TopicEntry(uuid4(), 3, {}, None))), Put(BROKER_EPOCH, b"6")])
    assert await epochs_after(service) == [7, 7, 7]
    assert partition_keys(service) == 3


async def test_a_partition_that_another_broker_leads_keeps_its_epoch():
    service = SimulatedService()
    topic = await (await load(store_on(service))).create("t", 2, {})
    service.transact((), [Put(partition_key(topic.id, 1), write_partition(PartitionState(2, 5, (2,), (2,))))])
    assert await epochs_after(service) == [1, 5]


async def test_a_partition_that_somebody_else_has_changed_is_not_overwritten():
    service = SimulatedService()
    registry = await load(store_on(service))
    topic = await registry.create("t", 1, {})
    service.transact((), [Put(partition_key(topic.id, 0), write_partition(PartitionState(2, 5, (2,), (2,))))])
    with pytest.raises(KafkaError) as refused:
        await registry.begin_term(lambda _topic, _index: -1, None)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert registry.image.topics["t"].partitions[0].leader == 2, "it has read anew"
