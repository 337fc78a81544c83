"""A share-partition as one would write it down first: one entry for each record. The real one must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acknowledgements import Acknowledgement, AcknowledgeType
from clarion.queues.share_partition import (
    Acquired,
    AcquireMode,
    Readable,
    ShareLimits,
)


@dataclass
class Entry:
    state: str = "available"
    deliveries: int = 0
    member: str = ""
    until_ms: int = 0

    @property
    def is_done(self) -> bool:
        return self.state in ("acknowledged", "archived")


class NaiveSharePartition:
    def __init__(self, limits: ShareLimits, start: int) -> None:
        self.limits = limits
        self.start = start
        self.next = start
        self.entries: dict[int, Entry] = {}
        self.deleted_before = 0
        self.accepted: list[int] = []

    @property
    def open_count(self) -> int:
        return sum(not entry.is_done for entry in self.entries.values())

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
        for first, last in read.batches:
            if last < at:
                continue
            is_new = max(first, at) >= self.next
            if len(got) >= records_max or (is_new and self.open_count >= self.limits.in_flight_max):
                break
            self._archive(range(at, first))
            self._acquire_batch(member, range(max(first, at), last + 1), records_max, mode, now_ms, got)
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

    def _acquire_batch(
        self, member: str, offsets: range, records_max: int, mode: AcquireMode, now_ms: int, got: list[int]
    ) -> None:
        exact = mode is AcquireMode.RECORD_LIMIT
        for offset in offsets:
            if offset < self.next and (not exact or len(got) < records_max) and self._is_deliverable(offset, now_ms):
                got.append(offset)
        fresh = [offset for offset in offsets if offset >= self.next]
        if not fresh or len(got) >= records_max or self.open_count >= self.limits.in_flight_max:
            return
        room = self.limits.in_flight_max - self.open_count
        for offset in fresh[: min(records_max - len(got), room)] if exact else fresh:
            got.append(offset)
            self.entries[offset] = Entry()
            self.next = offset + 1

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> None:
        self.expire(now_ms)
        types = {
            offset: (one.types[0] if len(one.types) == 1 else one.types[offset - one.first], one.delay_ms)
            for one in acknowledgements
            for offset in range(one.first, one.last + 1)
        }
        for offset in types:
            if offset >= self.deleted_before and not self._is_held(offset, member):
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        for offset, (kind, delay_ms) in types.items():
            if offset >= self.start:
                self._acknowledge_one(offset, kind, now_ms, delay_ms)
        self._move_start()

    def _acknowledge_one(self, offset: int, kind: int, now_ms: int, delay_ms: int) -> None:
        entry = self.entries[offset]
        if kind == AcknowledgeType.RENEW:
            entry.until_ms = now_ms + self.limits.lock_duration_ms
        elif kind == AcknowledgeType.ACCEPT:
            self.accepted.append(offset)
            self.entries[offset] = Entry("acknowledged", entry.deliveries)
        elif kind == AcknowledgeType.RELEASE:
            self._let_go(offset, now_ms + delay_ms if delay_ms else 0)
        else:
            self.entries[offset] = Entry("archived", entry.deliveries)

    def give_back(self, member: str) -> None:
        for offset, entry in self.entries.items():
            if self._is_held(offset, member):
                self.entries[offset] = Entry("available", entry.deliveries - 1)

    def release(self, member: str) -> None:
        for offset in list(self.entries):
            if self._is_held(offset, member):
                self._let_go(offset, 0)
        self._move_start()

    def expire(self, now_ms: int) -> None:
        for offset, entry in list(self.entries.items()):
            if entry.until_ms and entry.until_ms <= now_ms:
                if entry.state == "acquired":
                    self._let_go(offset, 0)
                else:
                    entry.until_ms = 0
        self._move_start()

    def delete_before(self, offset: int) -> None:
        if offset > self.start:
            self.deleted_before = offset
            self.entries = {at: entry for at, entry in self.entries.items() if at >= offset}
            self.start, self.next = offset, max(offset, self.next)
            self._move_start()

    def crash(self) -> NaiveSharePartition:
        """As the next leader finds it: nobody holds anything, and what was under way for the last time is given up."""
        after = NaiveSharePartition(self.limits, self.start)
        after.next, after.accepted = self.next, self.accepted
        for offset, entry in self.entries.items():
            is_spent = not entry.is_done and entry.deliveries >= self.limits.deliveries_max
            state = "archived" if is_spent else entry.state if entry.is_done else "available"
            after.entries[offset] = replace(entry, state=state, member="", until_ms=0)
        after._move_start()
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

    def _let_go(self, offset: int, until_ms: int) -> None:
        deliveries = self.entries[offset].deliveries
        if deliveries >= self.limits.deliveries_max:
            self.entries[offset] = Entry("archived", deliveries)
        else:
            self.entries[offset] = Entry("available", deliveries, until_ms=until_ms)

    def _move_start(self) -> None:
        while self.start < self.next and self.entries[self.start].is_done:
            del self.entries[self.start]
            self.start += 1


def offsets_of(acquired: list[Acquired]) -> list[int]:
    return [offset for one in acquired for offset in range(one.first, one.last + 1)]
