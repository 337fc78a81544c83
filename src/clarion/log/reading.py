"""A log as its readers see it: what there is, slices of files for a consumer, headers, searches by time.

A log belongs to the loop's thread. `batches` and `search_times` are asked for there; what they return a thread may use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final
from uuid import UUID

from clarion.log.batch_headers import SWEEP_BYTES, DamagedSegment, Reader, read_any
from clarion.log.config import LogConfig
from clarion.log.epoch_file import EpochFile
from clarion.log.epochs import LeaderEpochs
from clarion.log.folder import Folder
from clarion.log.recovery import Opened, RecoveryReport
from clarion.log.segment import Segment
from clarion.log.segments import Segments, end_in
from clarion.log.slices import FileSlice
from clarion.log.times import TimeSearch, copies_for_a_thread
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition
from clarion.wire.batch import HEADER_BYTES, BatchHeader
from clarion.world import event_log

log = event_log("log")

_BATCHES_BEFORE: Final = 2  # the one that a gap may follow, and one that says where that one begins


class ReadableLog:
    def __init__(self, folder: Folder, config: LogConfig, topic_id: UUID, opened: Opened, start_offset: int) -> None:
        self.topic_id = topic_id
        self.recovery: RecoveryReport = opened.report
        self.damage = opened.report.damage  # why what it holds is not what was written, as far as it was noticed
        self.is_short = False  # it ends before what was flushed, and others have the rest
        self._folder = folder
        self._config = config
        self._segments = Segments(folder, opened.sealed, opened.active)
        self.next_offset: int = opened.next_offset
        self.start_offset = max(start_offset, self._segments.first.base_offset)
        self._epoch_file = EpochFile(folder, lambda: self.next_offset, self._headers)
        self._set_end(opened.next_offset)

    @property
    def folder(self) -> str:
        return self._folder.path

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._folder.config = config

    @property
    def segments(self) -> list[Segment]:
        """All of them, sorted; the last is the active one."""
        return self._segments.all

    @property
    def segment_count(self) -> int:
        return len(self._segments.sealed) + 1

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epoch_file.epochs

    def _set_end(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.end = LogPosition(next_offset, self._segments.active.base_offset, self._segments.active.size)

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit: LogPosition,
        *,
        at_least_one_batch: bool = True,
        reader: Reader = read_any,
    ) -> list[FileSlice]:
        """Slices from the batch that holds the offset on, up to `max_bytes` and never past `limit`.

        The first batch comes whole even if it is larger (KIP-74), unless `at_least_one_batch` is off. The end is a
        batch's end wherever that is known without a search; else the last batch may be cut, as in Kafka. Behind the
        recent batches of the active segment this looks into the index and up to one index interval of the file; with
        `read_cached` a ColdRead is raised where that would ask the device.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in {self.start_offset}..{self.next_offset}"
            )
        if offset >= limit.offset:
            return []
        slices: list[FileSlice] = []
        for segment in self._segments.from_offset(offset):
            whole_first = at_least_one_batch and not slices
            end = end_in(segment, limit)
            try:
                byte_range = segment.byte_range(offset, max_bytes, end, whole_first=whole_first, read=reader)
            except DamagedSegment as damage:
                self.note_damage(str(damage))
                raise
            if byte_range is None:
                continue  # only a gap is left of it, or it lies past the limit
            start, stop = byte_range
            assert 0 <= start <= stop <= segment.size, f"{start}..{stop} is not inside {segment.path}"
            if stop > start:
                slices.append(FileSlice(segment.handle(), start, stop - start))
            max_bytes -= stop - start
            if stop < segment.size or max_bytes <= 0:
                break
        return slices

    def read_around(
        self, offset: int, max_bytes: int, limit: LogPosition, *, reader: Reader = read_any
    ) -> tuple[list[FileSlice], int]:
        """The same, for who wants to see whether the batch that is found stands where it should: from at least two
        batches before it, where there are so many, to the header behind it at least. Neighbours are found by their
        places in the files, whatever offsets their headers tell. Also an offset before which none of them begins."""
        segments = self.segments
        try:
            number, position, size = self._place_of(segments, offset, limit, reader)
        except DamagedSegment as damage:
            self.note_damage(str(damage))
            raise
        if number < 0:
            return [], offset
        first, start = _before(segments, number, position, reader)
        left = max(max_bytes, size) + HEADER_BYTES + position - start
        left += sum(one.size for one in segments[first:number])
        slices: list[FileSlice] = []
        for segment in segments[first:]:
            stop = min(end_in(segment, limit), start + left)
            if stop > start:
                slices.append(FileSlice(segment.handle(), start, stop - start))
                left -= stop - start
            start = 0
            if left <= 0:
                break
        return slices, segments[first].base_offset

    def _place_of(
        self, segments: list[Segment], offset: int, limit: LogPosition, reader: Reader
    ) -> tuple[int, int, int]:
        """The segment's number, and position and size in it of the first batch that reaches the offset; -1 if none."""
        skipped = len(segments) - len(list(self._segments.from_offset(offset)))
        for number in range(skipped, len(segments)):
            segments[number].warm_index(reader)
            found = segments[number].find(offset, end_in(segments[number], limit), reader)
            if found is not None:
                return number, *found
        return -1, 0, 0

    def note_damage(self, reason: str) -> None:
        if not self.damage:
            self.damage = reason
            log.error("log_damaged", folder=self.folder, reason=reason)
            self._folder.note_damage()

    def batch_headers(
        self, from_offset: int, to: LogPosition | None = None
    ) -> Iterator[tuple[BatchHeader, LogPosition]]:
        """Every batch from the one that holds the offset up to `to` (or the present end), and where it begins."""
        for header, segment, position in self._walk(from_offset, to or self.end):
            yield header, LogPosition(header.base_offset, segment.base_offset, position)

    @property
    def start(self) -> LogPosition:
        """Before all that is there."""
        return LogPosition(self.start_offset, self._segments.first.base_offset, 0)

    def position_of(self, offset: int) -> LogPosition:
        """Where the first batch begins that reaches the offset; the end if none does."""
        for _, place in self.batch_headers(max(offset, self.start_offset)):
            return place
        return self.end

    def batches(self, from_offset: int, to: LogPosition | None = None) -> Iterator[bytes]:
        """The same batches, whole. To be asked for in the loop; a thread may go through them."""
        end = to or self.end
        segments = [one for one in self._segments.from_offset(from_offset) if one.base_offset <= end.segment]
        return _whole_batches([copy for _, copy in copies_for_a_thread(segments)], from_offset, end)

    def _headers(self) -> Iterator[BatchHeader]:
        for header, _, _ in self._walk(self.start_offset, self.end):
            yield header

    def _walk(self, offset: int, to: LogPosition) -> Iterator[tuple[BatchHeader, Segment, int]]:
        for segment in list(self._segments.from_offset(offset)):
            if segment.base_offset > to.segment:
                return
            try:
                for header, position in segment.headers(offset, end_in(segment, to), SWEEP_BYTES):
                    yield header, segment, position
            except DamagedSegment as damage:
                self.note_damage(str(damage))  # whoever walks may only put off what it wanted to know
                raise

    def offset_for_time(self, timestamp_ms: int, limit: LogPosition | None = None) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record before `limit` that is as late as that, if there is one."""
        with closing(self.search_times(limit or self.end)) as search:
            return search.first_from(timestamp_ms)

    def max_timestamp(self, limit: LogPosition | None = None) -> tuple[int, int]:
        """(timestamp, offset) of the record with the greatest timestamp before `limit`; (-1, -1) if there is none."""
        with closing(self.search_times(limit or self.end)) as search:
            return search.latest()

    def search_times(self, limit: LogPosition) -> TimeSearch:
        """In the loop, for a search in a thread."""
        return TimeSearch(self._segments.from_offset(self.start_offset), self.start_offset, limit)


def _before(segments: list[Segment], number: int, position: int, reader: Reader) -> tuple[int, int]:
    """Where one begins that is at least two batches before this place: segment's number, position."""
    for _ in range(_BATCHES_BEFORE):
        if not position:
            if number <= 0:
                break
            number -= 1
            position = segments[number].size
        segments[number].warm_index(reader)
        position = segments[number].index.boundary_before(position - 1)
    return number, position


def _whole_batches(segments: list[Segment], from_offset: int, end: LogPosition) -> Iterator[bytes]:
    for segment in segments:
        try:
            for header, position in segment.headers(from_offset, end_in(segment, end), SWEEP_BYTES):
                yield segment.handle().read(header.size_bytes, position)
        finally:
            segment.file = None  # the copy and its cache hold each other: nobody else would close it soon
