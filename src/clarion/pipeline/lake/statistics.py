"""What a parquet file's footer knows about its columns, in the words of Delta's statistics.

Readers skip files by them, so a bound may be loose but never wrong: a long string is cut, its upper bound behind all
that begin alike, a timestamp is widened to whole milliseconds, a NaN tells nothing, nor does a time that Python has no
word for. Only there is no bound: delta-rs' datasets (DuckDB, pandas) skip a file that has none for a column that they
look for a value in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_TEXT_MAX: Final = 64  # characters of a string bound; more costs log space and skips little
_LAST_CHARACTER: Final = "\U0010ffff"


def columns_with_bounds(schema: pa.Schema) -> list[str]:
    """Columns for which a smallest and a largest value are worth keeping; payload bytes are not."""
    return [field.name for field in schema if _is_ordered(field.type) and "." not in field.name]


def file_statistics(footer: pq.FileMetaData, columns: Sequence[str]) -> str:
    """Delta's `stats` of one file, as JSON."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, name in _positions(footer, columns):
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if not found or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        _bounds(name, [each for each in found if each.num_values], lowest, highest)
    known = {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(known, ensure_ascii=False)  # delta-rs takes an escaped U+20000 for U+10000


def _positions(footer: pq.FileMetaData, columns: Sequence[str]) -> list[tuple[int, str]]:
    if not footer.num_row_groups:
        return []
    group = footer.row_group(0)
    paths = [group.column(index).path_in_schema for index in range(footer.num_columns)]
    return [(index, path) for index, path in enumerate(paths) if path in columns]


def _bounds(name: str, found: Sequence[Any], lowest: dict[str, Any], highest: dict[str, Any]) -> None:
    if not found or not all(each.has_min_max for each in found):
        return
    try:
        low, high = _floor(min(each.min for each in found)), _ceiling(max(each.max for each in found))
    except OverflowError:  # after the year 9999: microseconds that a producer sent as milliseconds
        return
    if low is not None:
        lowest[name] = low
    if high is not None:
        highest[name] = high


def _floor(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    if isinstance(value, datetime):
        return _stamp(value.replace(microsecond=value.microsecond // 1000 * 1000))
    return _plain(value)


def _ceiling(value: Any) -> Any:
    if isinstance(value, str):
        kept = _TEXT_MAX
        while value[kept : kept + 1] == _LAST_CHARACTER:
            kept += 1
        return value if len(value) <= kept else value[:kept] + _LAST_CHARACTER
    if isinstance(value, datetime):
        return _stamp(value + timedelta(microseconds=-value.microsecond % 1000))
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.isoformat() if isinstance(value, date) else value


def _stamp(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text + "Z" if value.tzinfo is not None else text


def _is_ordered(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_date32, pa.types.is_timestamp)
    return any(check(kind) for check in checks)
