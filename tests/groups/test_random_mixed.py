"""Groups whose members change their protocol at random, under faults: no partition has two owners, nobody is stuck."""

from __future__ import annotations

from random import Random

import pytest

from clarion.groups import migration, mixed_members
from clarion.groups.classic_group import ClassicGroup
from clarion.groups.config import GroupConfig
from clarion.groups.consumer_group import STATIC_LEAVE_EPOCH, ConsumerGroup
from clarion.model.errors import ErrorCode
from tests.groups.driver import Driver
from tests.groups.rolling import RollingClassic
from tests.groups.test_random_consumer import Consumer as Modern

TWO_OWNERS = r"does not own|two owners"


class Classic(RollingClassic):
    """Answers to it may get lost, after they took effect: it asks again."""

    def __init__(self, driver: Driver, random: Random, *, cooperative: bool, instance: str | None) -> None:
        topics = random.choice([("t",), ("t", "u")])
        super().__init__(driver, *topics, cooperative=cooperative, instance=instance, rebalance=20_000)
        self.random = random
        self.is_calm = False

    def _joining(self) -> None:
        if self._is_deaf(self.ticket):
            self._out()
        else:
            super()._joining()

    def _syncing(self) -> None:
        if self.sync_ticket is not None and self._is_deaf(self.sync_ticket):
            self._out()
        else:
            super()._syncing()

    def _is_deaf(self, ticket: int) -> bool:
        return not self.is_calm and ticket in self.driver.answers and self.random.random() < 0.1


class Fleet:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.driver = Driver(GroupConfig(initial_rebalance_delay_ms=self.random.choice([0, 3_000])), seed=seed)
        self.driver.set_topics(t=5, u=3)
        self.is_cooperative = self.random.random() < 0.6
        self.members: list[Modern | Classic] = []
        self.names = 0
        self.types: list[type] = []  # which the group has had, in order

    @property
    def group(self) -> ConsumerGroup | ClassicGroup | None:
        return self.driver.coordinator.shard.groups.get("g")

    def event(self) -> None:
        roll = self.random.random()
        if roll < 0.08 and len(self.members) < 6:
            self.add(self.random.choice([Modern, Classic]))
        elif roll < 0.11 and self.members:
            self._take_one().leave()
        elif roll < 0.12 and self.members:
            self._take_one()  # it dies without a word
        elif roll < 0.20 and self.members:
            self.switch(self.random.randrange(len(self.members)))
        elif roll < 0.22:
            self.driver.set_topics(t=self.random.randrange(1, 9), u=self.random.randrange(1, 5))
        elif roll < 0.24:
            self.driver.restart()
        self.driver.loses_appends = self.random.random() < 0.1
        for member in self.random.sample(self.members, self.random.randint(0, len(self.members))):
            member.step()
            self.check_owners()
        self.driver.loses_appends = False
        self.commit()
        self.driver.advance(self.random.choice([0, 1_000, 3_000]))
        self.check_owners()

    def _take_one(self) -> Modern | Classic:
        return self.members.pop(self.random.randrange(len(self.members)))

    def add(self, kind: type, instance: str | None = None) -> None:
        self.names += 1
        instance = instance or (f"i{self.names}" if self.random.random() < 0.3 else None)
        if kind is Classic:
            member = Classic(self.driver, self.random, cooperative=self.is_cooperative, instance=instance)
        else:
            member = Modern(self.driver, self.random, self.names)
            member.instance = instance
        self.members.append(member)

    def switch(self, index: int) -> None:
        """One step of a rolling switch: a member stops, and starts again with the other protocol."""
        member = self.members.pop(index)
        other = Modern if isinstance(member, Classic) else Classic
        if member.instance is None:
            member.leave()
        elif isinstance(member, Modern):
            member.leave(STATIC_LEAVE_EPOCH)  # if that gets lost, the classic one takes its place all the same
        self.add(other, member.instance)

    def switch_all(self, kind: type) -> None:
        """A whole rolling switch, one member after the other, without faults."""
        while any(not isinstance(one, kind) for one in self.members):
            self.switch(next(at for at, one in enumerate(self.members) if not isinstance(one, kind)))
            self.settle()

    def have_a_modern_visitor(self) -> None:
        self.add(Modern)
        self.settle()
        self.members.pop().leave()
        self.settle()

    def commit(self) -> None:
        """Who is in its epoch commits; who is not, does not."""
        group = self.group
        if not self.members or not isinstance(group, ConsumerGroup):
            return
        member = self.random.choice(self.members)
        is_classic = isinstance(member, Classic)
        epoch = member.generation if is_classic else member.epoch
        known = group.members.get(member.member_id)
        if known is None or (known.classic is not None) != is_classic or epoch < 0:
            return
        code = self.driver.commit("g", {("t", 0): 1}, epoch=epoch, member=member.member_id, version=9)
        if epoch == group.current(member.member_id).member_epoch:
            assert code == ErrorCode.NONE
        else:
            assert code == (ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def check_owners(self) -> None:
        group = self.group
        if group is None:
            return
        if not self.types or self.types[-1] is not type(group):
            self.types.append(type(group))
        owned = [(place, one.member_id) for one in self.members if self._counts(one) for place in self._owned(one)]
        places = [place for place, _ in owned]
        assert len(places) == len(set(places)), "a partition has two owners"
        if isinstance(group, ConsumerGroup):
            strangers = [(place, who) for place, who in owned if group.owners.get(place) != who]
            assert not strangers, "a member works on what it does not own"

    def _counts(self, member: Modern | Classic) -> bool:
        """Whether the coordinator counts on the member: not when it is forgotten, or away for a while."""
        group = self.group
        if member.member_id not in group.members:
            return False
        is_away = isinstance(group, ConsumerGroup) and (
            group.current(member.member_id).member_epoch == STATIC_LEAVE_EPOCH
        )
        return not is_away

    def _owned(self, member: Modern | Classic) -> list:
        if isinstance(member, Modern):
            return list(member.owned)
        topics = self.driver.topics
        return [(topics[name].topic_id, number) for name, number in member.owned if name in topics]

    def settle(self) -> None:
        for member in self.members:
            member.is_calm = True
        for _ in range(40):
            for member in self.members:
                member.step(calm=True) if isinstance(member, Modern) else member.step()
                self.check_owners()
            self.driver.advance(3_000)


@pytest.mark.parametrize("seed", range(40))
def test_members_of_both_protocols_come_go_and_switch_and_every_partition_has_one_owner(seed):
    fleet = Fleet(seed)
    for _ in range(150):
        fleet.event()
    fleet.driver.check_durable_state()
    fleet.settle()
    _check_end(fleet)
    fleet.switch_all(fleet.random.choice([Modern, Classic]))
    _check_end(fleet)
    fleet.have_a_modern_visitor()
    _check_end(fleet)
    fleet.driver.close()


def _check_end(fleet: Fleet) -> None:
    if not fleet.members:
        return
    group = fleet.group
    has_modern = any(isinstance(one, Modern) for one in fleet.members)
    assert isinstance(group, ConsumerGroup if has_modern else ClassicGroup)
    assert group.state == "Stable"
    assert set(group.members) == {one.member_id for one in fleet.members}
    topics = fleet.driver.topics
    wanted = {name for name in topics if group.is_subscribed_to(name)}
    expected = {(topics[name].topic_id, number) for name in wanted for number in range(topics[name].partition_count)}
    assert sorted(place for one in fleet.members for place in fleet._owned(one)) == sorted(expected)


def test_the_groups_do_change_their_type_again_and_again():
    changes = 0
    for seed in range(10):
        fleet = Fleet(seed)
        for _ in range(150):
            fleet.event()
        changes += len(fleet.types) - 1
    assert changes >= 30


def test_the_checks_notice_when_an_upgrade_forgets_what_members_hold(monkeypatch):
    monkeypatch.setattr(migration, "_holdings", lambda topics, group, members: {one: {} for one in members})
    with pytest.raises(AssertionError, match=TWO_OWNERS):
        _try_seeds()


def test_the_checks_notice_when_a_joining_member_is_taken_to_hold_nothing(monkeypatch):
    monkeypatch.setattr(mixed_members, "to_ids", lambda partitions, topics: {})
    with pytest.raises(AssertionError, match=TWO_OWNERS):
        _try_seeds()


def test_the_checks_notice_when_a_downgraded_group_is_not_called_back(monkeypatch):
    monkeypatch.setattr(ClassicGroup, "needs_rebalance", False)
    with pytest.raises(AssertionError):
        _try_seeds()


def _try_seeds() -> None:
    for seed in range(20):
        test_members_of_both_protocols_come_go_and_switch_and_every_partition_has_one_owner(seed)
