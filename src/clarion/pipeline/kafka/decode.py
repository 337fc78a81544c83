"""Record batches of a whole fetch response, decoded at once into Arrow columns.

One Python loop hops from record to record, reading nothing but lengths. Everything else is done for all records
together: numpy reads the numbers, and pyarrow copies keys and values by `take` from an array laid over the raw bytes.
Whatever the bytes are, the result is either columns that are consistent with the batches' headers, or one
CorruptDataError that names partition and offset.

    record: length · attributes · timestamp delta · offset delta · key length, key · value length, value ·
            header count, and for each header: key length, key, value length, value       (length -1 stands for null)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clarion.pipeline.kafka.batches import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchRun,
    Buffer,
    FetchedBatches,
    corrupt,
)
from clarion.pipeline.kafka.columns import gather, number_column
from clarion.pipeline.kafka.compression import UncompressedError, decompress
from clarion.pipeline.kafka.headers import UnreadableHeadersError, no_headers, read_headers
from clarion.pipeline.kafka.hopping import UnfilledBatchError, record_starts
from clarion.pipeline.kafka.varints import Bytes, Longs, UnreadableVarintError, read_varints

# A producer fills batches of at most a few megabytes before it compresses them; sixty-four leave ample room.
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
# Compressed batches are decoded together until this much has come out: enough for numpy, little for memory.
TOGETHER_BYTES: Final = 8 * 1024 * 1024

_TIMESTAMP_MAX: Final = 2**61
_MICROSECONDS_MAX: Final = 2**63 // 1000 - 1  # greater milliseconds do not fit a microsecond column
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages as columns."""

    key: pa.Array
    value: pa.Array
    offset: pa.Array
    timestamp: pa.Array
    timestamp_type: pa.Array
    headers: pa.Array | None
    run: NDArray[np.int64]  # which run of the response each message comes from

    @property
    def count(self) -> int:
        return len(self.key)


def decode(
    frame: Buffer,
    batches: FetchedBatches,
    runs: Sequence[BatchRun],
    *,
    with_headers: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Rows]:
    """The wanted messages of these batches, in order; in several parts if they were compressed and are large."""
    for part, data, at, end in _record_data(frame, batches, runs, decompressed_bytes_max):
        try:
            rows = _decode_part(data, part, at, end, runs, with_headers)
        except _DamagedRecordError as damage:
            raise corrupt(part, damage.batch, runs, damage.what) from None
        if rows.count:
            yield rows


class _DamagedRecordError(Exception):
    def __init__(self, batch: int, what: str) -> None:
        super().__init__(what)
        self.batch = batch
        self.what = what


# ------------------------------------------------------------------------------------------------ where the records are


def _record_data(
    frame: Buffer, batches: FetchedBatches, runs: Sequence[BatchRun], limit_bytes: int
) -> Iterator[tuple[FetchedBatches, Buffer, list[int], list[int]]]:
    """Batches with the bytes that hold their records, and where in those each batch's records begin and end."""
    if not batches.count:
        return
    codes = (batches.header["attributes"] & COMPRESSION_MASK).tolist()
    starts = (batches.at + HEADER_BYTES).tolist()
    ends = batches.end.tolist()
    if not any(codes):
        yield batches, frame, starts, ends
        return
    view = memoryview(frame)
    first, parts, bounds = 0, list[bytes | memoryview](), [0]
    for nth, code in enumerate(codes):
        content = view[starts[nth] : ends[nth]]
        parts.append(_expand(code, content, limit_bytes, batches, nth, runs) if code else content)
        bounds.append(bounds[-1] + len(parts[-1]))
        if bounds[-1] >= TOGETHER_BYTES or nth == len(codes) - 1:
            yield batches[first : nth + 1], b"".join(parts), bounds[:-1], bounds[1:]
            first, parts, bounds = nth + 1, [], [0]


def _expand(
    code: int, content: memoryview, limit_bytes: int, batches: FetchedBatches, nth: int, runs: Sequence[BatchRun]
) -> bytes:
    try:
        return decompress(code, content, limit_bytes)
    except UncompressedError as error:
        raise corrupt(batches, nth, runs, str(error)) from None


# ------------------------------------------------------------------------------------------------ what the records say


def _decode_part(
    data: Buffer, batches: FetchedBatches, at: list[int], end: list[int], runs: Sequence[BatchRun], with_headers: bool
) -> Rows:
    counts = batches.header["record_count"]
    octets = np.frombuffer(data, np.uint8)
    starts = _starts(data, octets, at, end, counts.tolist())
    batch = np.repeat(np.arange(batches.count), counts)
    record = _Cursor(octets, starts, batch)
    length = record.read()
    record_end = record.at + length
    record.check(length >= 0, "a record of negative length")
    record.at = record.at + 1  # a record's attributes are unused
    shift = record.read()
    delta = record.read()
    key_length, key_at = record.skip_bytes(record_end, "key")
    value_length, value_at = record.skip_bytes(record_end, "value")
    header_count = record.read()
    record.check(np.where(header_count == 0, record.at == record_end, record.at <= record_end), _WRONG_END)
    record.check((header_count >= 0) & (header_count <= (record_end - record.at) // 2), "too many headers")
    _check_deltas(record, batches, delta, shift)
    offset = batches.header["base_offset"][batch] + delta
    chosen = _chosen(offset, batches.run[batch], runs)
    if chosen is not None:
        batch, offset, shift = batch[chosen], offset[chosen], shift[chosen]
        key_at, key_length = key_at[chosen], key_length[chosen]
        value_at, value_length = value_at[chosen], value_length[chosen]
        header_count, headers_at, record_end = header_count[chosen], record.at[chosen], record_end[chosen]
    else:
        headers_at = record.at
    raw = pa.py_buffer(data)
    headers = None
    if with_headers:
        headers = _headers(octets, raw, header_count, headers_at, record_end, batch)
    is_append_time = (batches.header["attributes"] & LOG_APPEND_TIME) != 0
    return Rows(
        key=gather(raw, key_at, key_length),
        value=gather(raw, value_at, value_length),
        offset=number_column(offset, pa.int64()),
        timestamp=number_column(_microseconds(batches, batch, shift, is_append_time), TIMESTAMP_TYPE),
        timestamp_type=number_column(is_append_time.astype(np.int32)[batch], pa.int32()),
        headers=headers,
        run=batches.run[batch],
    )


def _starts(data: Buffer, octets: Bytes, at: list[int], end: list[int], counts: list[int]) -> Longs:
    try:
        return record_starts(data, octets, at, end, counts)
    except UnfilledBatchError as error:
        raise _DamagedRecordError(error.nth, str(error)) from None


_WRONG_END: Final = "a record does not end where it says"


class _Cursor:
    """A place in each of many records, which moves as numbers are read."""

    def __init__(self, data: Bytes, at: Longs, batch: NDArray[np.int64]) -> None:
        self.data = data
        self.at = at
        self.batch = batch

    def read(self) -> Longs:
        try:
            numbers, self.at = read_varints(self.data, self.at)
        except UnreadableVarintError as error:
            raise _DamagedRecordError(int(self.batch[error.index]), str(error)) from None
        return numbers

    def skip_bytes(self, record_end: Longs, name: str) -> tuple[Longs, Longs]:
        """Length and place of a field; -1 for null."""
        length = self.read()
        at = self.at
        # Judged before it is added: a length of 2^62 must not wrap around.
        self.check((length >= -1) & (length <= record_end - at), f"a {name} that does not fit its record")
        self.at = at + np.maximum(length, 0)
        return length, at

    def check(self, holds: NDArray[np.bool_], what: str) -> None:
        if not holds.all():
            raise _DamagedRecordError(int(self.batch[int((~holds).argmax())]), what)


def _check_deltas(record: _Cursor, batches: FetchedBatches, delta: Longs, shift: Longs) -> None:
    """Offsets rise inside a batch and stay in it; timestamps stay representable."""
    if not len(delta):
        return
    rises = np.empty(len(delta), np.bool_)
    rises[0] = delta[0] >= 0
    rises[1:] = np.where(record.batch[1:] == record.batch[:-1], delta[1:] > delta[:-1], delta[1:] >= 0)
    record.check(rises & (delta <= batches.header["last_offset_delta"][record.batch]), "its offsets do not rise")
    record.check((shift <= _TIMESTAMP_MAX) & (shift >= -_TIMESTAMP_MAX), "a timestamp is out of range")


def _chosen(offset: Longs, run: NDArray[np.int64], runs: Sequence[BatchRun]) -> NDArray[np.intp] | None:
    """Which messages have wanted offsets; None stands for all of them."""
    start = np.array([one.start_offset for one in runs], np.int64)
    end = np.array([one.end_offset for one in runs], np.int64)
    if len(runs) == 1:
        wanted = (offset >= start[0]) & (offset < end[0])
    else:
        wanted = (offset >= start[run]) & (offset < end[run])
    return None if wanted.all() else np.flatnonzero(wanted)


def _microseconds(
    batches: FetchedBatches, batch: NDArray[np.int64], shift: Longs, is_append_time: NDArray[np.bool_]
) -> Longs:
    stamp = batches.header["base_timestamp"][batch] + shift
    if is_append_time.any():
        stamp = np.where(is_append_time[batch], batches.header["max_timestamp"][batch], stamp)
    return np.clip(stamp, -_MICROSECONDS_MAX, _MICROSECONDS_MAX) * 1000


def _headers(octets: Bytes, raw: pa.Buffer, count: Longs, at: Longs, end: Longs, batch: NDArray[np.int64]) -> pa.Array:
    if not count.any():
        return no_headers(len(count))
    try:
        return read_headers(octets, raw, count, at, end)
    except UnreadableHeadersError as error:
        raise _DamagedRecordError(int(batch[error.row]), str(error)) from None
