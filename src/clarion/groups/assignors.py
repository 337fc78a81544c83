"""Who gets which partition: the server-side assignors of KIP-848.

An assignor is a pure function of who wants what and of what everybody had, so the same group always gets the same
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from clarion.groups.partitions import NOTHING, Partitions

_Partition = tuple[UUID, int]
_Holdings = dict[str, dict[_Partition, None]]  # member → its partitions, in the order in which it got them


class Wishes(NamedTuple):
    members: Sequence[str]  # in an order that survives restarts of static members
    subscriptions: Mapping[str, frozenset[UUID]]  # of topics that exist
    partition_counts: Mapping[UUID, int]
    previous: Mapping[str, Partitions]


def uniform(wishes: Wishes) -> dict[str, Partitions]:
    """As even as can be, moving as little as possible."""
    if len({wishes.subscriptions[member] for member in wishes.members}) == 1:
        return _spread_evenly(wishes)
    return _spread_by_subscription(wishes)


def range_(wishes: Wishes) -> dict[str, Partitions]:
    """Each topic in contiguous ranges, so that topics with equal partition counts are split alike (for joins)."""
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member: {} for member in wishes.members}
    for topic, count in wishes.partition_counts.items():
        subscribers = [member for member in wishes.members if topic in wishes.subscriptions[member]]
        start = 0
        for at, member in enumerate(subscribers):
            end = start + count // len(subscribers) + (at < count % len(subscribers))
            if end > start:
                assigned[member][topic] = frozenset(range(start, end))
            start = end
    return dict(assigned)


DEFAULT_ASSIGNOR = "uniform"
ASSIGNORS: Mapping[str, Callable[[Wishes], dict[str, Partitions]]] = {"uniform": uniform, "range": range_}


def _spread_evenly(wishes: Wishes) -> dict[str, Partitions]:
    """Everybody wants the same topics: a quota each, and the remainder to those who already have one more."""
    free = dict.fromkeys(_all_partitions(wishes))
    quota, remainder = divmod(len(free), len(wishes.members))
    holdings: _Holdings = {}
    for member in wishes.members:
        had = [partition for partition in _in_order(wishes.previous.get(member, NOTHING)) if partition in free]
        has_extra = len(had) > quota and remainder > 0
        remainder -= has_extra
        holdings[member] = dict.fromkeys(had[: quota + has_extra])
        for partition in holdings[member]:
            del free[partition]
    left = iter(free)
    for member in wishes.members:
        while len(holdings[member]) < quota:
            holdings[member][next(left)] = None
    poor = (member for member in wishes.members if len(holdings[member]) == quota)
    for partition in left:
        holdings[next(poor)][partition] = None
    return _as_partitions(holdings)


def _spread_by_subscription(wishes: Wishes) -> dict[str, Partitions]:
    """Not everybody wants everything: keep what is still wanted, give the rest to the least loaded, then level out."""
    subscribers = {
        topic: [member for member in wishes.members if topic in wishes.subscriptions[member]]
        for topic in wishes.partition_counts
    }
    free = dict.fromkeys(_all_partitions(wishes))
    holdings: _Holdings = {member: {} for member in wishes.members}
    for member in wishes.members:
        for partition in _in_order(wishes.previous.get(member, NOTHING)):
            if partition in free and partition[0] in wishes.subscriptions[member]:
                del free[partition]
                holdings[member][partition] = None
    # Topics that few want first: their subscribers have less choice.
    for partition in sorted(free, key=lambda one: len(subscribers[one[0]])):
        if subscribers[partition[0]]:
            poorest = min(subscribers[partition[0]], key=lambda member: len(holdings[member]))
            holdings[poorest][partition] = None
    _level_out(holdings, subscribers)
    return _as_partitions(holdings)


def _level_out(holdings: _Holdings, subscribers: Mapping[UUID, Sequence[str]]) -> None:
    """Move partitions from the richest to the poorest. Each move makes the sum of squares smaller, so this ends."""
    moved = True
    while moved:
        moved = False
        for topic, members in subscribers.items():
            while _move_one(holdings, topic, members):
                moved = True


def _move_one(holdings: _Holdings, topic: UUID, members: Sequence[str]) -> bool:
    by_load = sorted(members, key=lambda member: len(holdings[member]))
    for giver in reversed(by_load):
        taker = by_load[0]
        if len(holdings[giver]) - len(holdings[taker]) < 2:
            return False
        given = next((partition for partition in reversed(holdings[giver]) if partition[0] == topic), None)
        if given is not None:
            del holdings[giver][given]
            holdings[taker][given] = None
            return True
    return False


def _all_partitions(wishes: Wishes) -> list[_Partition]:
    return [(topic, number) for topic, count in sorted(wishes.partition_counts.items()) for number in range(count)]


def _in_order(partitions: Partitions) -> list[_Partition]:
    return [(topic, number) for topic, numbers in sorted(partitions.items()) for number in sorted(numbers)]


def _as_partitions(holdings: _Holdings) -> dict[str, Partitions]:
    assigned: dict[str, Partitions] = {}
    for member, held in holdings.items():
        topics: dict[UUID, set[int]] = {}
        for topic, number in held:
            topics.setdefault(topic, set()).add(number)
        assigned[member] = {topic: frozenset(numbers) for topic, numbers in topics.items()}
    return assigned
