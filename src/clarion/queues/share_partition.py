"""One partition as one share group sees it: which records are available, in whose hands, done, or given up (KIP-932).

    AVAILABLE ──acquire: a delivery more──▶ ACQUIRED ──accept──▶ ACKNOWLEDGED
        ▲                                     │ │ └────reject, gap──▶ ARCHIVED
        └── release, lock timeout, lost member┘ └── the same, after the last delivery ──▶ ARCHIVED

A renewal begins the lock anew. When a member says that it goes (`give_back`), what it still holds was fetched and never
worked on: those deliveries are taken back, as in Kafka. If it is lost (`release`), they count: a record that kills
whoever reads it must come to its last delivery.

The window goes from `start_offset`, the first record that is not done, to `next_offset`, the first that was never
acquired. Its limit is the number of records in it that are not done: one that is stuck holds up no others, and the runs
between the open ones are done and cost one entry each.

What must survive is taken out with `take_delta`: the runs that changed, as they are by then. Every acquisition is among
them, as AVAILABLE with its delivery counted: whoever takes over after a crash finds it as if its lock had ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acknowledgements import Acknowledgement, AcknowledgeType, by_type
from clarion.queues.runs import RecordRun, RecordState, Runs
from clarion.queues.state_batches import Delta, StateBatch

_DONE_MAX: Final = 2**31 - 1
BATCH_MAX: Final = 10_000  # of a longer batch no more are taken at a time: as many as the largest window of a group

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


class AcquireMode(IntEnum):
    """Kafka's numbers."""

    BATCH_OPTIMIZED = 0  # whole batches of the log (up to BATCH_MAX); the last may go beyond the number asked for
    RECORD_LIMIT = 1  # never more records than asked for


class ShareLimits(NamedTuple):
    """The group's settings; they may change while records are in flight."""

    lock_duration_ms: int
    deliveries_max: int
    in_flight_max: int


class Readable(NamedTuple):
    """What was read from the log: from `first` on, up to before `next`. What is in no batch is not there to deliver."""

    first: int
    next: int
    batches: Sequence[tuple[int, int]]  # the first and last offset of each that has records for readers, in order


class Acquired(NamedTuple):
    first: int
    last: int
    deliveries: int


class SharePartition:
    def __init__(self, limits: ShareLimits, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        """`batches`: the state as it was persisted; where they say nothing, nobody has had the records yet."""
        self.limits = limits
        self._runs = Runs(start_offset)
        self._open = 0  # records in the window that are not done
        self._dirty: list[tuple[int, int]] = []
        self._deleted_before = 0  # the log has dropped what is before, whoever held it
        self._available_from = start_offset  # no AVAILABLE run begins before
        self._deadline_ms: int | None = None  # no lock ends earlier, no delay either
        for batch in batches:
            self._restore(batch)
        self._runs.drop_done()

    @property
    def start_offset(self) -> int:
        return self._runs.start

    @property
    def next_offset(self) -> int:
        return self._runs.next

    @property
    def open_count(self) -> int:
        """Records that were acquired once and are not done."""
        return self._open

    @property
    def done_count(self) -> int:
        """Offsets in the window that are done (KIP-1226: what the lag leaves out); elsewhere it is an int32."""
        return min(self._runs.next - self._runs.start - self._open, _DONE_MAX)

    @property
    def run_count(self) -> int:
        return len(self._runs)

    def runs(self) -> list[RecordRun]:
        return list(self._runs)

    # Acquiring

    def fetch_offset(self, now_ms: int) -> int | None:
        """Where to read next: the first record that may be delivered. None while the window is full."""
        self.expire(now_ms)
        first = self._first_available(now_ms)
        if first is not None:
            return first
        return self._runs.next if self._open < self.limits.in_flight_max else None

    def acquire(self, member: str, read: Readable, records_max: int, mode: AcquireMode, now_ms: int) -> list[Acquired]:
        """Give a member what it may have of what was read. Other members may have taken some of it meanwhile."""
        self.expire(now_ms)
        taker = _Taker(member, now_ms, now_ms + self.limits.lock_duration_ms, records_max, mode, [])
        at = max(read.first, self._runs.start)
        for first, last in read.batches:
            if last < at:
                continue
            if taker.is_satisfied or not self._has_room_at(max(first, at)):
                break
            self._archive_absent(at, first - 1)
            self._take(taker, max(first, at), last)
            if self._runs.next <= last:
                break  # some of it is left for the next
            at = last + 1
        else:
            self._archive_absent(at, read.next - 1)
        if taker.acquired:
            self._note_deadline(taker.until_ms)
        self._runs.drop_done()
        return taker.acquired

    def _has_room_at(self, offset: int) -> bool:
        """Records of the window may always be delivered again."""
        return offset < self._runs.next or self._open < self.limits.in_flight_max

    def _take(self, taker: _Taker, first: int, last: int) -> None:
        known_last = min(last, self._runs.next - 1)
        if first <= known_last:
            self._take_again(taker, first, known_last)
        first = max(first, self._runs.next)
        if first > last or taker.is_satisfied or self._open >= self.limits.in_flight_max:
            return
        if taker.mode is AcquireMode.RECORD_LIMIT:
            last = min(last, first + min(taker.left, self.limits.in_flight_max - self._open) - 1)
        last = min(last, first + BATCH_MAX - 1)
        self._runs.append(RecordRun(first, last, ACQUIRED, 1, taker.member, taker.until_ms))
        self._open += last - first + 1
        self._dirty.append((first, last))
        taker.got(first, last, 1)

    def _take_again(self, taker: _Taker, first: int, last: int) -> None:
        for run in self._runs.within(max(first, self._available_from), last):
            if taker.is_satisfied and taker.mode is AcquireMode.RECORD_LIMIT:
                break
            if run.state is not AVAILABLE or run.until_ms > taker.now_ms:
                continue
            from_, to = max(run.first, first), min(run.last, last)
            if taker.mode is AcquireMode.RECORD_LIMIT:
                to = min(to, from_ + taker.left - 1)
            for part in self._runs.cut(from_, to):
                part.state, part.deliveries = ACQUIRED, part.deliveries + 1
                part.member, part.until_ms = taker.member, taker.until_ms
                taker.got(part.first, part.last, part.deliveries)
            self._changed(from_, to)

    def _archive_absent(self, first: int, last: int) -> None:
        """Where the log has nothing, nobody need look again."""
        for run in self._runs.within(first, last):
            if run.state is AVAILABLE:
                self._finish(max(run.first, first), min(run.last, last), ARCHIVED)
        if first <= self._runs.next <= last:
            self._dirty.append((self._runs.next, last))
            self._runs.append(RecordRun(self._runs.next, last, ARCHIVED))

    # Acknowledging

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> None:
        """All of it, or none: a record that is not in this member's hands makes it INVALID_RECORD_STATE."""
        self.expire(now_ms)
        for one in acknowledgements:
            self._check_held(member, one.first, one.last)
        start = self._runs.start
        for one in acknowledgements:
            for first, last, kind in by_type(one):
                self._apply(max(first, start), last, kind, now_ms, one.delay_ms)
        self._runs.drop_done()

    def _check_held(self, member: str, first: int, last: int) -> None:
        """What the log has dropped meanwhile does no harm; what else is before the start is done already."""
        if last >= self._runs.next:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"offset {last} was never acquired")
        first = max(first, self._deleted_before)
        if first <= last and first < self._runs.start:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"offset {first} is done already")
        for run in self._runs.within(max(first, self._runs.start), last):
            if run.state is not ACQUIRED or run.member != member:
                refused = f"offset {max(first, run.first)} is not acquired by this member"
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, refused)

    def _apply(self, first: int, last: int, kind: int, now_ms: int, delay_ms: int) -> None:
        if first > last:
            return
        match kind:
            case AcknowledgeType.ACCEPT:
                self._finish(first, last, ACKNOWLEDGED)
            case AcknowledgeType.RELEASE:
                self._let_go(first, last, now_ms + delay_ms if delay_ms else 0)
            case AcknowledgeType.RENEW:
                self._renew(first, last, now_ms + self.limits.lock_duration_ms)
            case _:
                self._finish(first, last, ARCHIVED)

    def _renew(self, first: int, last: int, until_ms: int) -> None:
        for run in self._runs.cut(first, last):
            run.until_ms = until_ms
        self._runs.join(first, last)
        self._note_deadline(until_ms)

    # Letting go

    def give_back(self, member: str) -> None:
        """The member goes, and says so: what it holds it has not worked on."""
        for run in [run for run in self._runs if run.state is ACQUIRED and run.member == member]:
            run.deliveries -= 1
            run.state, run.member, run.until_ms = AVAILABLE, "", 0
            self._available_from = min(self._available_from, run.first)
            self._changed(run.first, run.last)

    def release(self, member: str) -> None:
        """The member is lost."""
        for run in [run for run in self._runs if run.state is ACQUIRED and run.member == member]:
            self._let_go(run.first, run.last, 0)
        self._runs.drop_done()

    def expire(self, now_ms: int) -> bool:
        """Take back what was held for too long. Whether there is something to deliver that was not before."""
        if self._deadline_ms is None or self._deadline_ms > now_ms:
            return False
        self._deadline_ms = None
        is_news = False
        for run in list(self._runs):
            if run.until_ms and run.until_ms <= now_ms:
                is_news = True
                if run.state is ACQUIRED:
                    self._let_go(run.first, run.last, 0)
                else:
                    run.until_ms = 0
                    self._runs.join(run.first, run.last)
            elif run.until_ms:
                self._note_deadline(run.until_ms)
        self._runs.drop_done()
        return is_news

    def next_deadline_ms(self) -> int | None:
        """When to call `expire`; perhaps too early, never too late."""
        return self._deadline_ms

    def delete_before(self, log_start_offset: int) -> None:
        """The log has dropped its oldest records."""
        if log_start_offset <= self._runs.start:
            return
        self._deleted_before = log_start_offset
        gone = self._runs.drop_below(log_start_offset)
        self._open -= sum(len(run) for run in gone if not run.state.is_done)
        self._runs.drop_done()
        self._dirty.append((self._runs.start, self._runs.start - 1))  # the start alone; as in `begin`

    # What must survive

    def begin(self) -> None:
        """Where it starts was decided just now, and must survive although nothing has happened yet."""
        self._dirty.append((self._runs.start, self._runs.start - 1))

    @property
    def has_changed(self) -> bool:
        return bool(self._dirty)

    def take_delta(self) -> Delta | None:
        """All that changed since the last time, as it is now."""
        if not self._dirty:
            return None
        ranges, self._dirty = _merged(self._dirty), []
        start = self._runs.start
        batches = [
            StateBatch(max(run.first, first), min(run.last, last), _persisted(run.state), run.deliveries)
            for first, last in ((max(first, start), last) for first, last in ranges)
            if first <= last
            for run in self._runs.within(first, last)
        ]
        return Delta(start, self.done_count, tuple(batches))

    # Helpers

    def _first_available(self, now_ms: int) -> int | None:
        first = None
        for run in self._runs.within(self._available_from, self._runs.next - 1):
            if run.state is not AVAILABLE:
                continue
            if first is None:
                first = self._available_from = run.first
            if run.until_ms <= now_ms:
                return run.first
        if first is None:
            self._available_from = self._runs.next
        return None

    def _finish(self, first: int, last: int, state: RecordState) -> None:
        for run in self._runs.cut(first, last):
            self._open -= len(run)
            run.state, run.member, run.until_ms = state, "", 0
        self._changed(first, last)

    def _let_go(self, first: int, last: int, until_ms: int) -> None:
        """Back to the others; or given up, if this was the last delivery."""
        for run in self._runs.cut(first, last):
            run.member, run.until_ms = "", 0
            if run.deliveries >= self.limits.deliveries_max:
                run.state = ARCHIVED
                self._open -= len(run)
            else:
                run.state, run.until_ms = AVAILABLE, until_ms
                self._available_from = min(self._available_from, run.first)
        if until_ms:
            self._note_deadline(until_ms)
        self._changed(first, last)

    def _changed(self, first: int, last: int) -> None:
        self._runs.join(first, last)
        self._dirty.append((first, last))

    def _note_deadline(self, until_ms: int) -> None:
        if self._deadline_ms is None or until_ms < self._deadline_ms:
            self._deadline_ms = until_ms

    def _restore(self, batch: StateBatch) -> None:
        first = max(batch.first, self._runs.next)
        if first > batch.last:
            return
        if first > self._runs.next:
            self._open += first - self._runs.next
            self._runs.append(RecordRun(self._runs.next, first - 1, AVAILABLE))
        state = RecordState(batch.state)
        is_spent = state is AVAILABLE and batch.deliveries >= self.limits.deliveries_max
        if is_spent:  # its last delivery was under way when the leader before this one ended
            state = ARCHIVED
            self._dirty.append((first, batch.last))
        self._runs.append(RecordRun(first, batch.last, state, batch.deliveries))
        if not state.is_done:
            self._open += batch.last - first + 1


class _Taker:
    """Who acquires, how much is left for it, and what it has got."""

    __slots__ = ("acquired", "left", "member", "mode", "now_ms", "until_ms")

    def __init__(
        self, member: str, now_ms: int, until_ms: int, records_max: int, mode: AcquireMode, acquired: list[Acquired]
    ) -> None:
        self.member = member
        self.now_ms = now_ms
        self.until_ms = until_ms
        self.left = records_max
        self.mode = mode
        self.acquired = acquired

    @property
    def is_satisfied(self) -> bool:
        return self.left <= 0

    def got(self, first: int, last: int, deliveries: int) -> None:
        self.left -= last - first + 1
        before = self.acquired[-1] if self.acquired else None
        if before is not None and before.last + 1 == first and before.deliveries == deliveries:
            self.acquired[-1] = Acquired(before.first, last, deliveries)
        else:
            self.acquired.append(Acquired(first, last, deliveries))


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _persisted(state: RecordState) -> RecordState:
    return AVAILABLE if state is ACQUIRED else state
