"""Who of a share group reads which partitions: every partition has a reader, and every member has one to read.

Each topic is divided among those who subscribe to it. With no more members than partitions, each partition goes to one
member, and they have the same number, give or take one. With more members, each member has one partition, and those
have the same number of members. What was assigned before stays, as far as that allows: members who come and go move
little, and nobody must give up before another begins, since records and not partitions are what is owned.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import islice
from typing import TypeVar
from uuid import UUID

from clarion.groups.partitions import Partitions

Taker = TypeVar("Taker", bound=Hashable)
Thing = TypeVar("Thing", bound=Hashable)


def assign(
    members: Sequence[str],
    subscriptions: Mapping[str, frozenset[UUID]],
    partitions: Mapping[UUID, frozenset[int]],
    previous: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member: {} for member in members}
    for topic_id, numbers in sorted(partitions.items()):
        readers = [member for member in members if topic_id in subscriptions[member]]
        if not readers or not numbers:
            continue
        before = {member: previous.get(member, {}).get(topic_id, frozenset()) & numbers for member in readers}
        for member, own in _readers_of(readers, sorted(numbers), before).items():
            if own:
                assigned[member][topic_id] = frozenset(own)
    return dict(assigned)


def _readers_of(
    readers: list[str], numbers: list[int], before: Mapping[str, frozenset[int]]
) -> Mapping[str, Collection[int]]:
    if len(readers) <= len(numbers):
        return _divided(readers, numbers, before)
    had = {number: frozenset(member for member in readers if number in before[member]) for number in numbers}
    own: dict[str, list[int]] = {member: [] for member in readers}
    for number, members in _divided(numbers, readers, had).items():
        for member in members:
            own[member].append(number)
    return own


def _divided(
    takers: Sequence[Taker], things: Sequence[Thing], before: Mapping[Taker, frozenset[Thing]]
) -> dict[Taker, list[Thing]]:
    """Each thing to one taker. Some takers have one more than others: if possible those who had."""
    least, more = divmod(len(things), len(takers))
    free = {thing: place for place, thing in enumerate(things)}
    own: dict[Taker, list[Thing]] = {}
    for taker in sorted(takers, key=lambda one: -len(before[one])):
        kept = sorted((thing for thing in before[taker] if thing in free), key=free.__getitem__)[: least + (more > 0)]
        own[taker] = kept
        more -= len(kept) > least
        for thing in kept:
            del free[thing]
    left = iter(free)
    for taker in sorted(takers, key=lambda one: -len(own[one])):
        has_more = len(own[taker]) > least
        wanted = least + (more > 0 and not has_more) - min(len(own[taker]), least)
        taken = [] if has_more else list(islice(left, wanted))
        more -= len(own[taker]) + len(taken) > least and not has_more
        own[taker] += taken
    assert next(left, None) is None
    return own
