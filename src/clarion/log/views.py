"""A log as it stood at one moment, for work that runs in a thread: plain values, own file handles.

A view is taken in the loop. What it names stays readable as long as nothing else takes segments out of the log, which
is why retention and compaction of one log never run side by side. If a file is gone or changed all the same, the work
fails with FileNotFoundError or DamagedSegment, and the next sweep tries again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from clarion.log.batch_headers import SWEEP_BYTES, DamagedSegment, iter_batch_headers
from clarion.log.folder import Folder
from clarion.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header
from clarion.world import Disk

if TYPE_CHECKING:
    from clarion.log.log import Log


class SegmentView(NamedTuple):
    base_offset: int
    next_offset: int  # where the next segment begins; of the active one, where the log ends
    path: str
    size: int
    appended_ms: int = -1  # when its last batch was; -1: only the file's own time tells


class LogView(NamedTuple):
    """`start_position` is where, in the first segment, the batch lies that reaches `start_offset`."""

    home: Folder  # for its disk and its names; the handles in its cache belong to the loop
    start_offset: int
    next_offset: int
    start_position: int
    segments: tuple[SegmentView, ...]  # never empty; the last one is active
    truncations: int  # that the log had seen: after another one it is no longer this log

    @property
    def disk(self) -> Disk:
        return self.home.disk

    @property
    def size_bytes(self) -> int:
        """What can still be read."""
        return sum(segment.size for segment in self.segments) - self.start_position


def view_of(log: Log) -> LogView:
    """Taken in the loop; nothing is read but the few bytes that find the start."""
    found = log.segments
    bounds = [segment.base_offset for segment in found[1:]] + [log.next_offset]
    first = found[0]
    try:
        place = first.find(log.start_offset, first.size)
    except DamagedSegment:
        place = (0, 0)  # whoever walks from there finds the damage
    return LogView(
        home=first.folder,
        start_offset=log.start_offset,
        next_offset=log.next_offset,
        start_position=place[0] if place else first.size,
        segments=tuple(
            SegmentView(segment.base_offset, bound, segment.path, segment.size, segment.appended_ms)
            for segment, bound in zip(found, bounds, strict=True)
        ),
        truncations=log.truncations,
    )


def headers_of(
    disk: Disk, segment: SegmentView, position: int = 0, chunk_bytes: int = SWEEP_BYTES
) -> Iterator[tuple[BatchHeader, int]]:
    """The header and position of every batch from `position` on. An offset that cannot be true is damage as well."""
    offset = segment.base_offset
    with closing(disk.open(segment.path)) as file:
        for header, at in iter_batch_headers(file, position, segment.size, chunk_bytes):
            if not offset <= header.base_offset <= header.last_offset < segment.next_offset:
                raise DamagedSegment(segment.path, at)
            yield header, at
            offset = header.next_offset


def appended_ms(disk: Disk, segment: SegmentView) -> int:
    """When the last batch of a segment was appended; later than that only where the file was written anew since."""
    return segment.appended_ms if segment.appended_ms >= 0 else disk.modified_ms(segment.path)


def read_batch(disk: Disk, segment: SegmentView, position: int, header: BatchHeader) -> bytes:
    with closing(disk.open(segment.path)) as file:
        return file.read(header.size_bytes, position)


_READ_BYTES: Final = 1 << 20  # large enough that calls do not count


def batches_of(disk: Disk, segment: SegmentView) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every whole batch. Only framing and offsets are judged; memory is bounded by the largest batch."""
    offset = segment.base_offset
    with closing(disk.open(segment.path)) as file:
        position, wanted = 0, _READ_BYTES
        while position < segment.size:
            chunk = memoryview(file.read(min(wanted, segment.size - position), position))
            at = 0
            while at + HEADER_BYTES <= len(chunk):
                header = read_header(chunk, at)
                size = header.size_bytes
                if header.magic != MAGIC or not HEADER_BYTES <= size <= segment.size - position - at:
                    raise DamagedSegment(segment.path, position + at)
                if not offset <= header.base_offset <= header.last_offset < segment.next_offset:
                    raise DamagedSegment(segment.path, position + at)
                if at + size > len(chunk):
                    break
                offset = header.next_offset
                yield header, chunk[at : at + size]
                at += size
            wanted = _READ_BYTES if at else _size_of_first(chunk, wanted, segment, position)
            position += at


def _size_of_first(chunk: memoryview, wanted: int, segment: SegmentView, position: int) -> int:
    """How much to read for a batch that is larger than the chunk. DamagedSegment if reading on would not help."""
    size = read_header(chunk).size_bytes if len(chunk) >= HEADER_BYTES else 0
    if size <= wanted:
        raise DamagedSegment(segment.path, position)
    return size
