"""Rows to folders: which partition of its table a row belongs to, and how its folder is called (Hive's way)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clarion.pipeline.lake.errors import LakeError

NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}

Values = tuple[str | None, ...]


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The batch in pieces of one partition each, rows in their order, without the partition columns."""
    rest = [name for name in batch.schema.names if name not in columns]
    body = batch.select(rest)
    if not columns or not batch.num_rows:
        yield (), body
        return
    codes, dictionaries = _codes([batch.column(name) for name in columns])
    if all(len(words) == 1 for words in dictionaries):  # by far the most
        yield tuple(words[0] for words in dictionaries), body
        return
    distinct, inverse = np.unique(codes, axis=1, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse.ravel(), minlength=distinct.shape[1]))
    starts = np.concatenate(([0], ends[:-1]))
    for index in range(distinct.shape[1]):
        rows = pa.array(order[starts[index] : ends[index]])
        yield _values(distinct[:, index], dictionaries), body.take(rows)


def folder(columns: Sequence[str], values: Values) -> str:
    """`date=2026-11-01/hour=5`; empty where the table is not partitioned."""
    return "/".join(
        f"{_escape(name)}={_escape(value or NO_VALUE)}" for name, value in zip(columns, values, strict=True)
    )


def can_partition(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_date32(kind) or types.is_integer(kind) or types.is_string(kind) or types.is_boolean(kind))


def _codes(columns: Sequence[pa.Array]) -> tuple[np.ndarray, list[list[str | None]]]:
    """A row of small numbers per column, and what the numbers stand for."""
    encoded = [pc.dictionary_encode(_without_empty(column), null_encoding="encode") for column in columns]
    codes = np.stack([each.indices.to_numpy(zero_copy_only=False) for each in encoded])
    return codes, [[_text(value) for value in each.dictionary] for each in encoded]


def _without_empty(column: pa.Array) -> pa.Array:
    """An empty string names no folder: it is no value, in Hive as in Delta."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def _values(codes: np.ndarray, dictionaries: Sequence[Sequence[str | None]]) -> Values:
    return tuple(words[code] for words, code in zip(dictionaries, codes.tolist(), strict=True))


def _text(scalar: pa.Scalar) -> str | None:
    """A partition value as Delta writes it down."""
    try:
        value = scalar.as_py()
    except OverflowError:
        raise LakeError(
            "a date before the year 1 or after 9999 cannot name a folder of a table; without folders it can be written "
            "(no partitionBy; an archive by none)"
        ) from None
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)
