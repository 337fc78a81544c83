"""Search by time: the indexes and the headers find the batch, its records the exact offset.

A search reads from the disk and may unpack a batch, so it runs in a thread, on segments of its own:

    search = TimeSearch(segments, start_offset, limit)      in the loop
    found = search.first_from(timestamp_ms)                 in a thread
    search.close()                                          in the loop: what it learned of sealed segments is kept

Whatever lies in the log, one search unpacks and looks at no more than the two limits below allow. What is beyond them
is found by its header: the answer is then the first record of the right batch instead of the right record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from clarion.log.files import FileCache
from clarion.log.folder import Folder
from clarion.log.segment import Segment
from clarion.model.errors import KafkaError
from clarion.model.ids import LogPosition
from clarion.wire.batch import HAS_DELETE_HORIZON, BatchHeader

RECORDS_SEARCHED_MAX: Final = 100_000  # a tenth of a second of one core; clients put a few thousand into a batch
UNPACKED_BYTES_MAX: Final = 16 << 20  # a batch of a megabyte rarely unpacks to more


class TimeSearch:
    def __init__(self, segments: Iterable[Segment], start_offset: int, limit: LogPosition) -> None:
        """`segments`: from the one that holds `start_offset` on. Nothing is read yet."""
        self._start_offset = start_offset
        self._limit = limit
        self._pairs = copies_for_a_thread([one for one in segments if one.base_offset <= limit.segment])
        self._records_left = RECORDS_SEARCHED_MAX
        self._bytes_left = UNPACKED_BYTES_MAX

    def close(self) -> None:
        for own, copy in self._pairs:
            copy.file = None
            own.learn_from(copy)

    def first_from(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record that is as late as that, if there is one."""
        for _, segment in self._pairs:
            if segment.size and segment.largest_timestamp >= timestamp_ms:
                found = self._first_in(segment, timestamp_ms)
                if found is not None:
                    return found
        return None

    def latest(self) -> tuple[int, int]:
        """(timestamp, offset) of the first record with the greatest timestamp; (-1, -1) if there is none."""
        best = (-1, -1)
        for _, segment in self._pairs:
            if segment.size and segment.largest_timestamp > best[0]:
                found = self._latest_in(segment)
                best = found if found[0] > best[0] else best
        return best

    def _first_in(self, segment: Segment, timestamp_ms: int) -> tuple[int, int] | None:
        entry = segment.times.lookup(timestamp_ms)
        first = max(entry[1] if entry else segment.base_offset, self._start_offset)
        for header, position in segment.headers(first, self._end_of(segment)):
            if header.max_timestamp >= timestamp_ms:
                found = self._in_batch(segment, header, position, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _latest_in(self, segment: Segment) -> tuple[int, int]:
        best: tuple[int, BatchHeader, int] | None = None  # its greatest timestamp, and where it is
        end = self._end_of(segment)
        for header, position in segment.headers(self._first_to_look_at(segment, end), end):
            if header.record_count == 0:
                continue  # compaction kept the batch for its producer's sake
            latest = self._latest_readable(segment, header, position)
            if best is None or latest > best[0]:
                best = latest, header, position
        if best is None or best[0] < 0:
            return -1, -1
        latest, header, position = best
        found = self._in_batch(segment, header, position, latest)
        return found or ((latest, header.last_offset) if latest else (-1, -1))

    def _first_to_look_at(self, segment: Segment, end: int) -> int:
        """The batch that the index says has the greatest timestamp, unless it can no longer be read, or not yet."""
        largest = segment.largest[1]
        if largest >= self._start_offset:
            for header, _ in segment.headers(largest, end):
                if header.record_count and header.base_offset >= self._start_offset:
                    return largest
                break
        return self._start_offset

    def _latest_readable(self, segment: Segment, header: BatchHeader, position: int) -> int:
        """As the header says, unless the batch begins before the log's start: what made it so late may be deleted."""
        if header.base_offset >= self._start_offset or header.is_log_append_time:
            return header.max_timestamp
        try:
            records = self._records_of(segment, header, position)
            return max((timestamp for timestamp, offset in records if offset >= self._start_offset), default=-1)
        except KafkaError:
            return header.max_timestamp

    def _end_of(self, segment: Segment) -> int:
        is_last = segment.base_offset == self._limit.segment
        return min(self._limit.position, segment.size) if is_last else segment.size

    def _in_batch(
        self, segment: Segment, header: BatchHeader, position: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """None only if nothing is in the batch, or what makes it as late as its header says lies before the start.

        A header that lies is believed: else a search would decode one lying batch after the other. Only the 0 that
        clients leave in a batch of messages without a time is not taken for a time.
        """
        if header.record_count == 0:
            return None  # compaction kept the batch for its producer's sake
        start_offset = self._start_offset
        by_header = header.max_timestamp, max(header.base_offset, start_offset)
        if header.is_log_append_time and _is_whole(header):
            return by_header
        if _begins_as_late(header, timestamp_ms) and header.base_offset >= start_offset:
            return header.base_timestamp, header.base_offset
        try:
            for timestamp, offset in self._records_of(segment, header, position):
                if timestamp >= timestamp_ms and offset >= start_offset:
                    return timestamp, offset
        except KafkaError:
            # What cannot be decoded is still there for whoever reads it: it is found by its header.
            return by_header
        return by_header if header.base_offset >= start_offset and header.max_timestamp else None

    def _records_of(self, segment: Segment, header: BatchHeader, position: int) -> Iterator[tuple[int, int]]:
        """(timestamp, offset) of every record, or KafkaError, also where that is more than this search may look at."""
        from clarion.wire.records import read_whole_header, records_data, scan_times  # bring the codecs along

        batch = segment.handle().read(header.size_bytes, position)
        data = records_data(batch, read_whole_header(batch), self._bytes_left)
        self._bytes_left -= len(data)
        self._records_left -= header.record_count
        found = scan_times(data, header, records_max=self._records_left + header.record_count)
        if header.is_log_append_time:
            return ((header.max_timestamp, offset) for _, offset in found)
        return found


def _begins_as_late(header: BatchHeader, timestamp_ms: int) -> bool:
    """Whether the header alone says that the first record is the answer: it has the base timestamp and offset."""
    has_own_base = _is_whole(header) and not header.attributes & HAS_DELETE_HORIZON
    return has_own_base and timestamp_ms <= header.base_timestamp <= header.max_timestamp


def _is_whole(header: BatchHeader) -> bool:
    """Compaction has taken nothing out of it."""
    return header.record_count == header.last_offset_delta + 1


def copies_for_a_thread(segments: list[Segment]) -> list[tuple[Segment, Segment]]:
    """Each segment with a copy that a thread may use: handles and indexes in a log's cache belong to the loop."""
    if not segments:
        return []
    home = segments[0].folder
    folder = Folder(home.disk, home.path, FileCache(home.disk), home.config)
    return [(segment, segment.copy_in(folder)) for segment in segments]
