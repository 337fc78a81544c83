"""A broker joins, stays, is fenced when it was silent for too long, and comes back in another life."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from clarion.cluster.coordination import LeaseId, Put
from clarion.cluster.following import Following
from clarion.cluster.image import ClusterImage
from clarion.cluster.membership import BrokerMembership, DuplicateBrokerError, Newcomer
from clarion.cluster.schema import CONTROLLER, NO_EPOCH, NO_LEADER, BrokerRegistration, Endpoint
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore, Weather

PATIENCE_SECONDS = 20
HERE = (Endpoint("here.example", 9092),)
LONG = 3600.0
SHORT = 0.3


class Time:
    """Passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    def __init__(self) -> None:
        self.service = SimulatedService()
        self.time = Time()
        self.members: list[BrokerMembership] = []
        self._secrets = map("secret-{}".format, range(1000))
        self.noted: dict[str, int] = {}  # in each data directory, the last life of which it knows

    def store(self, weather: Weather | None = None) -> SimulatedStore:
        return SimulatedStore(self.service, random.Random(0), weather)

    async def join(
        self, number: int, *, term: float = LONG, weather: Weather | None = None, **more: object
    ) -> BrokerMembership:
        directory = str(more.get("directory", f"folder-{number}"))
        known = {"directory": directory, "last_life": self.noted.get(directory)}
        newcomer = Newcomer(number, **{**known, **more})  # type: ignore[arg-type]

        def note_life(epoch: int) -> bool:
            assert (known := self.registered(number)) is None or known.epoch < epoch, "before the store hears of it"
            self.noted[newcomer.directory] = epoch
            return True

        made = BrokerMembership(
            self.store(weather),
            newcomer,
            lambda: next(self._secrets),
            term_seconds=term,
            elapsed=self.time,
            note_life=note_life,
        )
        self.members.append(made)
        await made.join(HERE)
        return made

    def registered(self, number: int) -> BrokerRegistration | None:
        return ClusterImage.of(self.service.range("")).brokers.get(number)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    for one in made.members:
        await one.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_broker_is_registered_with_an_epoch_and_a_secret_for_as_long_as_its_lease_lasts(cluster: Cluster):
    first = await cluster.join(1, rack="r1")
    second = await cluster.join(2)
    known = cluster.registered(1)
    assert known is not None
    assert (known.epoch, known.endpoints, known.rack, known.secret) == (first.epoch, HERE, "r1", first.secret)
    assert second.epoch > first.epoch
    assert second.secret != first.secret
    await first.close()
    assert cluster.registered(1) is None
    assert not first.lease_is_valid()


async def test_the_lease_is_valid_from_when_it_was_asked_for_and_ends_before_the_stores(cluster: Cluster):
    member = await cluster.join(1, term=10.0)
    assert member.lease_is_valid()
    cluster.time.now += 8.9
    assert member.lease_is_valid()
    cluster.time.now += 0.2
    assert not member.lease_is_valid(), "the store would end it at 10 s; that is too late to find out"


async def test_a_lease_that_is_kept_alive_slowly_counts_from_when_that_was_sent(cluster: Cluster):
    member = await cluster.join(1, term=10.0)
    asked = cluster.time.now
    member._store = cluster.store(Weather(delay_seconds=(0.05, 0.05)))
    answer = asyncio.ensure_future(member._keep_alive())
    await asyncio.sleep(0.02)
    cluster.time.now += 5
    await answer
    cluster.time.now = asked + 9.1
    assert not member.lease_is_valid()


async def test_a_broker_that_lost_its_lease_joins_again_in_another_life_with_what_it_holds(cluster: Cluster):
    member = await cluster.join(1, term=SHORT)
    before, clean_since, secret = member.epoch, member.clean_since, member.secret
    lives: list[int] = []
    member.on_joined(lambda: lives.append(member.epoch))
    assert member.lease is not None
    await cluster.store().revoke_lease(member.lease)
    await until(lambda: member.epoch > before)
    known = cluster.registered(1)
    assert known is not None
    assert known.epoch == member.epoch
    assert lives == [before, member.epoch]
    assert known.clean_since == clean_since, "the process has lost nothing of what it wrote"
    assert known.secret != secret


async def test_a_broker_that_loses_its_lease_while_it_stops_does_not_join_again(cluster: Cluster):
    """What its files will say of how it ended is about the life in which they were closed."""
    member = await cluster.join(1, term=SHORT)
    epoch = member.epoch
    await member.announce_leaving()
    assert member.lease is not None
    await cluster.store().revoke_lease(member.lease)
    await until(lambda: not member.lease_is_valid())
    assert member._keeping is not None
    await member._keeping
    assert (member.epoch, cluster.registered(1)) == (epoch, None)


async def test_another_broker_with_the_same_id_is_refused_in_one_line(cluster: Cluster):
    await cluster.join(1)
    with pytest.raises(DuplicateBrokerError, match="broker 1 of this cluster is running already, on here"):
        await cluster.join(1, directory="another", term=SHORT)


async def test_one_whose_predecessor_has_just_died_waits_for_the_end_of_its_lease(cluster: Cluster):
    dead = await cluster.join(1, term=SHORT)
    assert dead._keeping is not None
    dead._keeping.cancel()
    successor = await cluster.join(1, directory="a new disk", term=SHORT)
    assert successor.epoch > dead.epoch
    dead.lease = None


async def test_a_restart_with_the_same_folder_waits_for_nothing(cluster: Cluster):
    dead = await cluster.join(1)
    assert dead._keeping is not None
    dead._keeping.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):  # the lease of the dead one goes on for an hour
        again = await cluster.join(1)
    known = cluster.registered(1)
    assert known is not None
    assert known.epoch == again.epoch
    dead.lease = None


@pytest.mark.parametrize(
    ("marked", "expected"),
    [(True, "kept"), (False, "new")],
    ids=["after a clean stop", "after a crash"],
)
async def test_since_when_every_stop_was_clean(cluster: Cluster, marked: bool, expected: str):
    first = await cluster.join(1)
    await first.close()
    mark = {"ended_cleanly": first.epoch, "clean_since": first.clean_since} if marked else {}
    second = await cluster.join(1, **mark)
    assert second.clean_since == (first.clean_since if expected == "kept" else second.epoch)


async def test_the_mark_of_an_older_copy_of_the_folder_is_not_believed(cluster: Cluster):
    first = await cluster.join(1)
    await first.close()
    second = await cluster.join(1)  # it crashes, and somebody puts back the folder of before
    await second.close()
    third = await cluster.join(1, ended_cleanly=first.epoch, clean_since=first.clean_since)
    assert third.clean_since == third.epoch


async def test_an_older_copy_of_the_folder_holds_nothing_to_rely_on_until_it_has_been_a_life_of_its_own(
    cluster: Cluster,
):
    first = await cluster.join(1)
    await first.close()
    second = await cluster.join(1)
    known = cluster.registered(1)
    assert known is not None
    assert known.held_since == NO_EPOCH, "it has seen every life"
    await second.close()
    third = await cluster.join(1, last_life=first.epoch)
    await third.announce_leaving()
    known = cluster.registered(1)
    assert known is not None
    assert known.held_since == third.epoch
    await third.close()
    fourth = await cluster.join(1)
    known = cluster.registered(1)
    assert known is not None
    assert known.held_since == third.epoch < fourth.epoch, "since the copy was put back"


async def test_a_folder_that_never_noted_a_life_is_an_older_copy_where_the_last_life_did(cluster: Cluster):
    first = await cluster.join(1)
    await first.close()
    second = await cluster.join(1, last_life=None)
    known = cluster.registered(1)
    assert known is not None
    assert known.held_since == second.epoch


async def test_a_copy_of_the_folder_of_a_broker_that_runs_is_refused(cluster: Cluster):
    before = await cluster.join(1)
    await before.close()
    await cluster.join(1)
    with pytest.raises(DuplicateBrokerError):
        await cluster.join(1, last_life=before.epoch, term=SHORT)


async def test_a_broker_that_joins_again_is_no_older_copy_of_itself(cluster: Cluster):
    member = await cluster.join(1, term=SHORT)
    before = member.epoch
    assert member.lease is not None
    await cluster.store().revoke_lease(member.lease)
    await until(lambda: member.epoch > before)
    known = cluster.registered(1)
    assert known is not None
    assert known.held_since == NO_EPOCH


async def test_a_broker_with_another_data_directory_says_since_when(cluster: Cluster):
    first = await cluster.join(1)
    await first.close()
    again = await cluster.join(1)
    known = cluster.registered(1)
    assert known is not None
    assert known.held_since == NO_EPOCH
    await again.close()
    for directory in ("new-disk", "new-disk"):
        replaced = await cluster.join(1, directory=directory)
        await replaced.announce_leaving()
        await replaced.close()
    third = await cluster.join(1, directory="new-disk")
    known = cluster.registered(1)
    assert known is not None
    assert again.epoch < known.held_since < replaced.epoch < third.epoch, "the first life with it, not the last"


async def test_leaving_is_announced_in_the_same_life(cluster: Cluster):
    member = await cluster.join(1)
    epoch = member.epoch
    await member.announce_leaving()
    known = cluster.registered(1)
    assert known is not None
    assert (known.is_leaving, known.epoch, known.secret) == (True, epoch, member.secret)


async def test_what_is_told_of_a_life_that_is_over_is_not_written_over_the_next_one(cluster: Cluster, monkeypatch):
    member = await cluster.join(1, term=SHORT)
    before, transact = member.epoch, SimulatedStore.transact
    is_held, may_go_on = asyncio.Event(), asyncio.Event()

    async def held_back(store: SimulatedStore, *what: object) -> object:
        if not is_held.is_set():
            is_held.set()
            await may_go_on.wait()
        return await transact(store, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedStore, "transact", held_back)
    draining = asyncio.create_task(member.be_drained(True))
    await is_held.wait()
    assert member.lease is not None
    await cluster.store().revoke_lease(member.lease)
    await asyncio.sleep(0.5)  # the loss is noticed after a tenth of a second
    may_go_on.set()
    await draining
    await until(lambda: (known := cluster.registered(1)) is not None and known.is_leaving and known.epoch > before)
    assert cluster.registered(1).epoch == member.epoch  # type: ignore[union-attr]


async def test_nothing_that_can_be_done_before_takes_from_the_term_of_a_new_lease(cluster: Cluster, monkeypatch):
    """A store that takes a sixth of a term for an answer is slow, and enough to join."""
    asked: list[str] = []
    for name in ("get", "transact", "grant_lease"):
        monkeypatch.setattr(SimulatedStore, name, _noting(asked, name))
    await cluster.join(1)
    assert asked[asked.index("grant_lease") + 1 :] == ["get", "get", "transact"], "who is registered, and to be it"


def _noting(asked: list[str], name: str) -> Callable[..., object]:
    original = getattr(SimulatedStore, name)

    def ask(store: SimulatedStore, *what: object) -> object:
        asked.append(name)
        return original(store, *what)

    return ask


async def test_joining_over_a_store_that_loses_answers(cluster: Cluster):
    bad = Weather(lost_requests=0.2, lost_replies=0.2, timeout_seconds=0.05)
    member = await cluster.join(1, weather=bad)
    known = cluster.registered(1)
    assert known is not None
    assert known.epoch == member.epoch


# The image


class Silent(SimulatedStore):
    """Its watches say nothing, as those of a frozen server."""

    async def watch(self, prefix, from_revision):  # type: ignore[no-untyped-def, override]
        await asyncio.Event().wait()
        yield


@asynccontextmanager
async def following(store: SimulatedStore, look: float = 0.05) -> AsyncIterator[tuple[Following, list[ClusterImage]]]:
    shown: list[ClusterImage] = []
    made = Following(store, shown.append, look_seconds=look)
    await made.start()
    yield made, shown
    await made.close()


async def test_every_change_is_shown_in_order(cluster: Cluster):
    async with following(cluster.store(), look=60) as (_, shown):
        await cluster.join(1)
        await cluster.join(2)
        await until(lambda: shown and set(shown[-1].brokers) == {1, 2})
        revisions = [one.revision for one in shown]
        assert revisions == sorted(set(revisions))
        await cluster.members[0].close()
        await until(lambda: set(shown[-1].brokers) == {2})
        assert shown[-1].controller == NO_LEADER


async def test_a_mistake_of_ours_does_not_leave_a_broker_with_an_image_that_stands_still(cluster: Cluster):
    failures: list[Exception] = []

    def show(image: ClusterImage) -> None:
        if image.brokers:
            raise KeyError("a mistake")

    made = Following(cluster.store(), show, on_failure=failures.append)
    await made.start()
    await cluster.join(1)
    await until(lambda: failures)
    assert repr(failures[0]) == "KeyError('a mistake')"
    await made.close()
    assert len(failures) == 1, "who is told to end is no failure"


async def test_who_changed_something_waits_until_it_is_seen_here(cluster: Cluster):
    async with following(cluster.store(), look=60) as (made, shown):
        member = await cluster.join(1)
        await made.refresh()
        assert shown[-1].brokers[1].epoch == member.epoch


async def test_a_silent_watch_does_not_keep_the_image_from_following(cluster: Cluster):
    async with following(Silent(cluster.service, random.Random(0))) as (_, shown):
        await cluster.join(1)
        await until(lambda: shown and 1 in shown[-1].brokers)


async def test_history_that_is_gone_is_made_up_for_by_reading_all(cluster: Cluster):
    store = cluster.store()
    async with following(store) as (_, shown):
        await cluster.join(1)
        cluster.service.restart()  # it knows no history any more, and tells nothing to those who watched before
        await store.transact((), [Put("cluster-id", b"abc")])
        await store.compact(cluster.service.revision)
        await until(lambda: shown[-1].cluster_id == "abc")


async def test_who_comes_back_before_its_last_lease_has_ended_ends_it_and_what_hangs_on_it(cluster: Cluster):
    first = await cluster.join(1, term=LONG)
    await cluster.store().transact((), [Put(CONTROLLER, b"1", first.lease)])
    first.abandon()
    async with following(cluster.store()) as (_, shown):
        again = await cluster.join(1, term=LONG)
        known = cluster.registered(1)
        assert known is not None
        assert known.epoch == again.epoch > first.epoch
        await until(lambda: CONTROLLER not in cluster.service.entries)
        await until(lambda: shown[-1].brokers[1].epoch == again.epoch)
        assert all(1 in one.brokers for one in shown)  # nobody is elected for it only because it was gone for a moment


async def test_a_broker_that_is_drained_keeps_its_lease(cluster: Cluster):
    member = await cluster.join(1, term=LONG)
    await cluster.store().transact((), [Put(CONTROLLER, b"1", member.lease)])
    await member.be_drained(True)
    assert CONTROLLER in cluster.service.entries


async def test_a_former_lease_that_the_store_is_slow_to_end_does_not_hold_up_the_keeping_of_the_new_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    first = await cluster.join(1, term=LONG)
    first.abandon()
    is_asked = asyncio.Event()

    async def never(_store: SimulatedStore, _lease: LeaseId) -> None:
        is_asked.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as slow:
        slow.setattr(SimulatedStore, "revoke_lease", never)
        async with asyncio.timeout(PATIENCE_SECONDS):
            again = await cluster.join(1, term=LONG)
            await is_asked.wait()
        assert again.lease_is_valid()
