"""KIP-848 groups under random members and faults: a partition never has two owners, and in the end all have one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from clarion.groups import reconciliation
from clarion.groups.config import GroupConfig
from clarion.groups.consumer_draft import Draft
from clarion.groups.consumer_group import STATIC_LEAVE_EPOCH, ConsumerGroup
from clarion.groups.partitions import common
from clarion.model.errors import ErrorCode
from tests.groups.driver import LOST, ConsumerClient, Driver

TWO_OWNERS = r"does not own|two owners"
RETRY = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


class Consumer(ConsumerClient):
    """It may be slow to let go, and answers to it may get lost; it never works on what it was not given."""

    def __init__(self, driver: Driver, random: Random, name: int) -> None:
        wishes = random.choice([{"topics": ("t",)}, {"topics": ("t", "u")}, {"topics": (), "regex": "t|x.*"}])
        super().__init__(
            driver,
            f"m{name}",
            *wishes["topics"],
            regex=wishes.get("regex"),
            instance=f"i{name}" if random.random() < 0.3 else None,
            assignor=random.choice([None, "uniform", "range"]),
            rebalance=20_000,
        )
        self.random = random
        self.name = name
        self.lives = 0
        self.is_in = False
        self.is_deaf = False

    def step(self, *, calm: bool = False) -> None:
        if not self.is_in:
            self.epoch, self.owned, self.assigned = 0, frozenset(), frozenset()
        elif calm or self.random.random() < 0.7:
            self._move()
        reports = calm or self.random.random() < 0.7
        answer = self.driver.tell("consumer_group_heartbeat", self._request(reports), version=1)
        self.is_deaf = answer is LOST or (not calm and self.random.random() < 0.1)
        if not self.is_deaf:
            self._heard(answer)

    def _move(self) -> None:
        """Let go of what is no longer ours first, take the new later. Who has not heard the last answer takes nothing:
        what it has not reported yet may be taken back meanwhile (KIP-848 has no other way to tell)."""
        if self.is_deaf or self.owned - self.assigned:
            self.owned &= self.assigned
        else:
            self.owned = self.assigned

    def _request(self, reports: bool):
        if not self.is_deaf:
            return self.request(reports=reports)
        # A client that hears nothing tells everything the next time.
        return replace(
            self.request(),
            rebalance_timeout=self.rebalance,
            subscribed_topic_names=self.topics,
            subscribed_topic_regex=self.regex,
        )

    def _heard(self, answer) -> None:
        code = ErrorCode(answer.error_code)
        if code == ErrorCode.NONE:
            self.is_in = True
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = frozenset(
                    (one.topic_id, number) for one in answer.assignment.topic_partitions for number in one.partitions
                )
            return
        assert code in RETRY, code.name
        self.is_in = False
        self.owned = self.assigned = frozenset()

    def pause(self) -> None:
        """A static member restarts under another id."""
        self.owned = frozenset()
        if self.leave(STATIC_LEAVE_EPOCH) is LOST:
            return
        self.lives += 1
        self.member_id = f"m{self.name}.{self.lives}"
        self.is_in = False


class Fleet:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.driver = Driver(GroupConfig(), seed=seed)
        self.driver.set_topics(t=5, u=3)
        self.consumers: list[Consumer] = []
        self.epoch = 0
        self.names = 0

    @property
    def group(self) -> ConsumerGroup | None:
        return self.driver.coordinator.shard.consumer("g")

    def event(self) -> None:
        roll = self.random.random()
        if roll < 0.10 and len(self.consumers) < 7:
            self.names += 1
            self.consumers.append(Consumer(self.driver, self.random, self.names))
        elif roll < 0.13 and self.consumers:
            leaver = self.consumers.pop(self.random.randrange(len(self.consumers)))
            leaver.leave()
        elif roll < 0.15 and self.consumers:
            self.consumers.pop(self.random.randrange(len(self.consumers)))
        elif roll < 0.19:
            static = [one for one in self.consumers if one.instance and one.is_in]
            if static:
                self.random.choice(static).pause()
        elif roll < 0.22:
            sizes = {"t": self.random.randrange(1, 9), "u": self.random.randrange(1, 5), "x1": 2}
            self.driver.set_topics(**{name: sizes[name] for name in self.random.sample(sorted(sizes), 2)})
        elif roll < 0.23:
            self.driver.restart()
        self.driver.loses_appends = self.random.random() < 0.1
        for consumer in self.random.sample(self.consumers, self.random.randint(0, len(self.consumers))):
            consumer.step()
            self.check_owners()
        self.driver.loses_appends = False
        self.driver.advance(self.random.choice([0, 1_000, 5_000]))
        self.check_owners()

    def check_owners(self) -> None:
        """What a member works on, while the coordinator counts it as a member, is its own in the log."""
        group = self.group
        if group is None:
            return
        assert group.epoch >= self.epoch
        self.epoch = group.epoch
        for consumer in self.consumers:
            is_member = consumer.member_id in group.members
            if is_member and group.current(consumer.member_id).member_epoch != STATIC_LEAVE_EPOCH:
                strangers = {one for one in consumer.owned if group.owners.get(one) != consumer.member_id}
                assert not strangers, f"{consumer.member_id} works on what it does not own"
        held = [one for current in group.currents.values() for one in _held(current)]
        assert len(held) == len(set(held)), "a partition has two owners"
        assert set(held) == set(group.owners)

    def settle(self) -> None:
        for _ in range(15):
            for consumer in self.consumers:
                consumer.step(calm=True)
                self.check_owners()
            self.driver.advance(5_000)


def _held(current):
    return [
        (topic, number)
        for part in (current.assigned, current.pending_revocation)
        for topic, numbers in part.items()
        for number in numbers
    ]


@pytest.mark.parametrize("seed", range(40))
def test_no_partition_ever_has_two_owners_and_in_the_end_all_have_one(seed):
    fleet = Fleet(seed)
    for _ in range(120):
        fleet.event()
    fleet.driver.check_durable_state()
    fleet.settle()
    if fleet.consumers:
        _check_everything_is_owned(fleet)
    fleet.driver.close()


def test_the_checks_notice_when_partitions_are_given_away_before_they_are_released(monkeypatch):
    monkeypatch.setattr(Draft, "is_free", lambda *_: True)
    with pytest.raises(AssertionError, match=TWO_OWNERS):
        _try_seeds()


def test_the_checks_notice_when_silence_counts_as_release(monkeypatch):
    monkeypatch.setattr(reconciliation, "_holds", lambda owned, revoked: bool(owned and common(owned, revoked)))
    with pytest.raises(AssertionError, match=TWO_OWNERS):
        _try_seeds()


def _try_seeds() -> None:
    for seed in range(20):
        test_no_partition_ever_has_two_owners_and_in_the_end_all_have_one(seed)


def _check_everything_is_owned(fleet: Fleet) -> None:
    group = fleet.group
    assert group.state == "Stable"
    assert set(group.members) == {one.member_id for one in fleet.consumers}
    topics = fleet.driver.topics
    wanted = {name for name in topics if group.is_subscribed_to(name)}
    expected = {(topics[name].topic_id, number) for name in wanted for number in range(topics[name].partition_count)}
    owned = [one for consumer in fleet.consumers for one in consumer.owned]
    assert sorted(owned) == sorted(expected)
