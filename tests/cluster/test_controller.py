"""The cluster manager over a store: who decides, what it decides when brokers come and go, and that zombies do not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from clarion.cluster.controller import Controller
from clarion.cluster.coordination import CoordinationStore, Delete, LeaseId, Put
from clarion.cluster.decisions import Policy
from clarion.cluster.elections import ElectionRules
from clarion.cluster.image import ClusterImage
from clarion.cluster.schema import (
    CONTROLLER,
    NO_LEADER,
    BrokerRegistration,
    Endpoint,
    PartitionState,
    TopicEntry,
    broker_key,
    deleting_key,
    partition_key,
    topic_key,
    write_broker,
    write_partition,
    write_topic,
)
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore, Weather

PATIENCE_SECONDS = 60
ORDERS = UUID(int=1)
FOR_EVER = 3600.0
AT_ONCE = Policy(prefer_after_seconds=0.0)


class World:
    """A store, brokers that are only registrations, and controllers."""

    def __init__(self, weather: Weather | None = None) -> None:
        self.service = SimulatedService()
        self.weather = weather
        self.store = SimulatedStore(self.service, random.Random(0))
        self.leases: dict[int, LeaseId] = {}
        self.controllers: dict[int, Controller] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._epoch = 0

    async def join(self, number: int, rack: str | None = None) -> None:
        self._epoch += 1
        lease = self.leases[number] = await self.store.grant_lease(FOR_EVER)
        here = BrokerRegistration(number, self._epoch, (Endpoint("h", number),), rack)
        await self.store.transact((), [Put(broker_key(number), write_broker(here), lease)])

    async def leave(self, number: int) -> None:
        await self.store.revoke_lease(self.leases.pop(number))

    def control(self, number: int, policy: Policy | None = None, store: CoordinationStore | None = None) -> Controller:
        own = store or SimulatedStore(self.service, random.Random(number), self.weather)
        rules: Callable[[object], ElectionRules] = lambda _: ElectionRules()  # noqa: E731
        made = Controller(own, number, self.leases[number], rules, policy or AT_ONCE, look_seconds=0.05)
        self.controllers[number] = made
        self.tasks[number] = asyncio.ensure_future(made.run())
        return made

    async def create(self, *partitions: PartitionState, factor: int | None = None) -> None:
        puts = [Put(partition_key(ORDERS, at), write_partition(state)) for at, state in enumerate(partitions)]
        entry = TopicEntry(ORDERS, len(partitions), {}, factor)
        await self.store.transact((), [*puts, Put(topic_key("orders"), write_topic(entry))])

    @property
    def partitions(self) -> tuple[PartitionState, ...]:
        return ClusterImage.of(self.service.range("")).topics["orders"].partitions

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(*brokers: int, weather: Weather | None = None) -> AsyncIterator[World]:
    here = World(weather)
    for number in brokers:
        await here.join(number)
    yield here
    for task in here.tasks.values():
        task.cancel()
    await asyncio.gather(*here.tasks.values(), return_exceptions=True)


def on_three(leader: int = 1, **changes: object) -> PartitionState:
    others = tuple(one for one in (1, 2, 3) if one != leader)
    replicas = (leader, *others)
    return PartitionState(leader, 0, replicas, replicas, lives=replicas, min_in_sync=2)._replace(**changes)


async def test_one_controls_and_another_takes_over_when_its_lease_ends():
    async with world(1, 2) as here:
        first = here.control(1)
        await here.until(lambda: first.is_active)
        second = here.control(2)
        await asyncio.sleep(0.05)
        assert not second.is_active
        await here.leave(1)
        await here.until(lambda: second.is_active and not first.is_active)
        assert second.sentences[0] == "broker 2 is the controller"


async def test_leaders_of_a_broker_that_is_gone_are_elected_anew_and_come_back_with_it():
    async with world(1, 2, 3) as here:
        await here.create(on_three(1), on_three(2), on_three(3))
        controller = here.control(2)
        await here.until(lambda: controller.is_active)
        await here.leave(1)
        await here.until(lambda: here.partitions[0].leader == 2)
        assert all(1 not in state.in_sync for state in here.partitions)
        assert here.partitions[1].leader_epoch == 0, "nobody touched the others' leadership"
        await here.until(lambda: has_said(controller, "broker 1 is gone"))
        await here.join(1)
        for at in range(3):
            await in_sync_again(here, 1, at)
        await here.until(lambda: here.partitions[0].leader == 1)
        assert here.partitions[0].leader_epoch == 2


def has_said(controller: Controller, words: str) -> bool:
    """Which it does when the store has answered: who watches the store may know before."""
    return any(words in sentence for sentence in controller.sentences)


async def in_sync_again(here: World, broker: int, at: int = 0) -> None:
    """As the leader says when this broker has caught up."""
    state = here.partitions[at]
    grown = state._replace(in_sync=(*state.in_sync, broker), partition_epoch=state.partition_epoch + 1)
    lives = tuple(here._epoch if one == broker else state.life_of(one) for one in state.replicas)
    await here.store.transact((), [Put(partition_key(ORDERS, at), write_partition(grown._replace(lives=lives)))])


@pytest.mark.parametrize("wait", [FOR_EVER, None])
async def test_a_preferred_leader_that_is_back_waits_before_it_leads_again(wait: float | None):
    async with world(1, 2, 3) as here:
        await here.create(on_three(1), on_three(2))
        here.control(2, Policy(prefer_after_seconds=wait))
        await here.leave(1)
        await here.until(lambda: here.partitions[0].leader == 2)
        await here.join(1)
        await in_sync_again(here, 1)
        await here.leave(3)  # what is decided about it comes after all that has happened so far was looked at
        await here.until(lambda: all(3 not in state.in_sync for state in here.partitions))
        assert here.partitions[0].leader == 2


async def test_a_preferred_leader_leads_again_when_it_has_waited():
    async with world(1, 2, 3) as here:
        await here.create(on_three(1))
        controller = here.control(2, Policy(prefer_after_seconds=0.3))
        await here.leave(1)
        await here.until(lambda: here.partitions[0].leader == 2)
        await here.join(1)
        await in_sync_again(here, 1)
        await here.until(lambda: here.partitions[0].leader == 1)
        await here.until(lambda: has_said(controller, "it is the preferred leader"))


class Counting(Controller):
    """Counts how often it looks at how things are."""

    looks = 0

    async def _decide(self) -> None:
        self.looks += 1
        await super()._decide()


async def test_a_broker_that_stays_away_and_cannot_be_replaced_keeps_nobody_busy():
    async with world(1, 2, 3) as here:
        await here.create(on_three(1))
        store = SimulatedStore(here.service, random.Random(1))
        policy = Policy(replace_after_seconds=0.05)
        controller = Counting(store, 1, here.leases[1], lambda _: ElectionRules(), policy)
        here.tasks[1] = asyncio.ensure_future(controller.run())
        await here.leave(3)
        await here.until(lambda: here.partitions[0].in_sync == (1, 2))
        await asyncio.sleep(0.5)  # nothing happens, and that is looked at once or twice
        assert controller.looks < 20


async def test_partitions_of_a_topic_that_was_never_made_to_the_end_are_removed():
    """Those of topics that are there, or that are being deleted, are not."""
    async with world(1, 2, 3) as here:
        await here.create(on_three(1))
        abandoned, deleted = UUID(int=7), UUID(int=8)
        state = write_partition(on_three(1))
        for at in range(0, 300, 100):
            puts = [Put(partition_key(abandoned, at + i), state) for i in range(100)]
            await here.store.transact((), puts)
        await here.store.transact((), [Put(partition_key(deleted, 0), state), Put(deleting_key(deleted), b"gone")])
        own = SimulatedStore(here.service, random.Random(1))
        rules: Callable[[object], ElectionRules] = lambda _: ElectionRules()  # noqa: E731
        controller = Controller(own, 1, here.leases[1], rules, AT_ONCE, unclaimed_seconds=0.05)
        here.tasks[1] = asyncio.ensure_future(controller.run())
        await here.until(lambda: not any(abandoned.hex in key for key in here.service.entries))
        assert partition_key(deleted, 0) in here.service.entries
        assert len(here.partitions) == 1


async def test_a_controller_that_was_replaced_without_noticing_changes_nothing():
    """Frozen with a decision in its hands: the store refuses it, whatever its lease thinks."""
    async with world(1, 2, 3) as here:
        await here.create(on_three(3))
        zombie = here.control(1)
        await here.until(lambda: zombie.is_active)
        stale = here.service.entries[CONTROLLER]
        here.tasks[1].cancel()
        await here.leave(1)
        successor = here.control(2)
        await here.until(lambda: successor.is_active and here.partitions[0].in_sync == (3, 2))
        zombie._key = stale
        zombie._image = ClusterImage.of(here.service.range(""))
        before = here.service.revision
        await here.leave(3)
        await here.until(lambda: here.partitions[0].leader == 2)
        settled = here.partitions[0]
        await zombie._decide()
        assert here.partitions[0] == settled
        assert here.service.revision > before


async def test_a_controller_that_was_frozen_elects_nobody_whom_it_knows_from_an_earlier_life():
    """It still is the one. In another life a broker may have lost what it had, and who has everything would be out."""
    async with world(1, 2, 3) as here:
        await here.create(on_three(3))
        frozen = here.control(1)
        await here.until(lambda: frozen.is_active)
        here.tasks[1].cancel()
        await here.leave(3)
        frozen._key, frozen._image = here.service.entries[CONTROLLER], ClusterImage.of(here.service.range(""))
        before = here.partitions
        for number in (2, 1):
            await here.store.transact((), [Delete(broker_key(number))])
            await here.join(number)
        await frozen._decide()
        assert here.partitions == before
        frozen._image = ClusterImage.of(here.service.range(""))
        await frozen._decide()
        assert (here.partitions[0].leader, here.partitions[0].in_sync) == (1, (1, 2))


async def test_what_a_transaction_relies_on_fits_into_it_too():
    """A hundred brokers hold the partitions of which one is gone: so many compares more."""
    async with world(*range(1, 100)) as here:
        held_by = [(at % 97 + 2, at % 97 + 3, 1) for at in range(120)]
        states = [on_three(one[0], replicas=one, in_sync=one, lives=one) for one in held_by]
        puts = [Put(partition_key(ORDERS, at), write_partition(one)) for at, one in enumerate(states)]
        await here.store.transact((), puts)
        await here.store.transact((), [Put(topic_key("orders"), write_topic(TopicEntry(ORDERS, 120, {}, None)))])
        controller = here.control(2)
        await here.until(lambda: controller.is_active)
        await here.leave(1)
        await here.until(lambda: all(1 not in one.in_sync for one in here.partitions))


async def test_topics_get_the_replicas_they_lack_when_brokers_join():
    async with world(1) as here:
        alone = PartitionState(1, 0, (1,), (1,), lives=(1,))
        await here.create(alone, alone)
        here.control(1)
        await here.join(2)
        await here.join(3)
        await here.until(lambda: all(sorted(state.replicas) == [1, 2, 3] for state in here.partitions))
        assert all(state.in_sync == (1,) and sorted(state.adding) == [2, 3] for state in here.partitions)


async def test_a_replication_factor_that_was_asked_for_stays():
    async with world(1, 2, 3) as here:
        await here.create(PartitionState(1, 0, (1,), (1,), lives=(1,)), factor=1)
        controller = here.control(1)
        await here.until(lambda: controller.is_active)
        await asyncio.sleep(0.2)
        assert here.partitions[0].replicas == (1,)


async def test_a_broker_that_stays_away_is_replaced_and_one_that_comes_back_in_time_is_not():
    async with world(1, 2, 3, 4) as here:
        await here.create(on_three(1))
        here.control(1, Policy(replace_after_seconds=1.0))
        await here.leave(3)
        await here.until(lambda: here.partitions[0].in_sync == (1, 2))
        assert here.partitions[0].replicas == (1, 2, 3)
        await here.until(lambda: 4 in here.partitions[0].adding)
        assert here.partitions[0].removing == (3,)
        await here.until(lambda: has_said(here.controllers[1], "stays away"))


async def test_a_partition_without_anybody_who_may_lead_waits_and_says_for_whom():
    async with world(1, 2) as here:
        await here.create(PartitionState(2, 0, (2, 1), (2,), lives=(2, 1)))
        controller = here.control(1)
        await here.leave(2)
        await here.until(lambda: here.partitions[0].leader == NO_LEADER)
        await here.until(lambda: has_said(controller, "waiting for broker 2, which"))
        await here.join(2)
        await here.until(lambda: here.partitions[0].leader == 2)
        assert here.partitions[0].leader_epoch == 1


async def test_a_thousand_partitions_change_their_leaders_in_a_few_transactions():
    async with world(1, 2, 3) as here:
        states = [on_three(at % 3 + 1) for at in range(1000)]
        for at in range(0, 1000, 100):
            puts = [Put(partition_key(ORDERS, at + i), write_partition(states[at + i])) for i in range(100)]
            await here.store.transact((), puts)
        await here.store.transact((), [Put(topic_key("orders"), write_topic(TopicEntry(ORDERS, 1000, {}, None)))])
        controller = here.control(2)
        await here.until(lambda: controller.is_active)
        before = here.service.revision
        await here.leave(1)
        await here.until(lambda: all(1 not in state.in_sync for state in here.partitions))
        assert here.service.revision - before <= 10
        assert {state.leader for state in here.partitions} == {2, 3}


class Recording(SimulatedStore):
    """From `is_noting` on it notes the keys of every transaction, and performs them when it is told to."""

    def __init__(self, service: SimulatedService) -> None:
        super().__init__(service, random.Random(1))
        self.is_noting = False
        self.noted: list[set[str]] = []
        self.performs = asyncio.Event()

    async def transact(self, compares, operations):  # type: ignore[no-untyped-def]
        if self.is_noting:
            self.noted.append({one.key for one in operations})
            await self.performs.wait()
        return await super().transact(compares, operations)


async def test_leaders_are_written_first_and_no_transaction_waits_for_another():
    """While the leaders of a broker that is gone are replaced, clients wait; for its places in in-sync sets nobody."""
    async with world(1, 2, 3) as here:
        for at in range(0, 900, 100):
            puts = [Put(partition_key(ORDERS, at + i), write_partition(on_three(i % 3 + 1))) for i in range(100)]
            await here.store.transact((), puts)
        await here.store.transact((), [Put(topic_key("orders"), write_topic(TopicEntry(ORDERS, 900, {}, None)))])
        store = Recording(here.service)
        controller = here.control(2, store=store)
        await here.until(lambda: controller.is_active)
        led = {partition_key(ORDERS, at) for at, state in enumerate(here.partitions) if state.leader == 1}
        store.is_noting = True
        await here.leave(1)
        await here.until(lambda: len(store.noted) >= 8)
        store.performs.set()
        assert led <= set().union(*store.noted[:3])
        await here.until(lambda: all(1 not in state.in_sync for state in here.partitions))


@pytest.mark.parametrize("seed", range(4))
async def test_lost_and_late_answers_of_the_store_leave_one_controller_and_right_leaders(seed):
    weather = Weather((0.0, 0.005), lost_requests=0.1, lost_replies=0.1, late_requests=0.5, timeout_seconds=0.02)
    chance = random.Random(seed)
    async with world(1, 2, 3, weather=weather) as here:
        await here.create(on_three(1), on_three(2), on_three(3))
        for number in (1, 2, 3):
            here.control(number)
        victim = chance.choice((1, 2, 3))
        await asyncio.sleep(chance.uniform(0, 0.3))
        here.tasks[victim].cancel()
        await here.leave(victim)
        await here.until(
            lambda: all(
                state.leader not in (victim, NO_LEADER) and victim not in state.in_sync for state in here.partitions
            )
        )
        await here.until(
            lambda: sum(one.is_active for number, one in here.controllers.items() if number != victim) == 1
        )


async def test_how_long_elections_took_counts_from_the_news_that_called_for_them():
    """A store that takes twenty milliseconds to answer."""
    async with world(1, 2, 3, weather=Weather((0.01, 0.01))) as here:
        await here.create(on_three(3))
        controller = here.control(1)
        await here.until(lambda: controller.is_active)
        await here.leave(3)
        await here.until(lambda: controller.elections_total == 1)
        assert controller.election_seconds_total >= 0.01


class Refusing(SimulatedStore):
    """Refuses so many transactions, as a server that is being restarted does."""

    refusals = 0

    async def transact(self, compares, operations):  # type: ignore[no-untyped-def]
        if self.refusals > 0:
            self.refusals -= 1
            raise ConnectionRefusedError("nobody listens")
        return await super().transact(compares, operations)


async def test_a_controller_whose_store_was_away_for_a_moment_goes_on_deciding():
    """Its lease has not ended, so nobody else may be the controller: it has to."""
    async with world(1, 2, 3) as here:
        await here.create(on_three(3))
        store = Refusing(here.service, random.Random(1))
        controller = here.control(1, store=store)
        await here.until(lambda: controller.is_active)
        store.refusals = 2
        await here.leave(3)
        await here.until(lambda: here.partitions[0].leader == 1)
        assert store.refusals == 0


async def test_a_broker_that_closed_its_connection_and_refuses_the_next_loses_its_lease_at_once():
    """One that was never reached does not: whoever refuses there may not be its machine."""
    async with world(1) as here:
        connected: list[asyncio.StreamWriter] = []
        listening = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
        nobody = await asyncio.start_server(lambda _, writer: None, "127.0.0.1", 0)
        ports = {2: listening.sockets[0].getsockname()[1], 3: nobody.sockets[0].getsockname()[1]}
        nobody.close()
        for number, port in ports.items():
            here.leases[number] = await here.store.grant_lease(FOR_EVER)
            registered = BrokerRegistration(number, number, (Endpoint("127.0.0.1", port),), None)
            await here.store.transact((), [Put(broker_key(number), write_broker(registered), here.leases[number])])
        own = SimulatedStore(here.service, random.Random(1))
        controller = Controller(own, 1, here.leases[1], lambda _: ElectionRules(), Policy(), probes_brokers=True)
        here.tasks[1] = asyncio.ensure_future(controller.run())
        await here.until(lambda: len(connected) == 1)
        connected[0].close()  # a proxy may have lost patience
        await here.until(lambda: len(connected) == 2)
        assert broker_key(2) in here.service.entries
        listening.close()
        connected[1].transport.abort()
        await here.until(lambda: broker_key(2) not in here.service.entries)
        assert broker_key(3) in here.service.entries
        await here.until(lambda: has_said(controller, "refuses connections in its place"))


async def test_a_controller_that_died_is_noticed_by_those_who_would_be_the_next():
    async with world(1) as here:
        connected: list[asyncio.StreamWriter] = []
        listening = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
        place = Endpoint("127.0.0.1", listening.sockets[0].getsockname()[1])
        here.leases[2] = await here.store.grant_lease(FOR_EVER)
        registered = Put(broker_key(2), write_broker(BrokerRegistration(2, 2, (place,), None)), here.leases[2])
        await here.store.transact((), [registered, Put(CONTROLLER, b"2", here.leases[2])])
        own = SimulatedStore(here.service, random.Random(1))
        next_one = Controller(own, 1, here.leases[1], lambda _: ElectionRules(), Policy(), probes_brokers=True)
        here.tasks[1] = asyncio.ensure_future(next_one.run())
        await here.until(lambda: len(connected) == 1)
        assert not next_one.is_active
        listening.close()
        connected[0].transport.abort()
        await here.until(lambda: next_one.is_active)
        assert broker_key(2) not in here.service.entries
