"""Arrow columns encoded into record batches, all rows at once.

The sizes of every field are known before anything is written, so the bytes between the keys and values (lengths,
deltas, counts) are made by numpy for all rows, and one `binary_join_element_wise` of pyarrow puts the pieces together;
its result is, end to end, the records of every batch. A batch is then a header, a slice of that, and a CRC.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clarion.pipeline.kafka.batches import HEADER_BYTES, LENGTH_PREFIX_BYTES
from clarion.pipeline.kafka.columns import binary_column, lengths, number_column, varint_column
from clarion.pipeline.kafka.compression import Buffer, compress
from clarion.pipeline.kafka.crc import crc32c
from clarion.pipeline.kafka.headers import header_bytes
from clarion.pipeline.kafka.varints import Longs, put_varints, varint_sizes

# What a record takes beside key, value and headers, at most: three lengths of five bytes, attributes, a timestamp delta
# of ten, an offset delta of five, a header count of five.
OVERHEAD_BYTES_MAX: Final = 3 * 5 + 1 + 10 + 5 + 5


@dataclass(frozen=True, slots=True)
class Messages:
    """What is to be written, as columns."""

    key: pa.Array  # binary
    value: pa.Array  # binary
    timestamp_ms: Longs
    header: pa.Array | None = None  # binary: the headers' wire form without their count
    header_count: Longs | None = None

    @property
    def count(self) -> int:
        return len(self.key)

    def slice(self, start: int, count: int) -> Messages:
        """Some of the rows, without copying them."""
        stop = start + count
        return Messages(
            self.key.slice(start, count),
            self.value.slice(start, count),
            self.timestamp_ms[start:stop],
            None if self.header is None else self.header.slice(start, count),
            None if self.header_count is None else self.header_count[start:stop],
        )

    def take(self, order: NDArray[np.intp]) -> Messages:
        """The rows in this order."""
        indices = number_column(order.astype(np.int64), pa.int64())
        return Messages(
            self.key.take(indices),
            self.value.take(indices),
            self.timestamp_ms[order],
            None if self.header is None else self.header.take(indices),
            None if self.header_count is None else self.header_count[order],
        )


def messages(key: pa.Array, value: pa.Array, timestamp_ms: Longs, headers: pa.Array | None = None) -> Messages:
    if headers is None or headers.null_count == len(headers):
        return Messages(key, value, timestamp_ms)
    return Messages(key, value, timestamp_ms, *header_bytes(headers))


def size_bounds(rows: Messages) -> Longs:
    """How many bytes each record takes at most."""
    sizes = np.maximum(lengths(rows.key), 0) + np.maximum(lengths(rows.value), 0) + OVERHEAD_BYTES_MAX
    return sizes if rows.header is None else sizes + lengths(rows.header)


def cut_batches(sizes: Longs, group_starts: NDArray[np.int64], batch_bytes_max: int) -> NDArray[np.int64]:
    """Where batches begin: at every group, and wherever the next record would make a batch too large.

    A record that is too large by itself gets a batch of its own.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    room = batch_bytes_max - HEADER_BYTES
    starts: list[int] = []
    for begin, end in pairwise([*group_starts.tolist(), len(sizes)]):
        while begin < end:
            starts.append(begin)
            fits = int(np.searchsorted(ends, ends[begin] + room, side="right")) - 1
            begin = min(end, max(fits, begin + 1))
    return np.array(starts, np.int64)


class EncodedRecords(NamedTuple):
    """The records of consecutive batches, end to end."""

    data: memoryview
    bounds: list[int]  # where in `data` each batch's records begin; one more at the end
    counts: list[int]
    base_timestamps: list[int]
    max_timestamps: list[int]


def encode_records(rows: Messages, batch_starts: NDArray[np.int64]) -> EncodedRecords:
    """Rows as records of the batches that begin at these rows."""
    stops = np.append(batch_starts[1:], rows.count)
    counts = stops - batch_starts
    base_timestamp = rows.timestamp_ms[batch_starts]
    shift = rows.timestamp_ms - np.repeat(base_timestamp, counts)
    delta = np.arange(rows.count) - np.repeat(batch_starts, counts)
    records = _join_pieces(rows, shift, delta)
    bounds = np.frombuffer(records.buffers()[1], np.int32)[records.offset :][: rows.count + 1]
    # As unsigned bytes: pyarrow's own view counts signed ones, which sockets and checksums do not take.
    data = memoryview(records.buffers()[2]).cast("B") if rows.count else memoryview(b"")
    return EncodedRecords(
        data,
        [*bounds[batch_starts].tolist(), int(bounds[-1])],
        counts.tolist(),
        base_timestamp.tolist(),
        np.maximum.reduceat(rows.timestamp_ms, batch_starts).tolist() if len(batch_starts) else [],
    )


def _join_pieces(rows: Messages, shift: Longs, delta: Longs) -> pa.Array:
    key_length, value_length = lengths(rows.key), lengths(rows.value)
    header_count = rows.header_count if rows.header_count is not None else np.zeros(rows.count, np.int64)
    fields = (shift, delta, key_length)
    sizes = [varint_sizes(field) for field in fields]
    value_size, count_size = varint_sizes(value_length), varint_sizes(header_count)
    body = 1 + sum(sizes) + np.maximum(key_length, 0) + value_size + np.maximum(value_length, 0) + count_size
    if rows.header is not None:
        body = body + lengths(rows.header)
    head = _heads(body, fields, sizes)
    pieces = [head, _filled(rows.key), varint_column(value_length), _filled(rows.value), varint_column(header_count)]
    if rows.header is not None:
        pieces.append(rows.header)
    return pc.binary_join_element_wise(*pieces, b"")


def _heads(body: Longs, fields: tuple[Longs, ...], sizes: list[Longs]) -> pa.Array:
    """What stands before the key: length, attributes, timestamp delta, offset delta, key length."""
    length_size = varint_sizes(body)
    bounds = np.concatenate([[0], np.cumsum(length_size + 1 + sum(sizes))])
    out = np.empty(int(bounds[-1]), np.uint8)
    at = put_varints(out, bounds[:-1], body, length_size)
    out[at] = 0  # attributes
    at = at + 1
    for field, size in zip(fields, sizes, strict=True):
        at = put_varints(out, at, field, size)
    return binary_column(bounds, out.data)


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, b"") if column.null_count else column


# ------------------------------------------------------------------------------------------------ batches

_PREFIX = Struct(">qi")  # base offset, batch length
_EPOCH_AND_MAGIC = Struct(">ib")
_CRC = Struct(">I")
_BEFORE_PRODUCER = Struct(">hiqq")  # attributes, last offset delta, base timestamp, max timestamp
_PRODUCER = Struct(">qhi")  # id, epoch, base sequence
_RECORD_COUNT = Struct(">i")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_PRODUCER_AT: Final = 43
_RECORD_COUNT_AT: Final = 57
MAGIC: Final = 2


@dataclass(slots=True)
class EncodedBatch:
    """A whole batch in two pieces, so that megabytes of records are not copied just to stand behind their header."""

    head: bytearray
    body: Buffer

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Say who wrote the batch and in which order; seal it with the CRC."""
        _PRODUCER.pack_into(self.head, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
        _CRC.pack_into(self.head, _CRC_AT, crc32c(self.body, crc32c(memoryview(self.head)[_CRC_FROM:])))


def assemble(records: EncodedRecords, nth: int, *, compression: int = 0) -> EncodedBatch:
    """The nth batch, all but its stamp."""
    body = compress(compression, records.data[records.bounds[nth] : records.bounds[nth + 1]])
    head = bytearray(HEADER_BYTES)
    _PREFIX.pack_into(head, 0, 0, HEADER_BYTES + len(body) - LENGTH_PREFIX_BYTES)
    _EPOCH_AND_MAGIC.pack_into(head, LENGTH_PREFIX_BYTES, -1, MAGIC)
    count = records.counts[nth]
    _BEFORE_PRODUCER.pack_into(
        head, _CRC_FROM, compression, count - 1, records.base_timestamps[nth], records.max_timestamps[nth]
    )
    _RECORD_COUNT.pack_into(head, _RECORD_COUNT_AT, count)
    return EncodedBatch(head, body)
