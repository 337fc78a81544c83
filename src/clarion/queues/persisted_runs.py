"""A run of records as it is written down, and as the next leader finds it."""

from __future__ import annotations

from typing import Final

from clarion.queues.rules import DELAY_MAX_MS, ShareLimits
from clarion.queues.runs import RecordRun, RecordState
from clarion.queues.state_batches import StateBatch

NEVER: Final = 2**62  # as the end of a wait: until somebody says so
SPENT: Final = "not acknowledged after {} deliveries"
_AVAILABLE, _ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
_new = tuple.__new__  # hundreds are made for one request


def to_batch(run: RecordRun, first: int, last: int, wall_ahead_ms: int) -> StateBatch:
    """What is in somebody's hands is written down as if it had been let go: a new leader knows no locks.

    When a record is due that nobody has had yet, its own header says, and so it is not written down; nor is that one
    waits for its key's turn, which the next leader finds out.
    """
    if run.state is _ACQUIRED:
        return _new(StateBatch, (first, last, _AVAILABLE, run.deliveries, 0, ""))
    available_at_ms = run.until_ms + wall_ahead_ms if 0 < run.until_ms < NEVER and run.deliveries else 0
    return _new(StateBatch, (first, last, run.state, run.deliveries, available_at_ms, run.reason))


def to_run(batch: StateBatch, first: int, limits: ShareLimits, now_ms: int, wall_ahead_ms: int) -> RecordRun:
    """From `first` on. If its last delivery was under way when the leader before ended, it is given up."""
    run = RecordRun(first, batch.last, RecordState(batch.state), batch.deliveries, reason=batch.reason)
    if run.state is RecordState.AVAILABLE:
        if run.deliveries >= limits.deliveries_max:
            run.become(RecordState.ARCHIVING, reason=SPENT.format(run.deliveries))
        elif batch.available_at_ms:
            # Whatever the clock was set to meanwhile, it waits no longer than anything may.
            until_ms = min(batch.available_at_ms - wall_ahead_ms, now_ms + DELAY_MAX_MS)
            run.until_ms = until_ms if until_ms > now_ms else 0
    if run.state is RecordState.ARCHIVING and not limits.has_dead_letters:
        run.become(RecordState.ARCHIVED)
    return run


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, and without those that touch or overlap."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result
