"""Elections keep what was acknowledged: random histories of a partition against a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from clarion.cluster import elections
from clarion.cluster.elections import ElectionRules, expand, leave, settle, shrink
from clarion.cluster.schema import NO_EPOCH, BrokerRegistration, PartitionState
from tests.cluster.test_elections import CACHED, FLUSHED, broker

Message = tuple[int, int]  # leader epoch, number


@dataclass
class Replica:
    log: list[Message] = field(default_factory=list)
    flushed: int = 0
    is_up: bool = True
    life: int = 1
    clean_since: int = 1
    held_since: int = NO_EPOCH
    view: PartitionState | None = None  # the state that it knows of
    positions: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # of its followers, and in which life they said so
    epoch_start: int = 0
    committed: int = 0
    rules: ElectionRules = FLUSHED  # likewise


def agreed(leader: list[Message], follower: list[Message]) -> int:
    """How much of its log a follower keeps: as the protocol finds out, by epochs, not by what messages say."""
    kept = len(follower)
    while kept:
        epoch = follower[kept - 1][0]
        end = sum(1 for known, _ in leader if known <= epoch)
        if end and leader[end - 1][0] == epoch:
            return min(kept, end)
        below = leader[end - 1][0] if end else 0
        kept = min(end, sum(1 for known, _ in follower[:kept] if known <= below))
    return 0


class Story:
    """One partition on three brokers: who does what next is chance, what must hold is not.

    Brokers that are down do nothing; those that are up know the state of the store, or an older one.
    """

    knows_lives = True  # leaders know that their leadership ends with their life
    waits_for_strikes = True  # leaders commit nothing while others are eligible

    def __init__(self, seed: int, rules: ElectionRules, steps: int) -> None:
        self.chance = random.Random(seed)
        self.rules = rules
        self.store = PartitionState(1, 1, (1, 2, 3), (1,), lives=(1, -1, -1))
        self.replicas = {number: Replica(view=self.store, rules=rules) for number in (1, 2, 3)}
        self.committed: list[Message] = []
        self.next_number = 0
        self.commits = 0
        self.steps = steps
        self.trouble = self.chance.choice((0.1, 0.3, 0.8))

    def run(self) -> int:
        moves = [self.append] * 3 + [self.fetch] * 8 + [self.flush] * 4 + [self.commit] * 3
        moves += [self.learn] * 4 + [self.settle] * 2 + [self.expand] * 2 + [self.start] * 2
        moves += [self.shrink, self.crash, self.stop, *self.more_moves()]
        for _ in range(self.steps):
            self.chance.choice(moves)()
        return self.commits

    def more_moves(self) -> list[Callable[[], None]]:
        return []

    @property
    def alive(self) -> dict[int, BrokerRegistration]:
        return {
            number: broker(number, one.life, clean_since=one.clean_since, held_since=one.held_since)
            for number, one in self.replicas.items()
            if one.is_up
        }

    def leader(self) -> tuple[int, Replica] | None:
        """Somebody who takes itself for the leader."""
        found = [
            (number, one)
            for number, one in self.replicas.items()
            if one.is_up and one.view is not None and one.view.leader == number and self._is_its_life(number)
        ]
        return self.chance.choice(found) if found else None

    def _is_its_life(self, number: int) -> bool:
        one = self.replicas[number]
        return one.view is not None and (one.view.life_of(number) == one.life or not self.knows_lives)

    def append(self) -> None:
        if (leading := self.leader()) is not None:
            _, one = leading
            one.log.append((one.view.leader_epoch, self.next_number))
            self.next_number += 1

    def fetch(self) -> None:
        """A follower of the same epoch: what it has otherwise goes first, then it copies a little."""
        if (leading := self.leader()) is None:
            return
        number, one = leading
        follower = self.chance.choice([other for other in (1, 2, 3) if other != number])
        other = self.replicas[follower]
        if not other.is_up or other.view is None or other.view.leader_epoch != one.view.leader_epoch:
            return
        kept = agreed(one.log, other.log)
        del other.log[kept:]
        other.flushed = min(other.flushed, kept)
        one.positions[follower] = (other.flushed if self.rules.is_flushed else len(other.log), other.life)
        other.log += one.log[len(other.log) : len(other.log) + self.chance.randint(0, 3)]

    def flush(self) -> None:
        one = self.replicas[self.chance.randint(1, 3)]
        one.flushed = len(one.log) if one.is_up else one.flushed

    def commit(self) -> None:
        if (leading := self.leader()) is None:
            return
        number, one = leading
        if len(one.view.in_sync) < elections.min_in_sync(one.view, one.rules):
            return
        if one.view.eligible and self.waits_for_strikes:
            return
        own = one.flushed if self.rules.is_flushed else len(one.log)
        others = [one.positions.get(other, (0, 0))[0] for other in one.view.in_sync if other != number]
        mark = min([own, *others])
        if mark > len(self.committed):
            assert one.log[: len(self.committed)] == self.committed, "what was acknowledged is gone"
            self.committed = one.log[:mark]
            self.commits += 1
        one.committed = max(one.committed, mark)

    def learn(self) -> None:
        number = self.chance.randint(1, 3)
        one = self.replicas[number]
        if one.is_up:
            self._see(number)

    def _see(self, number: int) -> None:
        one = self.replicas[number]
        is_new = one.view is None or self.store.leader_epoch > one.view.leader_epoch
        one.view, one.rules = self.store, self.rules
        if is_new:
            one.positions = {}
            one.epoch_start = len(one.log)
            one.committed = 0
            if self.store.leader == number and self._is_its_life(number):
                assert one.log[: len(self.committed)] == self.committed, "a leader without what was acknowledged"

    def settle(self) -> None:
        if (verdict := settle(self.store, self.rules, self.alive)) is not None:
            self.store = verdict.state
            if "may be missing" in verdict.reason:  # all crashed, and it was said
                kept = self.replicas[self.store.leader].log
                while self.committed != kept[: len(self.committed)]:
                    self.committed.pop()

    def shrink(self) -> None:
        if (leading := self.leader()) is None or leading[1].view != self.store:
            return
        others = [other for other in self.store.in_sync if other != leading[0]]
        if others and self.chance.random() < 0.3:
            self.store = shrink(self.store, leading[1].rules, [self.chance.choice(others)])
            leading[1].view = self.store

    def expand(self) -> None:
        """By compare-and-set of the state and of the follower's life."""
        if (leading := self.leader()) is None or leading[1].view != self.store:
            return
        one = leading[1]
        for other, (position, life) in one.positions.items():
            is_caught_up = position >= max(one.epoch_start, one.committed)
            is_that_life = self.replicas[other].is_up and self.replicas[other].life == life
            if other not in self.store.in_sync and is_caught_up and is_that_life:
                self.store = expand(self.store, one.rules, other, life)
                one.view = self.store

    def crash(self) -> None:
        number = self.chance.randint(1, 3)
        one = self.replicas[number]
        if one.is_up and self.chance.random() < self.trouble:
            one.is_up, one.view = False, None
            one.flushed = kept = self.chance.randint(one.flushed, len(one.log))
            del one.log[kept:]
            one.clean_since = one.life + 1

    def stop(self) -> None:
        number = self.chance.randint(1, 3)
        one = self.replicas[number]
        if one.is_up and self.chance.random() < self.trouble / 2:
            one.is_up, one.view = False, None
            one.flushed = len(one.log)

    def start(self) -> None:
        number = self.chance.randint(1, 3)
        one = self.replicas[number]
        if not one.is_up:
            one.is_up = True
            one.life += 1
            one.positions = {}
            self._see(number)


def run_many(rules: ElectionRules, story: type[Story] = Story) -> int:
    return sum(story(seed, rules, 400).run() for seed in range(300))


@pytest.mark.parametrize("rules", [FLUSHED, CACHED, ElectionRules(2), ElectionRules(2, is_flushed=False)])
def test_no_history_loses_what_was_acknowledged(rules):
    assert run_many(rules) > 1000, "they do get something done"


def _everybody_stays_eligible(
    state: PartitionState, rules: ElectionRules, in_sync: list[int], doubted: tuple[int, ...] = ()
) -> PartitionState:
    now = tuple(in_sync)
    eligible = tuple(one for one in state.replicas if one not in now)
    return state._replace(in_sync=now, eligible=eligible, partition_epoch=state.partition_epoch + 1)


class ChangingMinimum(Story):
    """Somebody lowers and raises min.insync.replicas all the time; brokers hear of it when they do."""

    def more_moves(self) -> list[Callable[[], None]]:
        return [self.alter] * 4

    def alter(self) -> None:
        self.rules = self.rules._replace(min_in_sync=self.chance.choice((1, 2)))


class NewDisks(Story):
    """Now and then a broker that is down gets another disk, when others are in sync."""

    def more_moves(self) -> list[Callable[[], None]]:
        return [self.replace_disk] * 2

    def replace_disk(self) -> None:
        number = self.chance.randint(1, 3)
        one = self.replicas[number]
        if not one.is_up and any(other != number and self._has_all(other) for other in self.store.in_sync):
            one.log, one.flushed = [], 0
            one.clean_since = one.held_since = one.life + 1

    def _has_all(self, number: int) -> bool:
        one = self.replicas[number]
        return one.log[: len(self.committed)] == self.committed


class Damage(Story):
    """Now and then a broker finds that its log is damaged, says so, and begins anew, when others have everything."""

    often = 0.2

    def more_moves(self) -> list[Callable[[], None]]:
        return [self.damage] * 2

    def damage(self) -> None:
        number = self.chance.randint(1, 3)
        one = self.replicas[number]
        left = leave(self.store, self.rules, number)
        if one.is_up and left is not None and self.chance.random() < self.often:
            self.store = left
            self._see(number)
            one.log, one.flushed = [], 0


@pytest.mark.parametrize("rules", [FLUSHED, CACHED, ElectionRules(2)])
def test_nor_when_replicas_are_damaged(rules):
    assert run_many(rules, Damage) > 500


def test_a_damaged_replica_that_leaves_within_the_term_is_taken_in_again_without_its_log(monkeypatch):
    def leave_within_the_term(state: PartitionState, rules: ElectionRules, replica: int) -> PartitionState | None:
        left = elections.leave(state, rules, replica)
        return left and left._replace(leader_epoch=state.leader_epoch)

    monkeypatch.setitem(Damage.damage.__globals__, "leave", leave_within_the_term)
    monkeypatch.setattr(Damage, "often", 1.0)
    with pytest.raises(AssertionError, match="acknowledged"):
        run_many(FLUSHED, Damage)


@pytest.mark.parametrize("rules", [FLUSHED, CACHED])
def test_nor_when_disks_are_replaced(rules):
    assert run_many(rules, NewDisks) > 1000


def test_nor_while_the_minimum_is_changed():
    assert run_many(ElectionRules(2), ChangingMinimum) > 1000


def test_a_lowered_minimum_that_counts_at_once_loses_something(monkeypatch):
    monkeypatch.setattr(Story, "waits_for_strikes", False)
    with pytest.raises(AssertionError, match="acknowledged"):
        run_many(ElectionRules(2), ChangingMinimum)


SWITCHED_OFF = {
    "only in-sync or eligible replicas lead": ("may_lose", CACHED._replace(may_lose=True)),
    "a crash ends being in sync": ("_holds_everything", CACHED),
    "another disk ends it too": ("_is_empty_handed", FLUSHED),
    "leadership ends with the life": ("_is_here", CACHED),
    "who left while others could acknowledge is not eligible": ("_with_in_sync", ElectionRules(2)),
}


@pytest.mark.parametrize("rule", SWITCHED_OFF)
def test_without_one_of_the_rules_something_is_lost(rule, monkeypatch):
    name, rules = SWITCHED_OFF[rule]
    match name:
        case "_holds_everything":
            monkeypatch.setattr(elections, name, lambda state, rules, alive, one: one in alive)
        case "_is_empty_handed":
            monkeypatch.setattr(elections, name, lambda state, alive, one: False)
        case "_is_here":
            monkeypatch.setattr(elections, name, lambda state, alive, one: one in alive)
            monkeypatch.setattr(Story, "knows_lives", False)
        case "_with_in_sync":
            monkeypatch.setattr(elections, name, _everybody_stays_eligible)
            monkeypatch.setattr(Story, "waits_for_strikes", False)  # or nothing would be committed at all
    with pytest.raises(AssertionError, match="acknowledged"):
        run_many(rules, NewDisks if name == "_is_empty_handed" else Story)
