"""A share-partition as one would write it down first: one entry for each record. The real one must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acknowledgements import Acknowledgement, AcknowledgeType
from clarion.queues.acquisition import Acquired, AcquireMode, Fate, Readable
from clarion.queues.persisted_runs import NEVER
from clarion.queues.rules import ShareLimits


@dataclass
class Entry:
    state: str = "available"
    deliveries: int = 0
    member: str = ""
    until_ms: int = 0
    reason: str = ""

    @property
    def is_done(self) -> bool:
        return self.state in ("acknowledged", "archived")

    @property
    def is_open(self) -> bool:
        return not self.is_done and (self.state != "available" or self.deliveries > 0)


class NaiveSharePartition:
    def __init__(self, limits: ShareLimits, start: int) -> None:
        self.limits = limits
        self.start = start
        self.next = start
        self.entries: dict[int, Entry] = {}
        self.deleted_before = 0
        self.accepted: list[int] = []
        self.keys: dict[int, int] = {}  # of records that were looked at
        self.turns: dict[int, int] = {}  # of a key: the record that is not done before others of it go

    @property
    def open_count(self) -> int:
        return sum(entry.is_open for entry in self.entries.values())

    def fetch_offset(self, now_ms: int) -> int | None:
        self.expire(now_ms)
        for offset in sorted(self.entries):
            if self._is_deliverable(offset, now_ms):
                return offset
        return self.next if self.open_count < self.limits.in_flight_max else None

    def acquire(self, member: str, read: Readable, records_max: int, mode: AcquireMode, now_ms: int) -> list[int]:
        self.expire(now_ms)
        got: list[int] = []
        at = max(read.first, self.start)
        for number, (first, last) in enumerate(read.batches):
            if last < at:
                continue
            is_new = max(first, at) >= self.next
            if len(got) >= records_max or (is_new and self.open_count >= self.limits.in_flight_max):
                break
            self._archive(range(at, first))
            fate = read.fates[number] if read.fates else None
            if fate is None or self._may_take(first, fate, now_ms):
                self._acquire_batch(range(max(first, at), last + 1), records_max, mode, now_ms, got)
            at = last + 1
        else:
            if at <= self.next:
                self._archive(range(at, read.next))
        for offset in got:
            entry = self.entries.setdefault(offset, Entry())
            entry.state, entry.member = "acquired", member
            entry.deliveries += 1
            entry.until_ms = now_ms + self.limits.lock_duration_ms
        self._move_start()
        return got

    def _may_take(self, offset: int, fate: Fate, now_ms: int) -> bool:
        """Of one record."""
        entry = self.entries.get(offset, Entry())
        if offset < self.next and (entry.state != "available" or entry.until_ms):
            return False
        key = fate.key
        if fate.is_unwanted:
            after = Entry("acknowledged", entry.deliveries)
        elif fate.given_up and fate.has_dead_letter:
            after = Entry("archiving", entry.deliveries, reason=fate.given_up)
        elif fate.given_up:
            after = Entry("archived", entry.deliveries, reason=fate.given_up)
        elif fate.due_ms > now_ms:
            after = Entry("available", entry.deliveries, until_ms=fate.due_ms)
        elif key is None or self.turns.setdefault(key, offset) == offset:
            return True
        else:
            self.keys[offset] = key
            after = Entry("available", entry.deliveries, until_ms=NEVER)
        self.entries[offset] = after
        self.next = max(self.next, offset + 1)
        return False

    def _let_keys_go(self) -> None:
        """A record that is done leaves its key's turn to the next that waits for it."""
        for key, holder in list(self.turns.items()):
            if holder in self.entries and self.entries[holder].state in ("available", "acquired"):
                continue
            waiting = [at for at, one in self.entries.items() if one.until_ms == NEVER and self.keys[at] == key]
            del self.turns[key]
            if waiting:
                self.turns[key] = min(waiting)
                self.entries[min(waiting)].until_ms = 0

    def _acquire_batch(self, offsets: range, records_max: int, mode: AcquireMode, now_ms: int, got: list[int]) -> None:
        exact = mode is AcquireMode.RECORD_LIMIT
        for offset in offsets:
            if offset < self.next and (not exact or len(got) < records_max) and self._is_deliverable(offset, now_ms):
                got.append(offset)
                self.entries[offset].state = "acquired"
        fresh = [offset for offset in offsets if offset >= self.next]
        if not fresh or len(got) >= records_max or self.open_count >= self.limits.in_flight_max:
            return
        room = self.limits.in_flight_max - self.open_count
        for offset in fresh[: min(records_max - len(got), room)] if exact else fresh:
            got.append(offset)
            self.entries[offset] = Entry("acquired")
            self.next = offset + 1

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> None:
        self.expire(now_ms)
        types = {
            offset: (one.types[0] if len(one.types) == 1 else one.types[offset - one.first], one)
            for one in acknowledgements
            for offset in range(one.first, one.last + 1)
        }
        for offset in types:
            if offset >= self.deleted_before and not self._is_held(offset, member):
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        for offset, (kind, said) in types.items():
            if offset >= self.start:
                self._acknowledge_one(offset, kind, now_ms, said)
        self._move_start()

    def _acknowledge_one(self, offset: int, kind: int, now_ms: int, said: Acknowledgement) -> None:
        entry = self.entries[offset]
        if kind == AcknowledgeType.RENEW:
            entry.until_ms = now_ms + (said.extend_ms or self.limits.lock_duration_ms)
        elif kind == AcknowledgeType.ACCEPT:
            self.accepted.append(offset)
            self.entries[offset] = Entry("acknowledged", entry.deliveries)
        elif kind == AcknowledgeType.RELEASE:
            self._let_go(offset, now_ms, said.delay_ms)
        elif kind == AcknowledgeType.REJECT:
            self._give_up(offset, said.reason or "rejected")
        else:
            self.entries[offset] = Entry("archived", entry.deliveries)

    def given_up(self) -> list[tuple[int, int, str]]:
        return [
            (offset, one.deliveries, one.reason)
            for offset, one in sorted(self.entries.items())
            if one.state == "archiving"
        ]

    def archived(self, offset: int) -> None:
        if offset in self.entries and self.entries[offset].state == "archiving":
            self.entries[offset] = Entry("archived", self.entries[offset].deliveries)
        self._move_start()

    def give_back(self, member: str) -> None:
        for offset, entry in self.entries.items():
            if self._is_held(offset, member):
                self.entries[offset] = Entry("available", entry.deliveries - 1)

    def release(self, member: str, now_ms: int) -> None:
        for offset in list(self.entries):
            if self._is_held(offset, member):
                self._let_go(offset, now_ms)
        self._move_start()

    def expire(self, now_ms: int) -> None:
        for offset, entry in list(self.entries.items()):
            if entry.until_ms and entry.until_ms <= now_ms:
                if entry.state == "acquired":
                    self._let_go(offset, now_ms)
                else:
                    entry.until_ms = 0
        self._move_start()

    def delete_before(self, offset: int) -> None:
        if offset > self.start:
            self.deleted_before = offset
            self.entries = {at: entry for at, entry in self.entries.items() if at >= offset}
            self.start, self.next = offset, max(offset, self.next)
            self._move_start()

    def forget_unseen(self, next_offset: int) -> None:
        """From there on nobody has had a record, and whoever takes over looks at them itself."""
        unseen = [self.entries.pop(at) for at in sorted(self.entries) if at >= next_offset]
        assert not any(one.deliveries or one.state != "available" for one in unseen)
        self.next = next_offset

    def crash(self, now_ms: int, later_ms: int) -> NaiveSharePartition:
        """As the next leader finds it, whose clock shows so much more: nobody holds anything, and what was under way
        for the last time is given up."""
        after = NaiveSharePartition(self.limits, self.start)
        after.next, after.accepted = self.next, self.accepted
        for offset, entry in self.entries.items():
            waits = entry.state == "available" and entry.until_ms > now_ms
            waits = waits and entry.deliveries > 0
            state = "available" if entry.state == "acquired" else entry.state
            until_ms = entry.until_ms + later_ms if waits else 0
            after.entries[offset] = replace(entry, state=state, member="", until_ms=until_ms)
            if state == "available" and entry.deliveries >= self.limits.deliveries_max:
                after._give_up(offset, f"not acknowledged after {entry.deliveries} deliveries")
        after._move_start()
        for offset, entry in sorted(after.entries.items()):
            if entry.state == "available" and entry.deliveries and self.limits.keeps_key_order:
                after.turns.setdefault(key_of(offset), offset)
        return after

    def _is_deliverable(self, offset: int, now_ms: int) -> bool:
        entry = self.entries[offset]
        return entry.state == "available" and entry.until_ms <= now_ms

    def _is_held(self, offset: int, member: str) -> bool:
        entry = self.entries.get(offset)
        return entry is not None and entry.state == "acquired" and entry.member == member

    def _archive(self, offsets: range) -> None:
        for offset in offsets:
            if offset >= self.next:
                self.entries[offset] = Entry("archived")
                self.next = offset + 1
            elif offset in self.entries and self.entries[offset].state == "available":
                self.entries[offset] = Entry("archived", self.entries[offset].deliveries)

    def _let_go(self, offset: int, now_ms: int, delay_ms: int = -1) -> None:
        deliveries = self.entries[offset].deliveries
        if deliveries >= self.limits.deliveries_max:
            self._give_up(offset, f"not acknowledged after {deliveries} deliveries")
            return
        if delay_ms < 0:
            delay_ms = min(self.limits.backoff_min_ms * 2 ** (deliveries - 1), self.limits.backoff_max_ms)
        self.entries[offset] = Entry("available", deliveries, until_ms=now_ms + delay_ms if delay_ms else 0)

    def _give_up(self, offset: int, reason: str) -> None:
        deliveries = self.entries[offset].deliveries
        if self.limits.has_dead_letters:
            self.entries[offset] = Entry("archiving", deliveries, reason=reason)
        else:
            self.entries[offset] = Entry("archived", deliveries)

    def _move_start(self) -> None:
        self._let_keys_go()
        while self.start < self.next and self.entries[self.start].is_done:
            del self.entries[self.start]
            self.start += 1


def key_of(offset: int) -> int:
    """The key of each record, where a test has keys."""
    return offset % 3


def offsets_of(acquired: list[Acquired]) -> list[int]:
    return [offset for one in acquired for offset in range(one.first, one.last + 1)]
