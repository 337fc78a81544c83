"""One partition as one share group sees it: which records are available, in whose hands, done, or given up (KIP-932).

    AVAILABLE ──acquire: a delivery more──▶ ACQUIRED ──accept──▶ ACKNOWLEDGED
        ▲                                     │ │ └────reject────────────────────────────┐
        └── release, lock timeout, lost member┘ └── the same, after the last delivery ───┴▶ ARCHIVING ▶ ARCHIVED

ARCHIVING is a record that is given up and whose dead letter is not written yet (`given_up`, `archived`); without dead
letters it is ARCHIVED at once. A renewal begins the lock anew. What comes to nothing may have to wait before it comes
again: as long as the member says, or the rules (`ShareLimits.backoff_ms`). When a member says that it goes
(`give_back`), what it still holds was fetched and never worked on: those deliveries are taken back, as in Kafka. If it
is lost (`release`), they count: a record that kills whoever reads it must come to its last delivery.

What is known of the records, and what of it must survive: `share_window`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acknowledgements import RULES_DECIDE, Acknowledgement, AcknowledgeType, accepted_spans, by_type
from clarion.queues.acquisition import Acquired, AcquireMode, Fate, Readable, Taker
from clarion.queues.key_order import KeyOrder
from clarion.queues.persisted_runs import NEVER
from clarion.queues.rules import ShareLimits
from clarion.queues.runs import RecordRun, RecordState
from clarion.queues.share_window import ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, ShareWindow

BATCH_MAX: Final = 10_000  # of a longer batch no more are taken at a time: as many as the largest window of a group
REJECTED: Final = "rejected"  # why, if whoever rejects it does not say
_CROWD: Final = 1_000  # runs: fewer are few reads, and none is away for long
_MANY: Final = 4  # acknowledgements, from which on one pass over the runs is cheaper than looking for each


class SharePartition(ShareWindow):
    def use(self, limits: ShareLimits) -> None:
        """The group's rules as they are now."""
        if self.limits.keeps_key_order and not limits.keeps_key_order:
            self.keys = None
            for run in [run for run in self._runs if run.until_ms == NEVER]:
                self._wait_is_over(run)
        self.limits = limits

    # Acquiring

    def fetch_offset(self, now_ms: int, end: int = NEVER) -> int | None:
        """Where to read next: the first record that may be delivered. None while the window is full. `end`: from there
        on the log has nothing."""
        self.expire(now_ms)
        first = self._first_available()
        if first is None:
            return self._runs.next if self._has_room else None
        if self._looked_up_to > first and len(self._runs) > _CROWD and self.keys is None:
            return self._in_turn(first, end)
        return first

    def _in_turn(self, first: int, end: int) -> int:
        """Of a crowd everybody has a turn, and so has what nobody has looked at yet: else those that fall due all the
        time keep the later ones from theirs. (Where keys have an order, earlier records have to be seen earlier.)"""
        for run in self._runs.within(self._looked_up_to, self._runs.next - 1):
            if run.state is AVAILABLE and not run.until_ms:
                return max(run.first, self._looked_up_to)
        return self._runs.next if self._runs.next < end and self._has_room else first

    def acquire(self, member: str, read: Readable, records_max: int, mode: AcquireMode, now_ms: int) -> list[Acquired]:
        """Give a member what it may have of what was read. Other members may have taken some of it meanwhile."""
        self.expire(now_ms)
        taker = Taker(member, now_ms, now_ms + self.limits.lock_duration_ms, records_max, mode)
        at, before = max(read.first, self._runs.start), self._runs.next
        for number, (first, last) in enumerate(read.batches):
            if last < at:
                continue
            if taker.is_satisfied or not self._has_room_at(max(first, at)):
                break
            self._archive_absent(at, first - 1)
            fate = read.fates[number] if read.fates else None
            if fate is None or self._may_take(max(first, at), last, fate, now_ms):
                self._take(taker, max(first, at), last)
            if self._runs.next <= last:
                break  # some of it is left for the next
            at = last + 1
        else:
            self._archive_absent(at, read.next - 1)
        self._looked_up_to = taker.acquired[-1].last + 1 if taker.is_satisfied and taker.acquired else read.next
        if self._runs.next > before:
            self._looked_up_to = 0  # it was the turn of what nobody had looked at
        if taker.acquired:
            self._note_deadline(taker.until_ms)
        self._runs.drop_done()
        return taker.acquired

    def _has_room_at(self, offset: int) -> bool:
        """Records of the window may always be delivered again."""
        return offset < self._runs.next or self._has_room

    def _may_take(self, first: int, last: int, fate: Fate, now_ms: int) -> bool:
        """Whether records are to be delivered now, after what a look at them has shown; else it is noted what else."""
        if fate.is_passed:
            return False
        known = self._runs.within(first, min(last, self._runs.next - 1))
        if last < self._runs.next and not any(run.state is AVAILABLE and not run.until_ms for run in known):
            return False  # somebody else has it by now
        if fate.is_unwanted:
            self._decide(first, last, ACKNOWLEDGED)
        elif fate.given_up:
            self._decide(first, last, ARCHIVING if fate.has_dead_letter else ARCHIVED, reason=fate.given_up)
        elif fate.due_ms > now_ms:
            self._decide(first, last, AVAILABLE, self._rounded(fate.due_ms))
        elif fate.key is None or self.keys is None or self.keys.claim(fate.key, first):
            return True
        else:
            self.keys.wait(fate.key, first)
            self._decide(first, last, AVAILABLE, NEVER)
        return False

    def _decide(self, first: int, last: int, state: RecordState, until_ms: int = 0, reason: str = "") -> None:
        """What becomes of these records, as far as they could have been delivered."""
        for run in self._runs.within(first, last):
            if run.state is AVAILABLE and not run.until_ms:
                from_, to = max(run.first, first), min(run.last, last)
                for part in self._runs.cut(from_, to):
                    self._become(part, state, until_ms=until_ms, reason=reason)
                if state is AVAILABLE and not run.deliveries:
                    self._runs.join(from_, to)
                else:
                    self._changed(from_, to)
        if self._runs.next <= last:
            from_ = self._runs.next
            self._append(RecordRun(from_, last, state, until_ms=until_ms, reason=reason))
            if state is not AVAILABLE:
                self._dirty.append((from_, last))
        if until_ms:
            self._note_wait(until_ms)

    def _take(self, taker: Taker, first: int, last: int) -> None:
        known_last = min(last, self._runs.next - 1)
        if first <= known_last:
            self._take_again(taker, first, known_last)
        first = max(first, self._runs.next)
        if first > last or taker.is_satisfied or not self._has_room:
            return
        if taker.mode is AcquireMode.RECORD_LIMIT:
            last = min(last, first + min(taker.left, self.limits.in_flight_max - self._open) - 1)
        last = min(last, first + BATCH_MAX - 1)
        self._append(RecordRun(first, last, ACQUIRED, 1, taker.member, taker.until_ms))
        self._dirty.append((first, last))
        taker.got(first, last, 1)

    def _take_again(self, taker: Taker, first: int, last: int) -> None:
        for run in self._runs.within(max(first, self._available_from), last):
            if taker.is_satisfied and taker.mode is AcquireMode.RECORD_LIMIT:
                break
            if run.state is not AVAILABLE or run.until_ms:
                continue
            from_, to = max(run.first, first), min(run.last, last)
            if taker.mode is AcquireMode.RECORD_LIMIT:
                to = min(to, from_ + taker.left - 1)
            for part in self._runs.cut(from_, to):
                self._count(part, -1)
                part.state, part.deliveries = ACQUIRED, part.deliveries + 1
                part.member, part.until_ms = taker.member, taker.until_ms
                self._count(part, 1)
                taker.got(part.first, part.last, part.deliveries)
            self._changed(from_, to)

    def _archive_absent(self, first: int, last: int) -> None:
        """Where the log has nothing, nobody need look again."""
        for run in self._runs.within(first, last):
            if run.state is AVAILABLE:
                self._finish(max(run.first, first), min(run.last, last), ARCHIVED)
        if first <= self._runs.next <= last:
            self._dirty.append((self._runs.next, last))
            self._append(RecordRun(self._runs.next, last, ARCHIVED))

    # Acknowledging

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> None:
        """All of it, or none: a record that is not in this member's hands makes it INVALID_RECORD_STATE."""
        self.expire(now_ms)
        if len(acknowledgements) >= _MANY:
            spans = accepted_spans(acknowledgements)
            if spans is not None and self._runs.start <= spans[0][0] and spans[-1][1] < self._runs.next:
                self._accept_each(member, spans)
                return
        for one in acknowledgements:
            self._check_held(member, one.first, one.last, one.deliveries)
        start = self._runs.start
        for one in acknowledgements:
            for first, last, kind in by_type(one):
                if max(first, start) <= last:
                    self._apply(max(first, start), last, kind, now_ms, one)
        self._runs.drop_done()

    def _accept_each(self, member: str, spans: list[tuple[int, int]]) -> None:
        """The same as one by one, in one pass. What is refused is so before anything has changed."""

        def check(run: RecordRun) -> None:
            if run.state is not ACQUIRED or run.member != member:
                refused = f"an offset from {run.first} to {run.last} is not acquired by this member"
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, refused)

        self._runs.finish_each(spans, ACKNOWLEDGED, check)
        self._open -= sum([last - first + 1 for first, last in spans])
        self._dirty += spans
        if self.keys is not None:
            self._freed += spans
            self._free_keys()
        self._runs.drop_done()

    def _check_held(self, member: str, first: int, last: int, deliveries: int) -> None:
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
            if deliveries and run.deliveries != deliveries:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"offset {first} was delivered again since")

    def _apply(self, first: int, last: int, kind: int, now_ms: int, said: Acknowledgement) -> None:
        match kind:
            case AcknowledgeType.ACCEPT:
                self._finish(first, last, ACKNOWLEDGED)
            case AcknowledgeType.RELEASE:
                self._let_go(first, last, now_ms, None if said.delay_ms == RULES_DECIDE else said.delay_ms)
            case AcknowledgeType.RENEW:
                self._renew(first, last, now_ms + (said.extend_ms or self.limits.lock_duration_ms))
            case AcknowledgeType.REJECT:
                self._give_up(first, last, said.reason or REJECTED)
                self._changed(first, last)
            case _:
                self._finish(first, last, ARCHIVED)

    def _renew(self, first: int, last: int, until_ms: int) -> None:
        for run in self._runs.cut(first, last):
            run.until_ms = until_ms
        self._runs.join(first, last)
        self._note_deadline(until_ms)

    # Letting go

    def give_back(self, member: str, acquired: Sequence[Acquired] | None = None) -> None:
        """The member goes, and says so: what it holds, or these deliveries of it, it has not worked on."""
        everything = [Acquired(self._runs.start, self._runs.next - 1, 0)]
        for first, last, deliveries in everything if acquired is None else acquired:
            for run in self._runs.within(max(first, self._runs.start), last):
                if run.state is ACQUIRED and run.member == member and deliveries in (0, run.deliveries):
                    from_, to = max(run.first, first), min(run.last, last)
                    for part in self._runs.cut(from_, to):
                        self._count(part, -1)
                        part.deliveries -= 1
                        self._count(part, 1)
                        self._wait_until(part, 0)
                    self._changed(from_, to)

    def release(self, member: str, now_ms: int) -> None:
        """The member is lost."""
        for run in [run for run in self._runs if run.state is ACQUIRED and run.member == member]:
            self._let_go(run.first, run.last, now_ms)
        self._runs.drop_done()

    def expire(self, now_ms: int) -> bool:
        """Take back what was held for too long. Whether there is something to deliver that was not before."""
        if self._deadline_ms is None or self._deadline_ms > now_ms:
            return False
        self._deadline_ms = None
        self._has_waits = is_news = False
        for run in list(self._runs):
            if run.until_ms and run.until_ms <= now_ms:
                is_news = True
                if run.state is ACQUIRED:
                    self._let_go(run.first, run.last, now_ms)
                else:
                    self._wait_is_over(run)
            elif run.state is AVAILABLE and run.until_ms:
                self._note_wait(run.until_ms)
            elif run.until_ms:
                self._note_deadline(run.until_ms)
        self._runs.drop_done()
        return is_news

    # Keys

    def without_keys(self) -> list[tuple[int, int]]:
        """Records that were delivered before anybody asked for the order of keys, or by another leader: theirs have to
        be learnt first."""
        is_open = (run for run in self._runs if run.deliveries and run.state in (AVAILABLE, ACQUIRED))
        return [(run.first, run.last) for run in is_open]

    def learn(self, keys: Sequence[tuple[int, int]]) -> None:
        """(offset, key) of those, in order. From now on the order is kept; several of a key may be under way still."""
        if not self.limits.keeps_key_order:
            return  # any more: what is delivered from now on would not be known
        self.keys = KeyOrder()
        for offset, key in keys:
            is_open = any(run.state in (AVAILABLE, ACQUIRED) for run in self._runs.within(offset, offset))
            if is_open and not self.keys.claim(key, offset):
                self.keys.wait(key, offset)
