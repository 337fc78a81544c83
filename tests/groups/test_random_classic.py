"""Classic groups under random members: nobody is forgotten, nobody is answered twice, generations only grow."""

from __future__ import annotations

from random import Random

import pytest

from clarion.groups import classic_join, classic_members, classic_rebalance
from clarion.groups.classic_group import ClassicMember
from clarion.groups.config import GroupConfig
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode
from tests.groups.driver import LOST, ClassicClient, Driver, subscription

BEAT_MS = 3_000  # a third of the session timeout, as real clients do


class Consumer(ClassicClient):
    """A well-behaved consumer: it does what each answer asks for, a step at a time, and beats while it works."""

    def __init__(self, driver: Driver, random: Random, name: int) -> None:
        super().__init__(
            driver,
            instance=f"i{name}" if random.random() < 0.3 else None,
            version=random.choice([0, 3, 4, 5, 7, 9]),
            rebalance=random.choice([20_000, 60_000]),
            protocols=(("range", subscription("t", user_data=bytes([name % 256]))),),
        )
        if self.version < 5:
            self.instance = None
        self.random = random
        self.phase = "out"
        self.assignment = b""
        self.may_be_unknown = False  # after a restart of the broker

    def step(self) -> None:
        getattr(self, f"_{self.phase}")()

    def _out(self) -> None:
        self.join()
        self.phase = "joining"

    def _joining(self) -> None:
        answer = self.driver.answers.get(self.ticket)
        if answer is None:
            return
        if answer is LOST:
            self._out()
            return
        match ErrorCode(answer.error_code):
            case ErrorCode.NONE:
                self.joined()
                self.members = [one.member_id for one in answer.members] if answer.leader == answer.member_id else []
                self.skips = answer.skip_assignment
                self.phase = "syncing"
                self.sync_ticket = None
                self._syncing()
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._out()
            case refusal:
                self._refused(refusal)

    def _syncing(self) -> None:
        if self.sync_ticket is None:
            if self.random.random() < 0.3:
                assert self.beat() in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS) or self.may_be_unknown
            members = [] if self.skips else self.members
            self.sync({one: f"{self.generation}:{one}".encode() for one in members})
        answer = self.driver.answers.get(self.sync_ticket)
        if answer is None:
            return
        self.sync_ticket = None
        if answer is LOST:
            return
        match ErrorCode(answer.error_code):
            case ErrorCode.NONE:
                self.assignment = answer.assignment
                self.phase = "working"
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._out()
            case refusal:
                self._refused(refusal)

    def _working(self) -> None:
        match self.beat():
            case ErrorCode.NONE:
                pass
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._out()
            case refusal:
                self._refused(refusal)

    def _refused(self, code: ErrorCode) -> None:
        assert self.may_be_unknown, f"a well-behaved member was told {code.name} while {self.phase}"
        if code != ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""
        self.may_be_unknown = code == ErrorCode.ILLEGAL_GENERATION
        self._out()


class Fleet:
    def __init__(self, seed: int, *, faults: bool) -> None:
        self.random = Random(seed)
        delay = self.random.choice([0, 3_000])
        self.driver = Driver(GroupConfig(initial_rebalance_delay_ms=delay), seed=seed)
        self.consumers: list[Consumer] = []
        self.faults = faults
        self.generation = 0
        self.committed: int | None = None
        self.names = 0

    def event(self) -> None:
        roll = self.random.random()
        if roll < 0.08 and len(self.consumers) < 8:
            self.names += 1
            self.consumers.append(Consumer(self.driver, self.random, self.names))
        elif roll < 0.10 and self.consumers:
            self._take_one().leave()
        elif roll < 0.12 and self.consumers:
            self._take_one()  # it dies without a word
        elif roll < 0.13 and self.faults:
            self._restart()
        elif roll < 0.20:
            self._commit()
        self.driver.loses_appends = self.faults and self.random.random() < 0.1
        for consumer in self.random.sample(self.consumers, len(self.consumers)):
            consumer.step()
            self._watch_generation(consumer)
        self.driver.loses_appends = False
        self.driver.advance(self.random.randrange(BEAT_MS))

    def _take_one(self) -> Consumer:
        return self.consumers.pop(self.random.randrange(len(self.consumers)))

    def _restart(self) -> None:
        self.driver.restart()
        self.generation = 0
        for consumer in self.consumers:
            consumer.may_be_unknown = True

    def _commit(self) -> None:
        working = [one for one in self.consumers if one.phase == "working"]
        if not working:
            return
        offset = self.random.randrange(1000)
        if self.random.choice(working).commit(offset) == ErrorCode.NONE:
            self.committed = offset
        expected = {} if self.committed is None else {("t", 0): self.committed}
        assert self.driver.committed("g") == expected

    def _watch_generation(self, consumer: Consumer) -> None:
        group = self.driver.coordinator.shard.classic("g")
        if group is not None:
            assert group.generation >= self.generation
            self.generation = group.generation
        if consumer.phase == "working" and not consumer.may_be_unknown:
            # Its work is its own, of its own generation; a static one that came back has its predecessor's.
            generation, _, owner = consumer.assignment.decode().partition(":")
            assert int(generation) <= consumer.generation
            assert owner == consumer.member_id or consumer.instance is not None

    def settle(self) -> None:
        for _ in range(80):
            for consumer in self.consumers:
                consumer.step()
            self.driver.advance(BEAT_MS)


@pytest.mark.parametrize("seed", range(25))
def test_well_behaved_members_are_never_forgotten(seed):
    fleet = Fleet(seed, faults=False)
    for _ in range(120):
        fleet.event()
    _check_end(fleet)


@pytest.mark.parametrize("seed", range(25))
def test_restarts_and_lost_appends_end_well_too(seed):
    fleet = Fleet(1000 + seed, faults=True)
    for _ in range(120):
        fleet.event()
        fleet.driver.check_durable_state()
    _check_end(fleet)


def test_the_checks_notice_when_members_that_wait_for_us_may_expire(monkeypatch):
    def keep_alive(step, group, member):
        key = TimerKey(TimerKind.SESSION, group.group_id, member.member_id)
        step.shard.timers.start(key, step.now_ms + member.session_timeout_ms)

    monkeypatch.setattr(classic_rebalance, "keep_alive", keep_alive)
    monkeypatch.setattr(classic_join, "keep_alive", keep_alive)
    monkeypatch.setattr(classic_members, "keep_alive", keep_alive)
    monkeypatch.setattr(ClassicMember, "is_waiting", False)
    with pytest.raises(AssertionError, match="well-behaved"):
        _try_seeds()


def _try_seeds() -> None:
    for seed in range(20):
        test_well_behaved_members_are_never_forgotten(seed)


def _check_end(fleet: Fleet) -> None:
    fleet.settle()
    group = fleet.driver.coordinator.shard.classic("g")
    if fleet.consumers:
        assert group.state == "Stable"
        assert {one.phase for one in fleet.consumers} == {"working"}
        assert {one.generation for one in fleet.consumers} == {group.generation}
        assert set(group.members) == {one.member_id for one in fleet.consumers}
    fleet.consumers.clear()
    fleet.driver.advance(600_000)
    assert all(ticket in fleet.driver.answers for ticket in fleet.driver.asked), "the timers left somebody waiting"
    fleet.driver.close()
