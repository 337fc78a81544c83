"""The headers of many records at once, from and to an Arrow column `array<struct<key: string, value: binary>>`.

Reading goes in rounds: the first header of every record that has one, then the second, and so on. Records with more
headers than a round is worth are read one by one. A record without headers has null in the column, as in Spark's Kafka
connector.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clarion.pipeline.kafka.columns import gather, lengths, number_column, varint_column
from clarion.pipeline.kafka.varints import Bytes, Longs, UnreadableVarintError, read_varints

HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(HEADER_TYPE)

_ROUNDS_MAX: Final = 64


class UnreadableHeadersError(ValueError):
    """`row` says which record lies."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def no_headers(count: int) -> pa.Array:
    return pa.nulls(count, HEADERS_TYPE)


def read_headers(octets: Bytes, raw: pa.Buffer, count: Longs, at: Longs, end: Longs) -> pa.Array:
    """A column with the `count` headers at `at` of every record, which must end exactly at `end`."""
    first = np.concatenate([[0], np.cumsum(count)])
    places = _Places(int(first[-1]))
    few = np.flatnonzero((count > 0) & (count <= _ROUNDS_MAX))
    _read_in_rounds(octets, places, few, count, at, end, first)
    for row in np.flatnonzero(count > _ROUNDS_MAX).tolist():
        _read_one_by_one(octets, places, row, int(count[row]), int(at[row]), int(end[row]), int(first[row]))
    keys = _as_strings(gather(raw, places.key_at, places.key_length))
    values = gather(raw, places.value_at, places.value_length)
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    offsets = number_column(first.astype(np.int32), pa.int32(), np.append(count == 0, False))
    return pa.ListArray.from_arrays(offsets, entries, type=HEADERS_TYPE)


class _Places:
    """Where the names and values of all headers are."""

    def __init__(self, count: int) -> None:
        self.key_at = np.zeros(count, np.int64)
        self.key_length = np.zeros(count, np.int64)
        self.value_at = np.zeros(count, np.int64)
        self.value_length = np.zeros(count, np.int64)


def _read_in_rounds(
    octets: Bytes, places: _Places, rows: Longs, count: Longs, at: Longs, end: Longs, first: Longs
) -> None:
    here, nth = at[rows], 0
    while len(rows):
        entry = first[rows] + nth
        here = _read_one_field(octets, rows, here, end[rows], entry, places.key_at, places.key_length, least=0)
        here = _read_one_field(octets, rows, here, end[rows], entry, places.value_at, places.value_length, least=-1)
        nth += 1
        done = count[rows] == nth
        wrong = done & (here != end[rows])
        if wrong.any():
            raise UnreadableHeadersError(int(rows[wrong][0]), "a record does not end where it says")
        rows, here = rows[~done], here[~done]


def _read_one_field(
    octets: Bytes, rows: Longs, here: Longs, end: Longs, entry: Longs, at: Longs, length: Longs, *, least: int
) -> Longs:
    try:
        size, here = read_varints(octets, here)
    except UnreadableVarintError as error:
        raise UnreadableHeadersError(int(rows[error.index]), str(error)) from None
    wrong = (size < least) | (size > end - here)
    if wrong.any():
        raise UnreadableHeadersError(int(rows[wrong][0]), "a header that does not fit its record")
    at[entry], length[entry] = here, size
    return here + np.maximum(size, 0)


def _read_one_by_one(octets: Bytes, places: _Places, row: int, count: int, at: int, end: int, entry: int) -> None:
    """One record with many headers: its numbers are read in Python, from its own bytes."""
    data = octets[at:end].tobytes()
    here = 0
    for nth in range(entry, entry + count):
        for where, sizes, least in (
            (places.key_at, places.key_length, 0),
            (places.value_at, places.value_length, -1),
        ):
            size, here = _read_varint(data, here, row)
            if not least <= size <= len(data) - here:
                raise UnreadableHeadersError(row, "a header that does not fit its record")
            where[nth], sizes[nth] = at + here, size
            here += max(size, 0)
    if here != len(data):
        raise UnreadableHeadersError(row, "a record does not end where it says")


def _read_varint(data: bytes, at: int, row: int) -> tuple[int, int]:
    folded = 0
    for nth, byte in enumerate(data[at : at + 5]):
        folded |= (byte & 0x7F) << (7 * nth)
        if byte < 0x80:
            return (folded >> 1) ^ -(folded & 1), at + nth + 1
    raise UnreadableHeadersError(row, "a header is cut off")


def _as_strings(names: pa.Array) -> pa.Array:
    """Kafka never looks at a header's name; bytes that are not UTF-8 come out with replacement characters."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


# ------------------------------------------------------------------------------------------------ writing


def header_bytes(headers: pa.Array) -> tuple[pa.Array, Longs]:
    """The wire form of each row's headers without their count, and the counts; null means none."""
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = headers.flatten()
    keys, values = (entries.field(nth) if not entries.null_count else pc.struct_field(entries, nth) for nth in (0, 1))
    names = keys.cast(pa.binary())
    wire = pc.binary_join_element_wise(
        varint_column(lengths(names)), names, varint_column(lengths(values)), pc.fill_null(values, b""), b""
    )
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(number_column(bounds, pa.int32()), wire)
    return pc.binary_join(lists, b""), counts
