"""How far the reading of a range of offsets has come, and whether what does not come is starved, late or lost. Pure.

An answer that brings nothing of a partition means one of three things:

starved    other partitions filled the answer, and the log goes on: no reason to doubt. It is asked for first next time
late       the log ends before the range does, or the whole answer is empty: a leader that was elected a moment ago may
           not know yet how far its log is committed. Asked again, for as long as the client has patience
lost       it has been late for longer than that; or the log begins behind it; or the topic is another one by now

Time is when a question was asked, not when its answer was looked at: a slow function behind the reader is no silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from clarion.pipeline.kafka.fetch import WantedPartition

# A fetch for the tail of a range asks for no more than what is likely to be in it, with this much to spare.
_SPARE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` up to but not including `end`."""

    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def rows_max(self) -> int:
        return max(self.end - self.start, 0)


class RangeProgress:
    """One range. Methods that find a loss step behind it and return it in words; whoever asked may raise instead."""

    __slots__ = ("bytes_per_row", "fetch_bytes", "late_since", "next_offset", "range")

    def __init__(self, wanted: OffsetRange, fetch_bytes: int) -> None:
        self.range = wanted
        self.next_offset = wanted.start
        self.fetch_bytes = fetch_bytes
        self.bytes_per_row = 0.0
        self.late_since: float | None = None

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self.range.end

    @property
    def place(self) -> tuple[UUID, int]:
        return self.range.topic_id, self.range.partition

    def wanted(self) -> WantedPartition:
        size = self.fetch_bytes
        if self.bytes_per_row:
            left = (self.range.end - self.next_offset) * self.bytes_per_row * 1.1 + _SPARE_BYTES
            size = min(size, int(left))
        return WantedPartition(self.range.topic_id, self.range.partition, self.next_offset, size)

    def on_data(self, following: int, length: int) -> bool:
        """Batches came, `following` is the offset after them. False: only a part of one, so more must be asked for."""
        self.late_since = None
        if following <= self.next_offset:
            self.fetch_bytes *= 2
            return False
        self.bytes_per_row = length / (following - self.next_offset)
        self.next_offset = following
        return True

    def on_nothing(self, *, log_end: int, others_came: bool, asked_at: float, patience_s: float) -> str | None:
        """Nothing came although the range goes on. `log_end` is the first offset that cannot be read yet."""
        if log_end > self.next_offset and others_came:
            self.late_since = None
            return None
        if self.late_since is None:
            self.late_since = asked_at
        if asked_at - self.late_since <= patience_s:
            return None
        loss = f"{self.range}: nothing comes after offset {self.next_offset - 1}, before {self.range.end}"
        self.next_offset = self.range.end
        return loss

    def on_out_of_range(self, first: int, last: int) -> str | None:
        """The leader refuses the next offset; `first` and `last` are its log's bounds. None: it has it by now."""
        if first > self.next_offset:
            upto = min(first, self.range.end)
            loss = f"{self.range}: offsets {self.next_offset} to {upto - 1} are deleted, the log begins at {first}"
            self.next_offset = first
            return loss
        if last >= self.next_offset:
            return None
        loss = f"{self.range}: the log ends at {last}, before offset {self.next_offset}"
        self.next_offset = self.range.end
        return loss

    def on_topic(self, known_id: UUID | None) -> str | None:
        """What a topic of that name is by now; None: there is none."""
        if known_id == self.range.topic_id:
            return None
        what = f"with offsets {self.next_offset} to {self.range.end - 1}"
        self.next_offset = self.range.end
        if known_id is None:
            return f"topic {self.range.topic} is deleted, {what}"
        return (
            f"topic {self.range.topic} was deleted and made again, {what} (its id was {self.range.topic_id}, "
            f"it is {known_id})"
        )
