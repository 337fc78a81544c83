"""A segment that retention or compaction writes beside the log: `.cleaned` files, until the log swaps them in.

with CleanedFile(disk, folder, base_offset, index_interval_bytes) as cleaned:     # in a thread
    cleaned.append(header, batch)
    segment = cleaned.finish(replaced_bases)
Swap(log, view, segment)                                                          # its steps are told there
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clarion.log.folder import INDEX, LOG, SEGMENT_FILES, TIME_INDEX, path_of, remove_if_there, sync_files, write_whole
from clarion.log.index import IndexBuilder
from clarion.wire.batch import BatchHeader
from clarion.world import Buffer, Disk


class CleanedSegment(NamedTuple):
    """Finished and synced; it takes the place of the sealed segments with these base offsets."""

    base_offset: int
    size: int
    replaces: tuple[int, ...]
    lacks_tombstones: bool = False  # that the replaced ones have: it waits while a replica may need them


class CleanedFile:
    """Left without `finish`, nothing remains of it. It shares nothing with the log, so it may be filled in a thread."""

    def __init__(self, disk: Disk, folder: str, base_offset: int, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.size = 0
        self._disk = disk
        self._paths = {kind: path_of(folder, base_offset, kind) + ".cleaned" for kind in SEGMENT_FILES}
        self._builder = IndexBuilder.empty(base_offset, index_interval_bytes)
        self._is_finished = False
        self._file = disk.open(self._paths[LOG], create=True)
        self._file.truncate(0)

    def __enter__(self) -> CleanedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._is_finished:
            for path in self._paths.values():
                remove_if_there(self._disk, path)

    def append(self, header: BatchHeader, batch: Buffer) -> None:
        size = len(batch)
        self._file.write([batch], self.size)
        self._builder.add(header.last_offset, self.size, size, header.max_timestamp)
        self.size += size

    def finish(self, replaced_bases: Sequence[int], *, lacks_tombstones: bool = False) -> CleanedSegment:
        """Write the indexes and sync everything."""
        self._builder.seal()
        self._file.sync()
        write_whole(self._disk, self._paths[INDEX], self._builder.index.entries)
        write_whole(self._disk, self._paths[TIME_INDEX], self._builder.times.entries)
        sync_files(self._disk, [self._paths[INDEX], self._paths[TIME_INDEX]])
        self._is_finished = True
        return CleanedSegment(self.base_offset, self.size, tuple(replaced_bases), lacks_tombstones)
