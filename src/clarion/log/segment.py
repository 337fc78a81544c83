"""A sealed segment: a file that no longer grows, and what is known of it.

Opening a log makes one of these per file name and asks the disk nothing. Size, indexes and the greatest timestamp come
on first use; handle and indexes go again when the cache wants them back.
"""

from __future__ import annotations

from collections.abc import Iterator

from clarion.log.batch_headers import LOOK_BYTES, DamagedSegment, Reader, iter_batch_headers, read_any
from clarion.log.folder import INDEX, LOG, TIME_INDEX, Folder
from clarion.log.index import (
    OFFSET_DELTA_MAX,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    IndexBuilder,
    OffsetIndex,
    TimeIndex,
)
from clarion.wire.batch import HEADER_BYTES, BatchHeader, read_header
from clarion.world import DiskFile, event_log, read_file

log = event_log("log")


class Segment:
    __slots__ = (
        "_index",
        "_largest",
        "_size",
        "_times",
        "appended_ms",
        "base_offset",
        "file",
        "folder",
        "synced_bytes",
        "touched",
    )

    def __init__(self, folder: Folder, base_offset: int, size: int = -1, synced_bytes: int = -1) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.file: DiskFile | None = None
        self.touched = False
        self.appended_ms = -1  # when its last batch was appended; -1: before this process, the file's time tells
        self.synced_bytes = synced_bytes  # -1: all of them
        self._size = size
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._largest: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        return self.folder.file(self.base_offset, LOG)

    @property
    def size(self) -> int:
        if self._size < 0:
            self._size = self.folder.disk.size(self.path)
        return self._size

    @property
    def largest(self) -> tuple[int, int]:
        """The greatest timestamp and the last offset of the first batch that has it; (-1, -1) if there is none."""
        if self._largest is None:
            self._largest = self._find_largest()
        return self._largest

    @property
    def largest_timestamp(self) -> int:
        return self.largest[0]

    @property
    def is_dirty(self) -> bool:
        return 0 <= self.synced_bytes < self._size

    def handle(self) -> DiskFile:
        """The open file. Holding it keeps it open."""
        self.touched = True
        file = self.file
        if file is None:
            file = self.file = self.folder.files.open(self, self.path)
        return file

    def flush_soon(self) -> None:
        self.folder.flush_soon()

    def let_go(self) -> None:
        self.file = None
        self.let_go_of_indexes()

    def let_go_of_indexes(self) -> None:
        self._index = None
        self._times = None

    def forget(self) -> None:
        """Let go for good."""
        self.folder.files.forget(self)
        self.let_go()

    def copy_in(self, folder: Folder) -> Segment:
        """The same segment with what is known of it, for a thread that has a folder with a file cache of its own."""
        copy = Segment(folder, self.base_offset, self._size)
        copy.file = self.file
        copy._index, copy._times, copy._largest = self._index, self._times, self._largest
        return copy

    def learn_from(self, copy: Segment) -> None:
        """Keep what the copy had to read the segment for."""
        if self._largest is None:
            self._largest = copy._largest

    # Finding

    def find(self, offset: int, end: int, read: Reader = read_any) -> tuple[int, int] | None:
        """Position and size of the first batch that reaches the offset, if it lies before `end`."""
        for header, position in self.headers(offset, end, read=read):
            return position, header.size_bytes
        return None

    def byte_range(
        self, offset: int, bytes_max: int, end: int, *, whole_first: bool, read: Reader = read_any
    ) -> tuple[int, int] | None:
        """From where to where to read for the offset, in whole batches if that is cheap; None if no batch reaches it.

        `whole_first`: the first batch is part of it however large it is.
        """
        self.warm_index(read)
        found = self.find(offset, end, read)
        if found is None:
            return None
        start, size = found
        stop = start + bytes_max
        if stop >= end:
            return start, end
        if stop < start + size:
            return start, start + size if whole_first else start
        return start, max(self.index.boundary_before(stop), start + size)

    def headers(
        self, offset: int, end: int, chunk_bytes: int = LOOK_BYTES, read: Reader = read_any
    ) -> Iterator[tuple[BatchHeader, int]]:
        """Every batch from the one that reaches the offset up to `end`, with its position."""
        file = self.handle()
        for header, position in iter_batch_headers(file, self._start_for(file, offset, read), end, chunk_bytes, read):
            if header.last_offset >= offset:
                yield header, position

    def _start_for(self, file: DiskFile, offset: int, read: Reader) -> int:
        """Where to begin looking: the batch of the index entry before the offset, if the entry tells the truth."""
        entry = self.index.lookup(offset) if offset > self.base_offset else None
        if entry is None or _is_true(file, entry, self.size, read):
            return entry[1] if entry else 0
        log.warning("index_rebuilt", segment=self.path, reason="an entry does not match its batch")
        self._rebuild_indexes()
        entry = self.index.lookup(offset)
        return entry[1] if entry else 0

    # Indexes

    def warm_index(self, read: Reader) -> None:
        if self._index is None:
            self._load_index(read)

    def _load_index(self, read: Reader) -> None:
        """If there is one to be believed; else `index` makes it again."""
        try:
            file = self.folder.disk.open(self.folder.file(self.base_offset, INDEX))
        except FileNotFoundError:
            return
        index = OffsetIndex(self.base_offset, read(file, file.size(), 0), is_saved=True)
        file.close()  # a ColdRead keeps it open, for as long as there is one
        if index.is_plausible(self.size):
            self._keep(index)

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load_index(read_any)
        index = self._index
        return index if index is not None else self._rebuild_indexes().index

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            times = TimeIndex(self.base_offset, self._read(TIME_INDEX), is_saved=True)
            if not times.is_plausible():
                return self._rebuild_indexes().times
            self._keep(times)
            return times
        return self._times

    def _keep(self, index: OffsetIndex | TimeIndex) -> None:
        self.touched = True
        self.folder.files.hold_index(self, len(index.entries))
        if isinstance(index, OffsetIndex):
            self._index = index
        else:
            self._times = index

    def _read(self, kind: str) -> bytes:
        try:
            return read_file(self.folder.disk, self.folder.file(self.base_offset, kind))
        except FileNotFoundError:
            return b""

    def _rebuild_indexes(self) -> IndexBuilder:
        builder = IndexBuilder.empty(self.base_offset, self.folder.index_interval_bytes)
        try:
            for header, position in iter_batch_headers(self.handle(), 0, self.size):
                if not builder.last_offset < header.last_offset <= self.base_offset + OFFSET_DELTA_MAX:
                    raise DamagedSegment(self.path, position)
                builder.add(header.last_offset, position, header.size_bytes, header.max_timestamp)
        except DamagedSegment as damage:
            # The batches behind the damage can still be found from the last entry before it, up to the damage.
            log.error("segment_damaged", segment=self.path, position=damage.position)
        builder.seal()
        self._keep(builder.index)
        self._keep(builder.times)
        self._largest = builder.largest
        return builder

    def _find_largest(self) -> tuple[int, int]:
        """What the time index says last, from its last bytes: a search by time asks this of every segment."""
        if self.size == 0:
            return -1, -1
        entry = TimeIndex(self.base_offset, _tail(self.folder, self.base_offset, TIME_INDEX, TIME_ENTRY_BYTES)).last
        last_offset, position = last_entry(self.folder, self.base_offset, self.size)
        if entry is None or not self.base_offset <= entry[1] <= last_offset or entry[0] < 0:
            return self._rebuild_indexes().largest
        if entry[1] == last_offset and not self._has_timestamp(position, entry[0]):
            return self._rebuild_indexes().largest
        return entry

    def _has_timestamp(self, position: int, timestamp: int) -> bool:
        head = self.handle().read(HEADER_BYTES, position)
        return len(head) == HEADER_BYTES and read_header(head).max_timestamp == timestamp


def last_entry(folder: Folder, base_offset: int, segment_bytes: int) -> tuple[int, int]:
    """The last entry of the offset index as it is on disk; (-1, 0) if there is none that could be true."""
    entry = OffsetIndex(base_offset, _tail(folder, base_offset, INDEX, OFFSET_ENTRY_BYTES)).last
    return entry if entry and entry[1] < segment_bytes else (-1, 0)


def _tail(folder: Folder, base_offset: int, kind: str, entry_bytes: int) -> bytes:
    """The last entry of an index on disk; nothing if there is none, or the file has no whole number of them."""
    try:
        file = folder.disk.open(folder.file(base_offset, kind))
    except FileNotFoundError:
        return b""
    try:
        size = file.size()
        return file.read(entry_bytes, size - entry_bytes) if size and size % entry_bytes == 0 else b""
    finally:
        file.close()


def _is_true(file: DiskFile, entry: tuple[int, int], end: int, read: Reader) -> bool:
    """Whether the batch at the entry's position ends with the entry's offset."""
    try:
        header, _ = next(iter_batch_headers(file, entry[1], end, read=read))
    except (DamagedSegment, StopIteration):
        return False
    return header.last_offset == entry[0]
