"""The records of a share-partition as runs: neighbours in the same state are one entry, however many they are.

Runs are in order and without gaps. A change cuts the runs at its edges, and what is equal to its neighbour afterwards
is one run again: so a window in which everything is done, or in one hand, is one entry, and what its records cost is
what is different about them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum


class RecordState(IntEnum):
    """Kafka's numbers, which are in the log too."""

    AVAILABLE = 0
    ACQUIRED = 1  # in memory only: in the log it is AVAILABLE with this delivery counted
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # given up; its dead letter is not written yet
    ARCHIVED = 4

    @property
    def is_done(self) -> bool:
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


class RecordRun:
    """Offsets `first` to `last`, both included."""

    __slots__ = ("deliveries", "first", "last", "member", "reason", "state", "until_ms")

    def __init__(
        self,
        first: int,
        last: int,
        state: RecordState,
        deliveries: int = 0,
        member: str = "",
        until_ms: int = 0,
        reason: str = "",
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        self.member = member  # in whose hands, if ACQUIRED
        self.until_ms = until_ms  # ACQUIRED: when the lock ends; AVAILABLE: not before
        self.reason = reason  # ARCHIVING: why

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __repr__(self) -> str:
        return f"<{self.first}-{self.last} {self.state.name} x{self.deliveries} {self.member}>"

    def part(self, first: int, last: int) -> RecordRun:
        return RecordRun(first, last, self.state, self.deliveries, self.member, self.until_ms, self.reason)

    def become(self, state: RecordState, *, until_ms: int = 0, reason: str = "") -> None:
        """In nobody's hands any more."""
        self.state, self.member, self.until_ms, self.reason = state, "", until_ms, reason

    def is_like(self, other: RecordRun) -> bool:
        return (
            self.state is other.state
            and self.deliveries == other.deliveries
            and self.member == other.member
            and self.until_ms == other.until_ms
            and self.reason == other.reason
        )


class Runs:
    """From `start` (the first offset that is not done, or the next to come) up to `next`, which no run has yet."""

    def __init__(self, start: int) -> None:
        self.next = start
        self._runs: list[RecordRun] = []
        self._firsts: list[int] = []

    def __iter__(self) -> Iterator[RecordRun]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def start(self) -> int:
        return self._firsts[0] if self._firsts else self.next

    def within(self, first: int, last: int) -> list[RecordRun]:
        """The runs that have an offset of these; at the edges they may reach beyond."""
        if first > last:
            return []
        at = max(bisect_right(self._firsts, first) - 1, 0)
        found = self._runs[at : bisect_right(self._firsts, last)]
        return found if not found or found[0].last >= first else found[1:]

    def cut(self, first: int, last: int) -> list[RecordRun]:
        """The same, cut to these offsets: whoever changes one changes only what is asked for. `join` afterwards."""
        self._cut_before(first)
        self._cut_before(last + 1)
        return self.within(first, last)

    def append(self, run: RecordRun) -> None:
        assert run.first == self.next, f"{run} does not follow {self.next}"
        self.next = run.last + 1
        if self._runs and self._runs[-1].is_like(run):
            self._runs[-1].last = run.last
            return
        self._runs.append(run)
        self._firsts.append(run.first)

    def join(self, first: int, last: int) -> None:
        """What has become equal between these offsets, and with their neighbours, is one run again."""
        low = max(bisect_right(self._firsts, first) - 2, 0)
        high = bisect_right(self._firsts, last) + 1
        old = self._runs[low:high]
        if len(old) < 2:
            return
        joined = [old[0]]
        for run in old[1:]:
            if joined[-1].is_like(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        if len(joined) < len(old):
            self._runs[low:high] = joined
            self._firsts[low:high] = [run.first for run in joined]

    def finish_each(
        self, spans: Sequence[tuple[int, int]], state: RecordState, check: Callable[[RecordRun], None]
    ) -> None:
        """All of these, which are in order and apart, in one pass: to cut and join at each goes through the list again
        and again. `check` may refuse a run that has one of them; then nothing has happened."""
        runs, low = self._runs, max(bisect_right(self._firsts, spans[0][0]) - 1, 0)
        built: list[RecordRun] = []
        number, count, at = 0, len(spans), low
        first, last = spans[0]
        while number < count:
            run = runs[at]
            at += 1
            if first > run.last:
                built.append(run)
                continue
            check(run)
            begin, fresh = run.first, None
            while number < count and first <= run.last:
                if first > begin:
                    built.append(run.part(begin, first - 1))
                    begin, fresh = first, None
                until = min(last, run.last)
                if fresh is None:
                    fresh = RecordRun(begin, until, state, run.deliveries)
                    built.append(fresh)
                else:
                    fresh.last = until
                begin = until + 1
                if last > run.last:
                    break  # the rest of it is in the next run
                number += 1
                if number < count:
                    first, last = spans[number]
            if begin <= run.last:
                built.append(run.part(begin, run.last))
        runs[low:at] = built
        self._firsts[low:at] = [run.first for run in built]
        self._join_between(low - 1, low + len(built))

    def _join_between(self, low: int, high: int) -> None:
        """Of the runs from `low` to `high`, both included."""
        low, high = max(low, 0), min(high, len(self._runs) - 1)
        joined: list[RecordRun] = []
        for run in self._runs[low : high + 1]:
            if joined and joined[-1].is_like(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        if len(joined) <= high - low:
            self._runs[low : high + 1] = joined
            self._firsts[low : high + 1] = [run.first for run in joined]

    def pieces(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[RecordRun, int, int]]:
        """Of ranges in order: the runs that have some of them, and from where to where in each. What lies between two
        ranges of one run is the same as they are, and goes with them."""
        runs, firsts, at = self._runs, self._firsts, 0
        found: list[tuple[RecordRun, int, int]] = []
        for first, last in ranges:
            if at < len(runs) and runs[at].last < first:
                at = max(bisect_right(firsts, first, at) - 1, at)
            while at < len(runs) and runs[at].first <= last:
                run = runs[at]
                if run.last >= first:
                    until = min(run.last, last)
                    if found and found[-1][0] is run:
                        found[-1] = run, found[-1][1], until
                    else:
                        found.append((run, max(run.first, first), until))
                if run.last >= last:
                    break
                at += 1
        return found

    def drop_done(self) -> int:
        """Move the start to the first record that is not done. How many offsets were dropped."""
        at = 0
        while at < len(self._runs) and self._runs[at].state.is_done:
            at += 1
        return self._drop(at)

    def drop_below(self, offset: int) -> list[RecordRun]:
        """What is before an offset goes, whatever its state; it is returned."""
        if offset > self.next:
            self.next = offset
            gone, self._runs, self._firsts = self._runs, [], []
            return gone
        self._cut_before(offset)
        at = bisect_right(self._firsts, offset - 1)
        gone = self._runs[:at]
        self._drop(at)
        return gone

    def _drop(self, count: int) -> int:
        dropped = sum(map(len, self._runs[:count]))
        del self._runs[:count]
        del self._firsts[:count]
        return dropped

    def _cut_before(self, offset: int) -> None:
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return
        run = self._runs[at]
        if run.first == offset or run.last < offset:
            return
        tail = run.part(offset, run.last)
        run.last = offset - 1
        self._runs.insert(at + 1, tail)
        self._firsts.insert(at + 1, offset)


def outside(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of these is in none of the others, which are in order."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        for other_first, other_last in others:
            if other_first > last or other_last < first:
                continue
            if first < other_first:
                found.append((first, other_first - 1))
            first = other_last + 1
        if first <= last:
            found.append((first, last))
    return found
