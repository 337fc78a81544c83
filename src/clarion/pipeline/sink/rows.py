"""Rows of a DataFrame turned into messages: columns checked when the query is planned, rows when they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.encode import Messages, messages, size_bounds
from clarion.pipeline.kafka.errors import RefusedRowError
from clarion.pipeline.kafka.headers import HEADERS_TYPE
from clarion.pipeline.kafka.varints import Longs

_TEXT: Final = (StringType, BinaryType)
# What a row read from a topic has and a row written to one cannot choose. They are allowed, so that a topic can be
# copied.
_READ_ONLY: Final = ("offset", "timestampType")
NO_TIMESTAMP: Final = -1  # of messages whose producer gave them none: a copy has none, either


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse, by name, a column that is missing, of the wrong type, or has no place in a message."""
    fields = {field.name: field for field in schema.fields}
    if "value" not in fields:
        raise OptionError(f"a message needs a column `value`; there is {', '.join(fields) or 'none'}")
    if topic is None and "topic" not in fields:
        raise OptionError("where to? Give the option topic or a column `topic`")
    for name, field in fields.items():
        if name in _READ_ONLY:
            continue
        if name not in _KINDS:
            raise OptionError(f"column `{name}` has no place in a message; columns are {', '.join(_KINDS)}")
        if not _fits(field, name):
            raise OptionError(f"column `{name}` is {field.dataType.simpleString()}; it must be {_KINDS[name]}")


_KINDS: Final = {
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}


def _fits(field: StructField, name: str) -> bool:
    kind = field.dataType
    match name:
        case "key" | "value":
            return isinstance(kind, _TEXT)
        case "headers":
            return isinstance(kind, ArrayType) and _is_header(kind.elementType)
        case "topic":
            return isinstance(kind, StringType)
        case "partition":
            return isinstance(kind, IntegerType)
    return isinstance(kind, TimestampType | TimestampNTZType)


def _is_header(kind: DataType) -> bool:
    return (
        isinstance(kind, StructType)
        and kind.fieldNames() == ["key", "value"]
        and isinstance(kind[0].dataType, StringType)
        and isinstance(kind[1].dataType, BinaryType)
    )


# ------------------------------------------------------------------------------------------------ rows


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that are messages but for their place: topics and partitions are null where they are not chosen."""

    messages: Messages
    sizes: Longs  # in bytes, at most
    topics: pa.Array | None
    partitions: pa.Array | None
    first_row: int  # of the task's input


def stage(batches: Sequence[pa.RecordBatch], *, first_row: int, now_ms: int, message_bytes_max: int) -> Staged:
    """Several Arrow batches as one, checked row by row (all at once)."""
    columns = {name: _joined(batches, name) for name in batches[0].schema.names if name in _KINDS}
    count = sum(batch.num_rows for batch in batches)
    key = _binary(columns["key"]) if "key" in columns else pa.nulls(count, pa.binary())
    value = _binary(columns["value"])
    headers = columns.get("headers")
    if headers is not None:
        _check_headers(headers, first_row)
        headers = headers.cast(HEADERS_TYPE)
    times = _milliseconds(columns.get("timestamp"), count, now_ms)
    _refuse_where(times < NO_TIMESTAMP, first_row, "has a timestamp before 1970, which a message cannot have")
    rows = messages(key, value, times, headers)
    sizes = size_bounds(rows)
    _refuse_where(
        sizes > message_bytes_max,
        first_row,
        f"is larger than a request may be, which is {message_bytes_max} bytes (option kafka.max.request.size)",
    )
    return Staged(rows, sizes, columns.get("topic"), columns.get("partition"), first_row)


def _joined(batches: Sequence[pa.RecordBatch], name: str) -> pa.Array:
    arrays = [batch.column(name) for batch in batches]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _milliseconds(column: pa.Array | None, count: int, now_ms: int) -> Longs:
    if column is None:
        return np.full(count, now_ms, np.int64)
    numbers = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    micros: Longs = pc.fill_null(numbers, now_ms * 1000).to_numpy(zero_copy_only=False)
    return micros // 1000


def _check_headers(headers: pa.Array, first_row: int) -> None:
    entries = headers.flatten()
    bad = pc.or_(pc.is_null(entries), pc.is_null(pc.struct_field(entries, "key")))
    if pc.any(bad).as_py():
        parents = pc.list_parent_indices(headers)
        row = parents[pc.index(bad, True).as_py()].as_py()
        raise RefusedRowError(f"row {first_row + row} has a header without a name")


def _refuse_where(bad: NDArray[np.bool_], first_row: int, why: str) -> None:
    if bad.any():
        raise RefusedRowError(f"row {first_row + int(bad.argmax())} {why}")
