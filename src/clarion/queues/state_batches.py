"""What is persisted of a share-partition: runs of records in one delivery state, and how later ones take effect."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class StateBatch(NamedTuple):
    """Offsets first to last, both included. The state is Kafka's: 0 available, 2 acknowledged, 4 archived."""

    first: int
    last: int
    state: int
    deliveries: int


class Delta(NamedTuple):
    """What changed: the runs as they are now. Before `start_offset` everything is done."""

    start_offset: int
    done_count: int  # offsets from the start on that are done
    batches: tuple[StateBatch, ...]


def combined(before: Sequence[StateBatch], later: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """`before` with `later` written over it, from the start on; in order, neighbours that are alike joined."""
    result = [one for one in before if one.last >= start_offset]
    for batch in later:
        _overwrite(result, batch)
    return _joined([one._replace(first=max(one.first, start_offset)) for one in result if one.last >= start_offset])


def _overwrite(batches: list[StateBatch], new: StateBatch) -> None:
    low = bisect_left(batches, new.first, key=lambda one: one.last)
    high = bisect_right(batches, new.last, key=lambda one: one.first)
    replaced = [new]
    if low < high:
        if batches[low].first < new.first:
            replaced.insert(0, batches[low]._replace(last=new.first - 1))
        if batches[high - 1].last > new.last:
            replaced.append(batches[high - 1]._replace(first=new.last + 1))
    batches[low:high] = replaced


def _joined(batches: Sequence[StateBatch]) -> list[StateBatch]:
    joined: list[StateBatch] = []
    for batch in batches:
        last = joined[-1] if joined else None
        if last is not None and last.last + 1 == batch.first and last[2:] == batch[2:]:
            joined[-1] = last._replace(last=batch.last)
        else:
            joined.append(batch)
    return joined
