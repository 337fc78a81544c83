"""Topics of several brokers: where their replicas are placed, and what two who change the same at once get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import pytest

from clarion.cluster import Topic, TopicRegistry
from clarion.cluster.coordination import Compare, Delete, Operation, OutcomeUnknownError, Put, TransactionResult
from clarion.cluster.following import Following
from clarion.cluster.image import ClusterImage
from clarion.cluster.registry import ConflictError
from clarion.cluster.schema import (
    PARTITIONS,
    TOPIC_CHANGES,
    BrokerRegistration,
    Endpoint,
    broker_key,
    partition_key,
    write_broker,
    write_partition,
)
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore
from clarion.model.errors import ErrorCode, KafkaError


class Late(SimulatedStore):
    """Its next transaction gets no answer, and arrives when `arrive` is called."""

    lost: tuple[Sequence[Compare], Sequence[Operation]] | None = None
    loses_next = False

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        if self.loses_next:
            self.loses_next = False
            self.lost = (compares, operations)
            raise OutcomeUnknownError("no answer")
        return await super().transact(compares, operations)

    async def arrive(self) -> TransactionResult:
        assert self.lost is not None
        return await super().transact(*self.lost)


class Silent(Late):
    """Its next transaction is done and not answered; the one after it comes when `meanwhile` has happened."""

    meanwhile: Callable[[], Awaitable[object]] | None = None
    is_asked_again = False

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        if self.meanwhile is None:
            return await super().transact(compares, operations)
        if not self.is_asked_again:
            self.is_asked_again = True
            await super().transact(compares, operations)
            raise OutcomeUnknownError("no answer")
        happens, self.meanwhile = self.meanwhile, None
        await happens()
        return await super().transact(compares, operations)


class Tidy(Late):
    """Removes, once, the partitions of a topic that is being made, as the controller does when that takes too long."""

    is_done = False

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        outcome = await super().transact(compares, operations)
        if not self.is_done and len(operations) > 100:
            self.is_done = True
            gone = [Delete(one.key) for one in operations if one.key.startswith(PARTITIONS)]
            await super().transact((), [Put(TOPIC_CHANGES, b"tidy"), *gone[:100]])
        return outcome


class Meanwhile(Late):
    """Between the first transaction of a large change and its last one something happens, once."""

    happens: Callable[[], Awaitable[object]] | None = None

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        outcome = await super().transact(compares, operations)
        if self.happens is not None and len(operations) > 100:
            happens, self.happens = self.happens, None
            await happens()
        return outcome


@asynccontextmanager
async def registries(
    count: int, brokers: int = 3, kind: type[Late] = Late, **how: int
) -> AsyncIterator[list[TopicRegistry]]:
    service = SimulatedService()
    async with AsyncExitStack() as stack:
        made = []
        store = SimulatedStore(service, random.Random(0))
        puts = [
            Put(broker_key(one), write_broker(BrokerRegistration(one, 10 + one, (Endpoint("h", one),), f"rack-{one}")))
            for one in range(1, brokers + 1)
        ]
        await store.transact((), puts)
        for _ in range(count):
            own = kind(service, random.Random(0))
            registry = await TopicRegistry.load(own, uuid4, partitions_max=2000, **how)

            def show(image: ClusterImage, registry: TopicRegistry = registry) -> None:
                registry.image = image

            following = Following(own, show)
            registry.follow(following)
            await following.start()
            stack.push_async_callback(following.close)
            made.append(registry)
        yield made


async def test_a_topic_that_does_not_say_gets_the_default_number_of_replicas():
    async with registries(1, replication_factor=2) as (registry,):
        topic = await registry.create("orders", 3, {})
        assert [len(one.replicas) for one in topic.partitions] == [2, 2, 2]
        assert registry.replication_factor_of(None) == 2
        assert registry.replication_factor_of(3) == 3


async def test_replicas_are_placed_on_different_brokers_and_everybody_sees_the_same():
    async with registries(2) as (first, second):
        topic = await first.create("orders", 3, {})
        assert [sorted(one.replicas) for one in topic.partitions] == [[1, 2, 3]] * 3
        assert sorted(one.leader for one in topic.partitions) == [1, 2, 3]
        assert all(one.in_sync == one.replicas and one.leader == one.replicas[0] for one in topic.partitions)
        assert all(one.life_of(2) == 12 for one in topic.partitions)
        await second._catch_up()
        assert second.image.topics["orders"] == topic
        assert len((await second.create("two", 1, {})).partitions[0].replicas) == 3


async def test_fewer_brokers_than_replicas_and_a_factor_that_somebody_asks_for():
    async with registries(1, brokers=2) as (registry,):
        assert len((await registry.create("t", 1, {})).partitions[0].replicas) == 2
        asked = await registry.add(registry.draft("u", 1, {}, 1))
        assert len(asked.partitions[0].replicas) == 1
        assigned = await registry.add(registry.draft("v", 2, {}, 2, [(2, 1), (1, 2)]))
        assert [one.replicas for one in assigned.partitions] == [(2, 1), (1, 2)]


async def test_while_no_broker_has_a_lease_making_a_topic_is_refused_for_the_moment():
    """The store was away for longer than their leases, and nobody has joined again yet."""
    async with registries(1) as (registry,):
        await registry.create("t", 1, {})
        await registry._store.transact((), [Delete(broker_key(3))])
        await registry._catch_up()
        with pytest.raises(KafkaError, match="not there") as refused:
            registry.draft("u", 1, {}, 2, [(2, 3)])
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        await registry._store.transact((), [Delete(broker_key(1)), Delete(broker_key(2))])
        await registry._catch_up()
        for draft in (lambda: registry.draft("u", 1, {}), lambda: registry.draft_grown("t", 2)):
            with pytest.raises(KafkaError, match="not there"):
                draft()


async def test_a_topic_whose_partitions_were_removed_while_it_was_made_has_all_of_them():
    async with registries(1, kind=Tidy) as (registry,):
        topic = await registry.create("large", 300, {})
        assert all(len(one.replicas) == 3 for one in topic.partitions)
        assert not registry.image.unclaimed


async def test_a_new_topic_of_an_old_name_begins_with_a_later_epoch():
    async with registries(1) as (registry,):
        before = (await registry.create("t", 1, {})).partitions[0].leader_epoch
        await registry.delete("t")
        assert (await registry.create("t", 1, {})).partitions[0].leader_epoch > before


async def test_many_who_make_topics_at_once_all_succeed_and_one_name_is_given_once():
    async with registries(3) as brokers:
        made = await asyncio.gather(*(one.create(f"t{number}", 1, {}) for number, one in enumerate(brokers * 3)))
        assert len({topic.id for topic in made}) == 9
        same = await asyncio.gather(*(one.create("same", 1, {}) for one in brokers), return_exceptions=True)
        refused = [one for one in same if isinstance(one, KafkaError)]
        assert [one.code for one in refused] == [ErrorCode.TOPIC_ALREADY_EXISTS] * 2


async def test_a_topic_that_takes_several_transactions_is_not_made_in_the_place_of_anothers():
    async with registries(2, kind=Meanwhile) as (first, second):
        made: list[Topic] = []

        async def make() -> None:
            made.append(await second.create("same", 1, {}))
            await first._catch_up()

        assert isinstance(first._store, Meanwhile)
        first._store.happens = make
        with pytest.raises(KafkaError) as refused:
            await first.create("same", 200, {})
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await second._catch_up()
        assert second.image.topics["same"].id == made[0].id


@pytest.mark.parametrize("what", ["configured", "grown", "made again"])
async def test_a_topic_that_grows_in_several_transactions_stays_what_others_have_made_of_it(what: str):
    async with registries(2, kind=Meanwhile) as (first, second):
        await first.create("t", 1, {})

        async def change() -> None:
            await second._catch_up()
            if what == "configured":
                await second.configure("t", {"retention.ms": "-1"})
            elif what == "grown":
                await second.grow(second.draft_grown("t", 400))
            else:
                await second.delete("t")
                await second.create("t", 1, {})
            await first._catch_up()

        assert isinstance(first._store, Meanwhile)
        first._store.happens = change
        with pytest.raises(ConflictError):
            await first.grow(first.draft_grown("t", 300))
        topic = second.image.topics["t"]
        await second._catch_up()
        assert second.image.topics["t"] == topic
        assert topic.partition_count == (400 if what == "grown" else 1)


@pytest.mark.parametrize("partitions", [1, 200])
async def test_a_request_that_comes_late_does_not_bring_a_deleted_topic_back(partitions: int):
    async with registries(1) as (registry,):
        store = registry._store
        assert isinstance(store, Late)
        draft = registry.draft("t", partitions, {})
        if partitions > 1:  # its last transaction is the one that makes it
            await registry._change(
                Put(partition_key(draft.id, at), write_partition(one)) for at, one in enumerate(draft.partitions)
            )
        store.loses_next = True
        topic = await registry.add(draft)
        assert registry.image.topic("t") == topic
        await registry.delete("t")
        await registry.forget_deleted([topic.id])
        assert not (await store.arrive()).succeeded
        await registry._catch_up()
        assert registry.image.topic("t") is None


async def test_a_topic_whose_making_was_not_answered_is_not_made_again_when_others_have_deleted_it():
    """Nor may it come back with the id that it had. Whoever made it hears that nobody can tell."""
    async with registries(2, kind=Silent) as (first, second):

        async def come_and_go() -> None:
            for _ in range(2):  # the second time it is another topic, so that nothing is as it was asked for
                await second._catch_up()
                await second.delete("t")
                await second.forget_deleted(list(second.image.deleting))
                await second.create("t", 1, {})
            await second.delete("t")
            await first._catch_up()

        store = first._store
        assert isinstance(store, Silent)
        store.meanwhile = come_and_go
        with pytest.raises(OutcomeUnknownError):
            await first.create("t", 1, {})
        await first._catch_up()
        assert first.image.topic("t") is None


async def test_another_minimum_in_sync_forgets_who_was_eligible_under_the_last_one():
    async with registries(1) as (registry,):
        topic = await registry.create("t", 2, {"min.insync.replicas": "2"})
        one_left = topic.partitions[0]._replace(in_sync=(topic.partitions[0].leader,), eligible=(2,))
        await registry._change([Put(partition_key(topic.id, 0), write_partition(one_left))])
        revision = registry.image.revision
        changed = await registry.configure("t", {"min.insync.replicas": "1"}, forgets_eligible=True)
        assert changed.partitions[0].eligible == ()
        assert changed.partitions[0].partition_epoch > one_left.partition_epoch
        assert changed.partitions[0].revision == changed.revision == revision + 1, "in one transaction"
