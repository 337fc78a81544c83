"""What compaction leaves of one batch. Pure: a batch and a map of keys in; the same, a smaller one or none out."""

from __future__ import annotations

from typing import Final, NamedTuple

from clarion.log.key_map import KeyMap
from clarion.log.tombstones import Tombstones
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.batch import COMPRESSION_MASK, HAS_DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from clarion.wire.limits import WorkBudget
from clarion.wire.records import (
    DECOMPRESSED_BYTES_MAX,
    RecordSpan,
    assemble_batch,
    put_shifted,
    read_whole_header,
    records_data,
    scan_spans,
)

# In one batch. An honest megabyte has fewer, even of the smallest records; one made to hurt could have millions.
RECORDS_MAX: Final = 250_000
_STEPS_MAX: Final = 1_000_000  # records and their headers; no more than a produced batch is let in with

# What a batch may unpack to. A producer fills a few megabytes before it compresses them: whatever becomes sixteen, and
# thirty-two times what it was, was made to cost time, and is not worth it.
_UNPACKED_BYTES_MIN: Final = 16 << 20
_UNPACKED_PER_BYTE: Final = 32


def is_opaque(header: BatchHeader) -> bool:
    """Batches whose records cannot be judged by their keys alone: markers, and data that may have been aborted."""
    return header.is_control or header.is_transactional


def read_spans(header: BatchHeader, batch: memoryview) -> tuple[bytes, list[RecordSpan]]:
    """The records of a batch: all of them, or KafkaError, so that half a lie never counts."""
    read_whole_header(batch)
    if header.record_count > RECORDS_MAX:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{header.record_count} records are too many to look at")
    unpacked_max = unpacked_bytes_max(len(batch))
    data = records_data(batch, header, unpacked_max)
    return data, list(scan_spans(data, header, WorkBudget(_STEPS_MAX, unpacked_max)))


def unpacked_bytes_max(size: int) -> int:
    """What a stored batch of so many bytes may become, to be worth looking into."""
    return min(max(_UNPACKED_BYTES_MIN, _UNPACKED_PER_BYTE * size), DECOMPRESSED_BYTES_MAX)


class FilterState(NamedTuple):
    """What a filter has made of the batches up to one."""

    has_unjudged: bool
    records_dropped: int
    tombstones_dropped: int
    next_horizon_ms: int | None


class BatchFilter:
    def __init__(
        self,
        *,
        keys: KeyMap,
        reach: int,
        start_offset: int,
        now_ms: int,
        delete_retention_ms: int,
        keep_last_offsets: frozenset[int],
        tombstones: Tombstones,
    ) -> None:
        """`reach`: the first offset that the map knows nothing about. `tombstones` is asked for every batch."""
        self._keys = keys
        self._reach = reach
        self._start_offset = start_offset
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, _TIME_MAX)
        self._keep_last_offsets = keep_last_offsets
        self._tombstones = tombstones
        self._has_unjudged = False
        self.records_dropped = 0
        self.tombstones_dropped = 0  # whose time was over
        self.next_horizon_ms: int | None = None

    @property
    def standing(self) -> FilterState:
        return FilterState(self._has_unjudged, self.records_dropped, self.tombstones_dropped, self.next_horizon_ms)

    def go_back_to(self, standing: FilterState) -> None:
        """What came since then comes once more."""
        self._has_unjudged, self.records_dropped, self.tombstones_dropped, self.next_horizon_ms = standing

    def apply(self, header: BatchHeader, batch: memoryview, *, is_last: bool) -> memoryview | bytearray | None:
        """What stays: `batch` itself where nothing changes, None where nothing stays. KafkaError if it cannot be read.

        `is_last`: it ends its segment, and must go on doing so.
        """
        if header.base_offset >= self._reach:
            return batch
        if is_opaque(header):
            if not header.is_control:
                self.note_unjudged(header)
            return batch
        data, spans = read_spans(header, batch)
        is_needed = is_last or (header.has_producer and header.last_offset in self._keep_last_offsets)
        if header.last_offset < self._start_offset:
            return self._emptied(header, batch) if is_needed else None
        kept = self._kept(header, spans)
        self.records_dropped += header.record_count - len(kept)
        if not kept:
            return self._emptied(header, batch) if is_needed else None
        horizon = self._horizon_for(header, kept)
        if len(kept) == header.record_count and horizon is None:
            return batch
        return _rebuilt(header, data, kept, horizon)

    def note_unjudged(self, header: BatchHeader) -> None:
        """This batch stays as it is and may hold a value of any key: no tombstone behind it can go.

        Batches come in the order of their offsets, so what is noted here is true of all that follow.
        """
        self._has_unjudged = self._has_unjudged or header.last_offset >= self._start_offset

    def _kept(self, header: BatchHeader, spans: list[RecordSpan]) -> list[RecordSpan]:
        """Records that the map cannot judge, and of the others the newest of their key, unless it deletes the key."""
        last_offset_of, base = self._keys.get, header.base_offset
        reach = self._reach - base
        newest = [
            span
            for span in spans
            if (key := span[5]) is None or span[4] >= reach or last_offset_of(key) <= base + span[4]
        ]
        if self._has_unjudged or not self._tombstones.may_go or not self._is_past_horizon(header):
            return newest
        kept = [span for span in newest if span[6] >= 0 or span[5] is None or span[4] >= reach]
        self.tombstones_dropped += len(newest) - len(kept)
        return kept

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return bool(header.attributes & HAS_DELETE_HORIZON) and header.base_timestamp <= self._now_ms

    def _horizon_for(self, header: BatchHeader, kept: list[RecordSpan]) -> int | None:
        """The delete horizon that the batch must get now; None if it needs none, has one, or is not covered yet."""
        if self._has_unjudged:
            return None
        if not any(value_at < 0 for _, _, _, _, _, _, value_at, _ in kept) or header.last_offset >= self._reach:
            return None
        has_one = bool(header.attributes & HAS_DELETE_HORIZON)
        horizon = header.base_timestamp if has_one else self._horizon_ms
        self.next_horizon_ms = min(horizon, self.next_horizon_ms or horizon)
        return None if has_one else horizon

    def _emptied(self, header: BatchHeader, batch: memoryview) -> memoryview | bytearray:
        """A batch without records: offsets, producer, epoch and sequence stay."""
        if header.record_count == 0:
            return batch
        return assemble_batch(
            header._replace(
                attributes=header.attributes & ~(COMPRESSION_MASK | HAS_DELETE_HORIZON),
                base_timestamp=header.max_timestamp,
                record_count=0,
            ),
            b"",
        )


_TIME_MAX: Final = 2**61  # milliseconds, as in `records`


def _rebuilt(header: BatchHeader, data: bytes, kept: list[RecordSpan], horizon: int | None) -> bytearray:
    """The batch with these records only; codec, offsets and times stay. A horizon takes the base timestamp's place."""
    attributes, base = header.attributes, header.base_timestamp
    out = bytearray()
    if horizon is None:
        for start, _, end, _, _, _, _, _ in kept:
            out += data[start:end]
    else:
        attributes |= HAS_DELETE_HORIZON
        for span in kept:
            put_shifted(out, data, span, horizon - base)
    return assemble_batch(
        header._replace(
            attributes=attributes,
            base_timestamp=base if horizon is None else horizon,
            max_timestamp=_latest(header, kept),
            record_count=len(kept),
        ),
        out,
    )


def _latest(header: BatchHeader, kept: list[RecordSpan]) -> int:
    """The greatest timestamp of what stays. Under LogAppendTime the header's is every record's."""
    if header.attributes & LOG_APPEND_TIME:
        return header.max_timestamp
    return header.base_timestamp + max(span[3] for span in kept)
