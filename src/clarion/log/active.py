"""The active segment: the one that grows.

It remembers where its recent batches lie, so that a reader at the tail finds its place without touching the disk. Index
entries stay in memory until the segment is sealed, its log closed, or the cache wants the room: a crash loses them,
and recovery makes them again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final
from zlib import crc32

from clarion.log.batch_headers import DamagedSegment, Reader, iter_batch_headers, read_any
from clarion.log.config import LogConfig
from clarion.log.folder import INDEX, TIME_INDEX, Folder, remove_if_there
from clarion.log.index import (
    OFFSET_DELTA_MAX,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    IndexBuilder,
    OffsetIndex,
    TimeIndex,
)
from clarion.log.segment import Segment, last_entry, log
from clarion.wire.batch import HEADER_BYTES, read_header
from clarion.world import Buffer

_RECENT_MAX: Final = 1024  # 16 KB per busy partition; a tail reader is seldom further behind
_RECENT_KEPT: Final = 512
_NOT_READ: Final = -2
_SMALL_INDEX_BYTES: Final = 1024  # of half a megabyte of messages


class ActiveSegment(Segment):
    __slots__ = (
        "_builder",
        "_first_timestamp",
        "_is_roll_near",
        "_jitter",
        "_lasts",
        "_starts",
        "created_ms",
        "has_index_file",
        "is_full",
    )

    def __init__(
        self, folder: Folder, base_offset: int, size: int, now_ms: int, builder: IndexBuilder | None = None
    ) -> None:
        """A builder comes from recovery, which has seen every batch; else one is loaded before the first append."""
        super().__init__(folder, base_offset, size, synced_bytes=size)
        self.created_ms = now_ms
        self.is_full = False
        self._is_roll_near = False
        self.has_index_file = size > 0  # maybe; an older state of the index then
        self._builder = builder
        self._first_timestamp = _NOT_READ
        self._jitter = crc32(f"{folder.path}/{base_offset}".encode()) / 2**32
        self._lasts = array("q")
        self._starts = array("q")
        if builder is not None:
            self._keep(builder.index)
            self._keep(builder.times)

    # Growing

    def has_room(self, config: LogConfig, size: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        at = self._size
        if last_offset - self.base_offset > OFFSET_DELTA_MAX:
            return False
        if at == 0:
            return True
        return at + size <= config.segment_bytes and not self.is_full and not self._is_old(config, timestamp, now_ms)

    def append(self, batch: Buffer, size: int, last_offset: int, max_timestamp: int) -> int:
        """Write one batch; returns the new size. On OSError anything may stand behind the old size."""
        if self.has_index_file:
            self._remove_index_files()
        builder = self._builder or self._warm_up()
        at = self._size
        assert builder.last_position < at or not at, "a batch is written over another"
        (self.file or self.handle()).write((batch,), at)
        self.touched = True
        entries = builder.index.entries
        before = len(entries)
        builder.add(last_offset, at, size, max_timestamp)
        if len(entries) != before:
            self._check_full(builder)
        lasts = self._lasts
        lasts.append(last_offset)
        self._starts.append(at)
        if len(lasts) > _RECENT_MAX:
            del lasts[:-_RECENT_KEPT], self._starts[:-_RECENT_KEPT]
        if not at:
            self._first_timestamp = max_timestamp
        self._size = at + size
        return at + size

    def _is_old(self, config: LogConfig, timestamp: int, now_ms: int) -> bool:
        """By the records' own time, as in Kafka; by the wall clock where they have none."""
        first = self._first_timestamp
        if first == _NOT_READ:
            first = self._first_timestamp = read_header(self.handle().read(HEADER_BYTES, 0)).max_timestamp
        age_ms = timestamp - first if first > 0 and timestamp > 0 else now_ms - self.created_ms
        return age_ms > config.segment_ms - self._jitter * min(config.segment_jitter_ms, config.segment_ms)

    def _check_full(self, builder: IndexBuilder) -> None:
        # Two entries stay free: the last one when the segment is sealed, and one if the log is closed before.
        room = self.folder.config.segment_index_bytes
        self.is_full = (
            len(builder.index.entries) + 2 * OFFSET_ENTRY_BYTES > room
            or len(builder.times.entries) + 2 * TIME_ENTRY_BYTES > room
        )
        if not self._is_roll_near and 2 * self._size >= self.folder.config.segment_bytes:
            self._is_roll_near = True
            if self.folder.has_unsynced_names:
                self.folder.flush_soon()  # in a thread, before the roll needs it

    def prepare_seal(self) -> None:
        """Have everything in memory that `seal` needs, and no older index on disk."""
        if self.has_index_file:
            self._remove_index_files()
        if self._builder is None:
            self._warm_up()

    def _remove_index_files(self) -> None:
        """Those of a state that is over; they are in memory, and written anew when the segment is sealed or closed.

        Recovery believes a last entry that matches the last batch. An old file must not survive a crash that takes the
        tail of the log but not the segment that comes after it: a roll waits for a sync of the folder.
        """
        builder = self._builder or self._warm_up()
        for kind in (INDEX, TIME_INDEX):
            remove_if_there(self.folder.disk, self.folder.file(self.base_offset, kind))
        self.folder.changes += 1
        builder.index.is_saved = builder.times.is_saved = False
        self.has_index_file = False

    def _warm_up(self) -> IndexBuilder:
        """Load what an append needs to know of the batches before it."""
        if self._size == 0:
            builder = IndexBuilder.empty(self.base_offset, self.folder.index_interval_bytes)
            self._keep(builder.index)
            self._keep(builder.times)
        else:
            builder = IndexBuilder(self.index, self.times, self.folder.index_interval_bytes)
            for header, position in iter_batch_headers(self.handle(), max(builder.last_position, 0), self._size):
                builder.add(header.last_offset, position, header.size_bytes, header.max_timestamp)
        self._builder = builder
        self._check_full(builder)
        return builder

    def copy_in(self, folder: Folder) -> Segment:
        """As the segment stands now; its indexes grow, so they are copied."""
        copy = ActiveSegment(
            folder, self.base_offset, self._size, self.created_ms, self._builder.copy() if self._builder else None
        )
        copy.file = self.file
        return copy

    def learn_from(self, copy: Segment) -> None:
        """Nothing: it has grown meanwhile."""

    # Finding

    @property
    def largest(self) -> tuple[int, int]:
        return (self._builder or self._warm_up()).largest

    @property
    def last_offset(self) -> int:
        """Of the last batch in it."""
        return (self._builder or self._warm_up()).last_offset

    def find(self, offset: int, end: int, read: Reader = read_any) -> tuple[int, int] | None:
        number = self._recent(offset)
        if number < 0:
            return super().find(offset, end, read)
        starts = self._starts
        start = starts[number] if number < len(starts) else self._size
        if start >= end:
            return None
        return start, (starts[number + 1] if number + 1 < len(starts) else self._size) - start

    def byte_range(
        self, offset: int, bytes_max: int, end: int, *, whole_first: bool, read: Reader = read_any
    ) -> tuple[int, int] | None:
        number = self._recent(offset)
        if number < 0:
            return super().byte_range(offset, bytes_max, end, whole_first=whole_first, read=read)
        starts = self._starts
        start = starts[number] if number < len(starts) else self._size
        if start >= end:
            return None
        if start + bytes_max >= end:
            return start, end
        after = bisect_right(starts, start + bytes_max)
        if after - 1 > number:
            return start, starts[after - 1]
        return start, (starts[number + 1] if number + 1 < len(starts) else self._size) if whole_first else start

    def _recent(self, offset: int) -> int:
        """The number of the recent batch that reaches the offset; -1 if it lies before all of them."""
        lasts = self._lasts
        number = bisect_left(lasts, offset)
        return number if number or self._knows_all else -1

    @property
    def _knows_all(self) -> bool:
        return self._starts[0] == 0 if self._starts else self._size == 0

    # Ending

    def save(self) -> list[str]:
        """Write the indexes, last batch included, if they are not on disk yet; returns the files written."""
        if self._size == 0 or (self._builder is None and self._is_saved):
            return []
        builder = self._builder or self._warm_up()
        builder.seal()
        paths = []
        index: OffsetIndex | TimeIndex
        for index, kind in ((builder.index, INDEX), (builder.times, TIME_INDEX)):
            if not index.is_saved:
                paths.append(self.folder.save(self.base_offset, kind, index.entries))
                index.is_saved = True
        self.has_index_file = True
        return paths

    @property
    def _is_saved(self) -> bool:
        return (self._index is None or self._index.is_saved) and (self._times is None or self._times.is_saved)

    def seal(self) -> tuple[Segment, list[str]]:
        """The same segment as one that no longer grows, and the index files to sync."""
        assert not self.has_index_file, "an index of an older state is on disk"
        try:
            paths = self.save()
        except OSError as error:
            # Without room for an index the segment is as good: its first reader makes the index again.
            log.warning("index_not_saved", segment=self.path, reason=str(error))
            paths = []
        sealed = Segment(self.folder, self.base_offset, self._size, self.synced_bytes)
        sealed._largest = self.largest
        sealed.appended_ms = self.appended_ms
        sealed.file = self.file
        self.forget()
        if sealed.file is not None:
            self.folder.files.adopt(sealed)
        return sealed, paths

    def let_go_of_indexes(self) -> None:
        if self._builder is None:
            super().let_go_of_indexes()
            return
        if len(self._builder.index.entries) < _SMALL_INDEX_BYTES:
            return  # cheaper to keep than to write and read again
        try:
            self.save()
        except OSError as error:
            log.warning("index_not_saved", segment=self.path, reason=str(error))
            return
        self._builder = None
        super().let_go_of_indexes()

    def cut(self, position: int, next_offset: int) -> None:
        """Forget, and take from the file, everything from the position on; nothing there was below `next_offset`."""
        file = self.handle()
        file.truncate(position)
        index, times = self.index, self.times
        index.truncate_to(position)
        times.truncate_to(next_offset)
        self._size = position
        self.synced_bytes = min(self.synced_bytes, position)
        self._builder = None
        self._lasts, self._starts = array("q"), array("q")


def end_of(segment: ActiveSegment) -> int:
    """The next offset of a log that was closed cleanly, found with one step from the last index entry.

    DamagedSegment if the files do not agree with each other.
    """
    if segment.size == 0:
        return segment.base_offset
    entry = last_entry(segment.folder, segment.base_offset, segment.size)
    next_offset, file = segment.base_offset, segment.handle()
    for header, position in iter_batch_headers(file, entry[1], segment.size):
        if position == entry[1] and entry[0] not in (header.last_offset, -1):
            raise DamagedSegment(segment.path, position)
        next_offset = header.next_offset
    return next_offset
