"""The records of a share-partition that are not done, what is known of each, and what of it must survive.

The window goes from `start_offset`, the first record that is not done, to `next_offset`, the first that nobody has
looked at. Its limit is the number of records in it that are open: delivered once, and not done. One that is stuck holds
up no others, and the runs between the open ones are done and cost one entry each. Records that wait for their time, or
for their turn, and were never delivered are not open; how many runs they may make is limited (`RUNS_MAX`). They are not
written down: where nothing is, whoever takes over looks at the records itself.

What must survive is taken out with `take_delta`: the runs that changed, as they are by then. Every acquisition is among
them, as AVAILABLE with its delivery counted: whoever takes over after a crash finds it as if its lock had ended.

`now_ms` is a clock that only goes on, and means nothing to another leader; what is written down are times of the wall
clock, which shows `wall_ahead_ms` more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from clarion.queues.key_order import KeyOrder
from clarion.queues.persisted_runs import NEVER, SPENT, merged, to_batch, to_run
from clarion.queues.rules import ShareLimits
from clarion.queues.runs import RecordRun, RecordState, Runs, outside
from clarion.queues.state_batches import Delta, StateBatch

RUNS_MAX: Final = 100_000  # some 20 MB; of them at most every other is written down, in a snapshot of a megabyte
_RUNS_PER_MS: Final = 100  # to go through so many takes a hundredth of the time until it is done again
_DONE_MAX: Final = 2**31 - 1
_STEP_MS: Final = 1_000  # by so much the wall clock was set: less is how clocks run, and not worth writing down anew

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVING, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVING, RecordState.ARCHIVED


class ShareWindow:
    def __init__(
        self,
        limits: ShareLimits,
        start_offset: int,
        batches: Iterable[StateBatch] = (),
        *,
        now_ms: int = 0,
        wall_ahead_ms: int = 0,
        fraction: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`batches`: the state as it was persisted; where they say nothing, nobody has had the records yet.

        `fraction`: from 0 up to 1, and never the same, so that what waits does not all wait equally long.
        """
        self.limits = limits
        self.keys: KeyOrder | None = None  # once the keys of all open records are known: `learn`
        self._fraction = fraction
        self._wall_ahead_ms = wall_ahead_ms
        self._runs = Runs(start_offset)
        self._open = 0  # records in the window that were delivered and are not done
        self._unseen = 0  # that were not delivered, and are not done
        self._archiving = 0  # open ones whose dead letter is not written
        self._has_waits = False
        self._dirty: list[tuple[int, int]] = []
        self._freed: list[tuple[int, int]] = []  # records that are done, whose keys others may wait for
        self._deleted_before = 0  # the log has dropped what is before, whoever held it
        self._available_from = start_offset  # no AVAILABLE run that need not wait begins before
        self._looked_up_to = 0  # by the last who acquired
        self._deadline_ms: int | None = None  # no lock ends earlier, no delay either
        for batch in batches:
            self._restore(batch, now_ms)
        self._runs.drop_done()

    @property
    def start_offset(self) -> int:
        return self._runs.start

    @property
    def next_offset(self) -> int:
        return self._runs.next

    @property
    def open_count(self) -> int:
        return self._open

    @property
    def done_count(self) -> int:
        """Offsets in the window that are done (KIP-1226: what the lag leaves out); elsewhere it is an int32."""
        return min(self._runs.next - self._runs.start - self._open - self._unseen, _DONE_MAX)

    @property
    def run_count(self) -> int:
        return len(self._runs)

    @property
    def is_crowded(self) -> bool:
        """There is no room for as many times as records have, so that neighbours should share theirs."""
        return len(self._runs) >= RUNS_MAX // 2

    def runs(self) -> list[RecordRun]:
        return list(self._runs)

    def wanted(self, first: int, last: int) -> list[tuple[int, int]]:
        """Of these offsets, those at which a record may be delivered, as far as is known without a look at it."""
        ready = (run for run in self._runs.within(first, last) if run.state is AVAILABLE and not run.until_ms)
        found = [(run.first, run.last) for run in ready]
        return [*found, (self._runs.next, last)] if self._runs.next <= last else found

    @property
    def _has_room(self) -> bool:
        """For a record that is not in the window yet."""
        may_wait = self.keys is None or self.keys.has_room
        return self._open < self.limits.in_flight_max and len(self._runs) < RUNS_MAX and may_wait

    def next_deadline_ms(self) -> int | None:
        """When to call `expire`; perhaps too early, never too late."""
        return self._deadline_ms

    @property
    def has_waits(self) -> bool:
        """Whether something waits for its time, which is one of the wall clock; perhaps said for too long. Locks are
        not written down: they need no clock but their own."""
        return self._has_waits

    def delete_before(self, log_start_offset: int) -> None:
        """The log has dropped its oldest records."""
        if log_start_offset <= self._runs.start:
            return
        self._deleted_before = log_start_offset
        for run in self._runs.drop_below(log_start_offset):
            self._count(run, -1)
            self._freed.append((run.first, run.last))
        self._free_keys()
        self._runs.drop_done()
        self._dirty.append((self._runs.start, self._runs.start - 1))  # the start alone; as in `begin`

    # Dead letters

    @property
    def given_up_count(self) -> int:
        return self._archiving

    def given_up(self, records_max: int, begin: int = 0, but: Sequence[tuple[int, int]] = ()) -> list[RecordRun]:
        """The first records from `begin` on whose dead letters are to be written: `archived`, when they are. `but`:
        those that are to wait; in order."""
        found: list[RecordRun] = []
        if not self._archiving:
            return found
        for run in self._runs:
            if run.state is ARCHIVING and run.last >= begin and records_max > 0:
                for first, last in outside([(max(run.first, begin), run.last)], but):
                    part = run.part(first, min(last, first + records_max - 1))
                    if len(part) > 0:
                        found.append(part)
                        records_max -= len(part)
        return found

    def archived(self, first: int, last: int) -> None:
        """Their dead letters are written; or the log has lost the records meanwhile."""
        for run in self._runs.within(max(first, self._runs.start), last):
            if run.state is ARCHIVING:
                self._finish(max(first, run.first), min(last, run.last), ARCHIVED)
        self._runs.drop_done()

    # What must survive

    def begin(self) -> None:
        """Where it starts was decided just now, and must survive although nothing has happened yet."""
        self._dirty.append((self._runs.start, self._runs.start - 1))

    def follow_wall(self, wall_ahead_ms: int) -> None:
        """If the wall clock was set: what has to wait for so long goes on, and is written down anew; and what has to
        wait for a time of the wall clock is looked at again."""
        if abs(wall_ahead_ms - self._wall_ahead_ms) < _STEP_MS:
            return
        self._wall_ahead_ms = wall_ahead_ms
        for run in list(self._runs):
            if run.state is AVAILABLE and run.until_ms:
                if run.deliveries:
                    self._dirty.append((run.first, run.last))
                elif run.until_ms < NEVER:
                    self._wait_is_over(run)

    @property
    def has_changed(self) -> bool:
        return bool(self._dirty)

    def take_delta(self) -> Delta | None:
        """All that changed since the last time, as it is now."""
        if not self._dirty:
            return None
        ranges, self._dirty = merged(self._dirty), []
        start = self._runs.start
        ranges = [(max(first, start), last) for first, last in ranges if last >= start]
        batches = [to_batch(run, first, last, self._wall_ahead_ms) for run, first, last in self._runs.pieces(ranges)]
        return Delta(start, self.done_count, tuple(batches))

    def _restore(self, batch: StateBatch, now_ms: int) -> None:
        first = max(batch.first, self._runs.next)
        if first > batch.last:
            return
        if first > self._runs.next:
            self._append(RecordRun(self._runs.next, first - 1, AVAILABLE))
        run = to_run(batch, first, self.limits, now_ms, self._wall_ahead_ms)
        if run.until_ms:
            self._note_wait(run.until_ms)
        if run.state != batch.state:
            self._dirty.append((first, batch.last))
        self._append(run)

    # What becomes of records

    def _first_available(self) -> int | None:
        """`expire` was called, so whatever has a time still waits for it."""
        for run in self._runs.within(self._available_from, self._runs.next - 1):
            if run.state is AVAILABLE and not run.until_ms:
                self._available_from = run.first
                return run.first
        self._available_from = self._runs.next
        return None

    def _rounded(self, due_ms: int) -> int:
        """No earlier, and not so exactly that a great many runs would be gone through every millisecond."""
        grain_ms = len(self._runs) // _RUNS_PER_MS + 1
        return -(-due_ms // grain_ms) * grain_ms

    def _finish(self, first: int, last: int, state: RecordState) -> None:
        for run in self._runs.cut(first, last):
            self._become(run, state)
        self._changed(first, last)

    def _give_up(self, first: int, last: int, reason: str) -> None:
        """`_changed` afterwards."""
        for run in self._runs.cut(first, last):
            if self.limits.has_dead_letters:
                self._become(run, ARCHIVING, reason=reason)
            else:
                self._become(run, ARCHIVED)

    def _let_go(self, first: int, last: int, now_ms: int, delay_ms: int | None = None) -> None:
        """Back to the others, perhaps after a while; or given up, if this was the last delivery."""
        for run in self._runs.cut(first, last):
            if run.deliveries >= self.limits.deliveries_max:
                self._give_up(run.first, run.last, SPENT.format(run.deliveries))
                continue
            wait_ms = self.limits.backoff_ms(run.deliveries, self._fraction()) if delay_ms is None else delay_ms
            self._wait_until(run, now_ms + wait_ms if wait_ms else 0)
        self._changed(first, last)

    def _wait_until(self, run: RecordRun, until_ms: int) -> None:
        self._become(run, AVAILABLE, until_ms=until_ms)
        if until_ms:
            self._note_wait(until_ms)
        else:
            self._available_from = min(self._available_from, run.first)

    def _wait_is_over(self, run: RecordRun) -> None:
        run.until_ms = 0
        self._available_from = min(self._available_from, run.first)
        self._runs.join(run.first, run.last)

    def _free_keys(self) -> None:
        """Records that are done let the next ones of their keys go; if these are done too, the next after them. One
        that is in somebody's hands has its turn now: it was delivered before anybody asked for the order of keys."""
        freed, self._freed = self._freed, []
        while freed and self.keys is not None:
            for offset in self.keys.free(*freed.pop()):
                known = self._runs.within(offset, offset)
                if not known or known[0].state not in (AVAILABLE, ACQUIRED):
                    freed.append((offset, offset))
                elif known[0].until_ms == NEVER:
                    for run in self._runs.cut(offset, offset):
                        self._wait_is_over(run)

    def _append(self, run: RecordRun) -> None:
        self._count(run, 1)
        self._runs.append(run)

    def _become(self, run: RecordRun, state: RecordState, *, until_ms: int = 0, reason: str = "") -> None:
        self._count(run, -1)
        run.become(state, until_ms=until_ms, reason=reason)
        self._count(run, 1)
        if state is not AVAILABLE:
            self._freed.append((run.first, run.last))

    def _count(self, run: RecordRun, sign: int) -> None:
        if run.state is ARCHIVING:
            self._archiving += sign * len(run)
        if run.state is AVAILABLE and not run.deliveries:
            self._unseen += sign * len(run)
        elif not run.state.is_done:
            self._open += sign * len(run)

    def _changed(self, first: int, last: int) -> None:
        self._runs.join(first, last)
        self._dirty.append((first, last))
        if self._freed:
            self._free_keys()

    def _note_deadline(self, until_ms: int) -> None:
        if until_ms < NEVER and (self._deadline_ms is None or until_ms < self._deadline_ms):
            self._deadline_ms = until_ms

    def _note_wait(self, until_ms: int) -> None:
        self._has_waits |= until_ms < NEVER
        self._note_deadline(until_ms)
