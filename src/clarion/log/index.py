"""The two sparse indexes of a segment, in Kafka's formats.

    .index       4 bytes offset (relative to the segment's base), 4 bytes position    entry per index.interval.bytes
    .timeindex   8 bytes timestamp, 4 bytes relative offset

An entry of the offset index names the *last* offset of the batch at its position. An entry of the time index says:
the greatest timestamp up to here is this one, first reached in the batch that ends with that offset. Both grow
strictly. Whoever follows an entry finds the batch it speaks of and can compare; so a damaged index is noticed where it
is used, and built again.

When a segment is sealed or its log closed, a last entry for the last batch is added to both: opening finds the end of
the log with one step, and recovery can tell a segment that lost its tail.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
OFFSET_ENTRY_BYTES: Final = _OFFSET_ENTRY.size
OFFSET_DELTA_MAX: Final = 0x7FFFFFFF  # an entry's relative offset
TIME_ENTRY_BYTES: Final = _TIME_ENTRY.size


class IndexBuilder:
    """Makes both indexes of a segment while its batches go by."""

    __slots__ = ("_since_entry", "index", "interval_bytes", "largest", "last_offset", "last_position", "times")

    def __init__(self, index: OffsetIndex, times: TimeIndex, interval_bytes: int) -> None:
        self.index = index
        self.times = times
        self.interval_bytes = interval_bytes
        self.largest: tuple[int, int] = times.last or (-1, -1)  # timestamp, last offset of its batch
        self.last_offset, self.last_position = index.last or (-1, -1)
        self._since_entry = 0

    @classmethod
    def empty(cls, base_offset: int, interval_bytes: int) -> IndexBuilder:
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset), interval_bytes)

    def copy(self) -> IndexBuilder:
        """As it stands now, for somebody who must not see it grow."""
        index = OffsetIndex(self.index.base_offset, bytes(self.index.entries))
        times = TimeIndex(self.times.base_offset, bytes(self.times.entries))
        one = IndexBuilder(index, times, self.interval_bytes)
        one.largest, one.last_offset, one.last_position = self.largest, self.last_offset, self.last_position
        return one

    def add(self, last_offset: int, position: int, size: int, max_timestamp: int) -> None:
        if max_timestamp > self.largest[0]:
            self.largest = (max_timestamp, last_offset)
        if self._since_entry > self.interval_bytes:
            self.index.append(last_offset, position)
            self.times.append(*self.largest)
            self._since_entry = 0
        self._since_entry += size
        self.last_offset = last_offset
        self.last_position = position

    def seal(self) -> None:
        """Add the last batch to both indexes."""
        last = self.index.last
        if self.last_offset > (last[0] if last else -1):
            self.index.append(self.last_offset, self.last_position)
            self._since_entry = 0
        self.times.append(*self.largest)


class OffsetIndex:
    __slots__ = ("base_offset", "entries", "is_saved")

    def __init__(self, base_offset: int, entries: bytes = b"", *, is_saved: bool = False) -> None:
        self.base_offset = base_offset
        self.entries = bytearray(entries)
        self.is_saved = is_saved

    def __len__(self) -> int:
        return len(self.entries) // OFFSET_ENTRY_BYTES

    def __getitem__(self, number: int) -> tuple[int, int]:
        """(last offset of a batch, its position)"""
        relative, position = _OFFSET_ENTRY.unpack_from(self.entries, number * OFFSET_ENTRY_BYTES)
        return self.base_offset + relative, position

    @property
    def last(self) -> tuple[int, int] | None:
        return self[len(self) - 1] if self.entries else None

    def append(self, offset: int, position: int) -> None:
        self.entries += _OFFSET_ENTRY.pack(offset - self.base_offset, position)
        self.is_saved = False

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """The last entry at or before the offset."""
        number = bisect_right(range(len(self)), offset, key=lambda n: self[n][0])
        return self[number - 1] if number else None

    def boundary_before(self, position: int) -> int:
        """The greatest known start of a batch at or before the position."""
        number = bisect_right(range(len(self)), position, key=lambda n: self[n][1])
        return self[number - 1][1] if number else 0

    def truncate_to(self, position: int) -> None:
        """Keep only entries of batches that start before the position."""
        number = bisect_right(range(len(self)), position - 1, key=lambda n: self[n][1])
        del self.entries[number * OFFSET_ENTRY_BYTES :]
        self.is_saved = False

    def is_plausible(self, segment_bytes: int) -> bool:
        """A cheap look at the ends: whole entries, which grow, and lie inside the segment."""
        if len(self.entries) % OFFSET_ENTRY_BYTES:
            return False
        if not self.entries:
            return segment_bytes == 0
        first, last = self[0], self[len(self) - 1]
        return last[1] < segment_bytes and (len(self) == 1 or (first[0] < last[0] and first[1] < last[1]))


class TimeIndex:
    __slots__ = ("base_offset", "entries", "is_saved")

    def __init__(self, base_offset: int, entries: bytes = b"", *, is_saved: bool = False) -> None:
        self.base_offset = base_offset
        self.entries = bytearray(entries)
        self.is_saved = is_saved

    def __len__(self) -> int:
        return len(self.entries) // TIME_ENTRY_BYTES

    def __getitem__(self, number: int) -> tuple[int, int]:
        """(greatest timestamp so far, last offset of the batch that has it)"""
        timestamp, relative = _TIME_ENTRY.unpack_from(self.entries, number * TIME_ENTRY_BYTES)
        return timestamp, self.base_offset + relative

    @property
    def last(self) -> tuple[int, int] | None:
        return self[len(self) - 1] if self.entries else None

    def append(self, timestamp: int, offset: int) -> None:
        """Nothing happens unless the timestamp is greater than all before."""
        last = self.last
        if timestamp > (last[0] if last else -1):
            self.entries += _TIME_ENTRY.pack(timestamp, offset - self.base_offset)
            self.is_saved = False

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry at or before the timestamp: no batch before its offset is as late."""
        number = bisect_right(range(len(self)), timestamp, key=lambda n: self[n][0])
        return self[number - 1] if number else None

    def truncate_to(self, offset: int) -> None:
        """Keep only entries of batches that end before the offset."""
        number = bisect_right(range(len(self)), offset - 1, key=lambda n: self[n][1])
        del self.entries[number * TIME_ENTRY_BYTES :]
        self.is_saved = False

    def is_plausible(self) -> bool:
        if len(self.entries) % TIME_ENTRY_BYTES or not self.entries:
            return False
        first, last = self[0], self[len(self) - 1]
        return first[0] >= 0 and (len(self) == 1 or (first[0] < last[0] and first[1] < last[1]))
