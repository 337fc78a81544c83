"""The registry of topics, over both stores: what it has answered is there after any end of the process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from clarion.cluster import CoordinationStore, ProducerIds, TopicRegistry
from clarion.cluster.coordination import OutcomeUnknownError, Put
from clarion.cluster.counters import next_broker_epoch
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore, Weather
from clarion.model.errors import ErrorCode, KafkaError
from tests.cluster.stores import OpenStore, simulated, sqlite_in
from tests.sim.loop import SimLoop


@pytest.fixture(params=["sqlite", "simulated"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return sqlite_in(tmp_path) if request.param == "sqlite" else simulated()


@asynccontextmanager
async def opened(open_store: OpenStore) -> AsyncIterator[TopicRegistry]:
    store = await open_store()
    try:
        yield await registry_on(store)
    finally:
        await store.close()


async def registry_on(store: CoordinationStore) -> TopicRegistry:
    return await TopicRegistry.load(store, uuid4, partitions_max=100)


async def test_topics_survive_a_restart_with_their_ids_and_settings(open_store):
    async with opened(open_store) as registry:
        orders = await registry.create("orders", 3, {"retention.ms": "1000"})
        gone = await registry.create("gone", 1, {})
        await registry.delete("gone")
        await registry.grow(registry.draft_grown("orders", 5))
        await registry.configure("orders", {"retention.ms": "2000"})
    async with opened(open_store) as again:
        assert list(again.image.topics) == ["orders"]
        found = again.image.topic_by_id(orders.id)
        assert found is not None
        assert (found.partition_count, dict(found.overrides)) == (5, {"retention.ms": "2000"})
        assert again.image.cluster_id == registry.image.cluster_id
        assert again.image.partition_total == 5
        assert again.being_deleted == {gone.id}
        await again.forget_deleted([gone.id, uuid4()])
    async with opened(open_store) as again:
        assert again.being_deleted == frozenset()


async def test_a_topic_made_again_under_its_old_name_has_a_new_id(open_store):
    async with opened(open_store) as registry:
        first = await registry.create("orders", 1, {})
        await registry.delete("orders")
        second = await registry.create("orders", 1, {})
        assert isinstance(second.id, UUID)
        assert second.id != first.id


@pytest.mark.parametrize(
    ("name", "count", "code"),
    [
        ("orders", 1, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a_b", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("../etc", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("new", 0, ErrorCode.INVALID_PARTITIONS),
        ("new", 99, ErrorCode.INVALID_PARTITIONS),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_with_its_own_code(name: str, count: int, code: ErrorCode):
    async with opened(simulated()) as registry:
        await registry.create("orders", 1, {})
        await registry.create("a.b", 1, {})
        with pytest.raises(KafkaError) as refused:
            await registry.create(name, count, {})
        assert refused.value.code is code


async def test_settings_that_would_fill_the_store_are_refused():
    async with opened(simulated()) as registry:
        await registry.create("orders", 1, {})
        large = {"x" * 1000 + str(number): "y" for number in range(100)}
        for attempt in (registry.create("new", 1, large), registry.configure("orders", large)):
            with pytest.raises(KafkaError) as refused:
                await attempt
            assert refused.value.code is ErrorCode.INVALID_CONFIG
        assert list(registry.image.topics) == ["orders"]
        assert registry.image.topics["orders"].overrides == {}


async def test_hundreds_of_deleted_topics_are_forgotten_at_once(open_store):
    async with opened(open_store) as registry:
        for number in range(300):
            await registry.create(f"t{number}", 1, {})
            await registry.delete(f"t{number}")
        gone = registry.being_deleted
        assert len(gone) == 300
        await registry.forget_deleted(gone)
        assert registry.being_deleted == frozenset()


async def test_producer_ids_never_repeat_over_restarts(open_store):
    given_out = []
    for count in (1, 1, 1, 1_500):
        store = await open_store()
        ids = ProducerIds(store, "one")
        given_out += [await ids.next() for _ in range(count)]
        await store.close()
    assert len(set(given_out)) == len(given_out)


async def test_two_who_take_producer_ids_at_once_get_different_ones(open_store):
    store = await open_store()
    sources = [ProducerIds(store, "one"), ProducerIds(store, "two")]
    given_out = await asyncio.gather(*(sources[number % 2].next() for number in range(2_500)))
    assert len(set(given_out)) == len(given_out)
    await store.close()


async def test_every_start_has_an_epoch_above_all_before_it(open_store):
    store = await open_store()
    assert [await next_broker_epoch(store, latest, "one") for latest in (-1, -1, 0, 17, 3)] == [0, 1, 2, 18, 19]
    await store.close()


async def test_a_topic_that_somebody_else_has_changed_is_not_overwritten():
    open_store = simulated()
    store = await open_store()
    ours, theirs = await registry_on(store), None
    await ours.create("orders", 1, {})
    theirs = await registry_on(store)
    await theirs.configure("orders", {"retention.ms": "1"})
    await theirs.create("new", 1, {})
    for attempt in (lambda: ours.configure("orders", {"retention.ms": "2"}), lambda: ours.create("new", 1, {})):
        with pytest.raises(KafkaError):
            await attempt()
        assert ours.image.topics == theirs.image.topics, "it has read anew"


@pytest.mark.parametrize("seed", range(20))
def test_lost_and_late_messages_to_the_store_leave_nobody_in_doubt(seed: int):
    """Whatever the way to the store does, what is answered has happened once, and memory agrees with the store."""
    loop = SimLoop(seed)
    try:
        loop.run_until_complete(_change_topics_in_bad_weather(random.Random(seed)))
    finally:
        loop.close()


async def _change_topics_in_bad_weather(chance: random.Random) -> None:
    weather = Weather((0.0, 0.1), lost_requests=0.1, lost_replies=0.1, late_requests=0.5, timeout_seconds=0.2)
    service = SimulatedService()
    store, calm = SimulatedStore(service, chance, weather), SimulatedStore(service, chance)
    registry, ids = (
        await TopicRegistry.load(_Patient(store), uuid4, partitions_max=1000),
        ProducerIds(_Patient(store), "one"),
    )
    given_out = []
    for number in range(40):
        name = f"t{number % 7}"
        if registry.image.topic(name) is None:
            await registry.create(name, 1, {})
        elif number % 3:
            await registry.configure(name, {"retention.ms": str(number)})
        else:
            await registry.delete(name)
        given_out.append(await ids.next())
        seen = await registry_on(calm)
        assert registry.image.topics == seen.image.topics, number
    assert len(set(given_out)) == len(given_out)
    await store.close()


class _Patient:
    """Reads are asked again until they are answered; changes are left to who makes them."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self.transact = store.transact

    async def get(self, key: str):
        return await _until_answered(lambda: self._store.get(key))

    async def range(self, prefix: str):
        return await _until_answered(lambda: self._store.range(prefix))


async def _until_answered(ask):
    while True:
        try:
            return await ask()
        except OutcomeUnknownError:
            continue


async def test_a_caller_who_is_cancelled_leaves_memory_as_the_store_is(open_store):
    store = await open_store()
    registry = await registry_on(store)
    making = asyncio.ensure_future(registry.create("orders", 1, {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    known = {entry.key.removeprefix("topics/") for entry in (await store.range("topics/")).entries}
    assert registry.image.topics.keys() == known
    await store.transact((), [Put("unrelated", b"")])
    await store.close()


def test_the_same_seed_has_the_same_weather():
    """A simulation that cannot be lived again finds nothing that can be mended."""

    def live(seed: int) -> list[object]:
        loop, seen = SimLoop(seed), []

        async def ask() -> None:
            weather = Weather((0.0, 0.1), lost_requests=0.2, lost_replies=0.2, late_requests=0.5, timeout_seconds=0.2)
            store = SimulatedStore(SimulatedService(), random.Random(seed), weather)
            for number in range(50):
                try:
                    seen.append((await store.transact((), [Put("a", b"%d" % number)])).revision)
                except OutcomeUnknownError:
                    seen.append("lost")
            seen.append((loop.time(), store._service.entries["a"]))
            await store.close()

        try:
            loop.run_until_complete(ask())
        finally:
            loop.close()
        return seen

    first = live(5)
    assert first == live(5)
    assert first != live(6)
    assert "lost" in first
