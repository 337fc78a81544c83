"""What is persisted of a share-partition: runs of records in one delivery state, and how later ones take effect."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_FEW: Final = 8  # batches for each new one, from which on it is looked for instead of gone through all of them


class StateBatch(NamedTuple):
    """Offsets first to last, both included. The state is Kafka's: 0 available, 2 acknowledged, 3 and 4 given up.

    The last two are Clarion's own, and beyond Kafka's readers.
    """

    first: int
    last: int
    state: int
    deliveries: int
    available_at_ms: int = 0  # not before, by the wall clock
    reason: str = ""  # why it is given up, until its dead letter is written


class Delta(NamedTuple):
    """What changed: the runs as they are now. Before `start_offset` everything is done."""

    start_offset: int
    done_count: int  # offsets from the start on that are done
    batches: tuple[StateBatch, ...]


def combined(before: Sequence[StateBatch], later: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
    """`before` with `later` written over it, from the start on; in order, neighbours that are alike joined."""
    dropped = bisect_left(before, start_offset, key=lambda one: one.last)
    result = list(before[dropped:])
    if len(later) > 1 and all(one.last < other.first for one, other in pairwise(later)):
        _overwrite_all(result, later)
    else:
        for batch in later:
            _overwrite(result, batch)
    dropped = bisect_left(result, start_offset, key=lambda one: one.last)
    if dropped:
        del result[:dropped]
    if result and result[0].first < start_offset:
        result[0] = result[0]._replace(first=start_offset)
    return result


def _overwrite_all(batches: list[StateBatch], new: Sequence[StateBatch]) -> None:
    """Those that lie between the first and the last of the new ones, and a neighbour on each side, are gone through in
    one pass; unless they are many for each new one."""
    low = max(bisect_left(batches, new[0].first, key=lambda one: one.last) - 1, 0)
    high = bisect_right(batches, new[-1].last, key=lambda one: one.first) + 1
    if high - low <= len(new) * _FEW:
        batches[low:high] = _merged(batches[low:high], new)
    else:
        for batch in new:
            _overwrite(batches, batch)


def _overwrite(batches: list[StateBatch], new: StateBatch) -> None:
    low = bisect_left(batches, new.first, key=lambda one: one.last)
    high = bisect_right(batches, new.last, key=lambda one: one.first)
    replaced = [new]
    if low < high:
        if batches[low].first < new.first:
            replaced.insert(0, batches[low]._replace(last=new.first - 1))
        if batches[high - 1].last > new.last:
            replaced.append(batches[high - 1]._replace(first=new.last + 1))
    around = slice(max(low - 1, 0), high + 1)
    joined: list[StateBatch] = []
    for batch in (*batches[around.start : low], *replaced, *batches[high : around.stop]):
        _append(joined, batch)
    batches[around] = joined


def _merged(before: list[StateBatch], later: Sequence[StateBatch]) -> list[StateBatch]:
    """Both in order: one pass through them."""
    result: list[StateBatch] = []
    at, count = 0, len(before)
    for new in later:
        while at < count and before[at].last < new.first:
            _append(result, before[at])
            at += 1
        if at < count and before[at].first < new.first:
            _append(result, _cut(before[at], before[at].first, new.first - 1))
        _append(result, new)
        while at < count and before[at].last <= new.last:
            at += 1
        if at < count and before[at].first <= new.last:
            before[at] = _cut(before[at], new.last + 1, before[at].last)
    for batch in before[at:]:
        _append(result, batch)
    return result


def _append(batches: list[StateBatch], batch: StateBatch) -> None:
    last = batches[-1] if batches else None
    if last is not None and last.last + 1 == batch.first and last[2:] == batch[2:]:
        batches[-1] = _cut(last, last.first, batch.last)
    else:
        batches.append(batch)


def _cut(one: StateBatch, first: int, last: int) -> StateBatch:
    return tuple.__new__(StateBatch, (first, last, *one[2:]))
