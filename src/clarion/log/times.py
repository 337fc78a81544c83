"""Search by time inside one segment: the index and the headers find the batch, its records the exact offset."""

from __future__ import annotations

from typing import Final

from clarion.log.segment import Segment
from clarion.model.errors import KafkaError
from clarion.wire.batch import BatchHeader

# About a tenth of a second in which everybody waits. In a larger batch its first record is the answer.
RECORDS_SEARCHED_MAX: Final = 100_000


def find_time(segment: Segment, timestamp_ms: int, start_offset: int, end: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record at or behind `start_offset` that is as late as that."""
    entry = segment.times.lookup(timestamp_ms)
    first = max(entry[1] if entry else segment.base_offset, start_offset)
    for header, position in segment.headers(first, end):
        if header.max_timestamp >= timestamp_ms:
            found = _in_batch(segment, header, position, timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def find_latest(segment: Segment, start_offset: int, end: int) -> tuple[int, int]:
    """(timestamp, offset) of the first record with the greatest timestamp; (-1, -1) if there is none."""
    best: tuple[BatchHeader, int] | None = None
    first = max(segment.largest[1], start_offset)
    if segment.find(first, end) is None:
        first = start_offset  # the greatest lies behind the limit: look at all before it
    for header, position in segment.headers(first, end):
        if best is None or header.max_timestamp > best[0].max_timestamp:
            best = header, position
    if best is None or best[0].max_timestamp < 0:
        return -1, -1
    header, position = best
    found = _in_batch(segment, header, position, header.max_timestamp, start_offset)
    return found or (header.max_timestamp, header.last_offset)


def _in_batch(
    segment: Segment, header: BatchHeader, position: int, timestamp_ms: int, start_offset: int
) -> tuple[int, int] | None:
    """None only if nothing is in the batch, or what makes it as late as its header says lies before the start offset.

    A header that lies is believed: else a search would decode one lying batch after the other while everybody waits.
    """
    if header.record_count == 0:
        return None  # compaction kept the batch for its producer's sake
    by_header = header.max_timestamp, max(header.base_offset, start_offset)
    if header.is_log_append_time or header.record_count > RECORDS_SEARCHED_MAX:
        return by_header
    from clarion.wire.records import iter_records  # brings the compression codecs along

    batch = segment.handle().read(header.size_bytes, position)
    try:
        for record in iter_records(batch):
            if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                return record.timestamp, record.offset
    except KafkaError:
        # What cannot be decoded is still there for whoever reads it: it is found by its header.
        return by_header
    return by_header if header.base_offset >= start_offset else None
