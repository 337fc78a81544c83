"""Where rows came from: per partition of a topic, the first offset and the one after the last.

A table that knows this of its rows cannot take them twice, whatever became of the query that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from clarion.pipeline.lake.errors import LakeError


class Origin(NamedTuple):
    """One partition of one topic; a topic made anew under the same name has another id, so another origin."""

    topic: str
    topic_id: str
    partition: int


def transaction_name(what: str, origin: Origin) -> str:
    """Under which a table remembers the `first` and the `next` offset of an origin."""
    return f"clarion.{what}/{origin.topic}/{origin.topic_id}/{origin.partition}"


class SourceRange(NamedTuple):
    origin: Origin
    first_offset: int
    next_offset: int
    rows: int = 0  # as far as somebody counted them


def ranges_of(table: pa.Table, columns: Sequence[str]) -> list[SourceRange]:
    """`columns`: the names of topic, topic id, partition and offset."""
    topic, topic_id, partition, offset = columns
    if empty := [name for name in (topic, partition, offset) if table[name].null_count]:
        raise LakeError(
            f"sourceColumns: rows without a value in the column {', '.join(empty)} could not be told from those that "
            "the table has; leave them out, or write them into another table"
        )
    figures = [(offset, what) for what in ("min", "max", "count")]
    found = table.group_by([topic, topic_id, partition]).aggregate(figures)
    return [
        SourceRange(
            origin=Origin(row[topic], row[topic_id] or "", row[partition]),
            first_offset=row[f"{offset}_min"],
            next_offset=row[f"{offset}_max"] + 1,
            rows=row[f"{offset}_count"],
        )
        for row in found.to_pylist()
    ]


def united(ranges: Iterable[SourceRange]) -> list[SourceRange]:
    """One range per origin that spans all of its pieces."""
    spans: dict[Origin, SourceRange] = {}
    for each in ranges:
        known = spans.get(each.origin, each._replace(rows=0))
        first, end = min(known.first_offset, each.first_offset), max(known.next_offset, each.next_offset)
        spans[each.origin] = SourceRange(each.origin, first, end, known.rows + each.rows)
    return sorted(spans.values())
