"""Where replicas go: on different brokers, in different racks as far as there are enough, the same number everywhere.

Pure. A partition's replicas are a tuple of brokers, the preferred leader first. Leading costs more than following, so
leaders are spread by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Replicas = tuple[int, ...]
Racks = Mapping[int, str | None]  # of every broker that may hold replicas


@dataclass(slots=True)
class Load:
    """How many replicas and leaders each broker has."""

    replicas: Counter[int] = field(default_factory=Counter)
    leaders: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, partitions: Iterable[Replicas]) -> Load:
        load = cls()
        for replicas in partitions:
            load.add(replicas)
        return load

    def add(self, replicas: Replicas) -> None:
        self.replicas.update(replicas)
        self.leaders.update(replicas[:1])


def place(count: int, replication_factor: int, racks: Racks, load: Load, start: int = 0) -> list[Replicas]:
    """So many new partitions, beside what brokers hold already. `start` decides between equals.

    With fewer brokers than replicas, as many as there are.
    """
    ring = sorted(racks)
    placed = []
    for index in range(count):
        turn = {broker: (at - start - index) % len(ring) for at, broker in enumerate(ring)}
        leader = min(ring, key=lambda one: (load.leaders[one], load.replicas[one], turn[one]))
        replicas: Replicas = (leader,)
        while len(replicas) < min(replication_factor, len(ring)):
            replicas += (_next_replica(replicas, racks, load, turn),)
        load.add(replicas)
        placed.append(replicas)
    return placed


def add_replica(replicas: Replicas, racks: Racks, load: Load) -> int | None:
    """The broker that should hold one more copy; None if all do."""
    if set(racks) <= set(replicas):
        return None
    return _next_replica(replicas, racks, load, {broker: broker for broker in racks})


def spread(partitions: Sequence[Replicas], racks: Racks) -> list[Replicas]:
    """The same partitions with the same number of replicas on every broker, moving no more than must move.

    What is on brokers that `racks` does not name moves to those that it names. Leaders stay where they can.
    """
    moved = [_without_gone(replicas, racks) for replicas in partitions]
    load = Load.of(moved)
    for at, wanted in enumerate(partitions):
        while len(moved[at]) < min(len(wanted), len(racks)):
            broker = add_replica(moved[at], racks, load)
            assert broker is not None
            moved[at] += (broker,)
            load.replicas[broker] += 1
    _level(moved, racks, load.replicas)
    return spread_leaders(moved)


def spread_leaders(partitions: Sequence[Replicas]) -> list[Replicas]:
    """The same replicas, with the first places dealt out evenly. No message moves for this."""
    leaders = Counter(replicas[0] for replicas in partitions if replicas)
    ordered = list(partitions)
    has_changed = True
    while has_changed:
        has_changed = False
        for at, replicas in enumerate(ordered):
            if not replicas:
                continue
            best = min(replicas, key=lambda one: (leaders[one], one != replicas[0]))
            if leaders[best] + 1 < leaders[replicas[0]]:
                leaders[replicas[0]] -= 1
                leaders[best] += 1
                ordered[at] = (best, *(one for one in replicas if one != best))
                has_changed = True
    return ordered


def _next_replica(replicas: Replicas, racks: Racks, load: Load, turn: Mapping[int, int]) -> int:
    used = Counter(_rack(one, racks) for one in replicas)
    free = (broker for broker in racks if broker not in replicas)
    return min(free, key=lambda one: (used[_rack(one, racks)], load.replicas[one], turn[one]))


def _rack(broker: int, racks: Racks) -> str:
    """A broker of which no rack is known is in one of its own."""
    return racks.get(broker) or f"broker {broker}"


def _without_gone(replicas: Replicas, racks: Racks) -> Replicas:
    return tuple(one for one in replicas if one in racks)


def _level(moved: list[Replicas], racks: Racks, replicas: Counter[int]) -> None:
    """One replica at a time from who has most to who has least, until all have the same or one more."""
    while True:
        low_first = sorted(racks, key=lambda one: (replicas[one], one))
        for giver in reversed(low_first):
            taker = next((one for one in low_first if _may_give(giver, one, replicas)), None)
            found = None if taker is None else _movable(moved, giver, low_first, racks, replicas)
            if found is not None:
                at, taker = found
                moved[at] = tuple(taker if one == giver else one for one in moved[at])
                replicas[giver] -= 1
                replicas[taker] += 1
                break
        else:
            return


def _may_give(giver: int, taker: int, replicas: Counter[int]) -> bool:
    return replicas[giver] > replicas[taker] + 1


def _movable(
    moved: Sequence[Replicas], giver: int, low_first: Sequence[int], racks: Racks, replicas: Counter[int]
) -> tuple[int, int] | None:
    """A partition, and who takes it over from the giver without putting two of its replicas into one rack."""
    for taker in low_first:
        if not _may_give(giver, taker, replicas):
            return None
        # A follower rather than a leader: readers and writers then notice nothing of the move.
        for wants_leader in (False, True):
            for at, one in enumerate(moved):
                if giver in one and (one[0] == giver) is wants_leader and _fits(one, giver, taker, racks):
                    return at, taker
    return None


def _fits(replicas: Replicas, giver: int, taker: int, racks: Racks) -> bool:
    if taker in replicas:
        return False
    before = {_rack(one, racks) for one in replicas}
    after = {_rack(taker if one == giver else one, racks) for one in replicas}
    return len(after) >= len(before)
