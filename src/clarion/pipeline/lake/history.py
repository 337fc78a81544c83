"""An archive as the past of its topics: which files hold it, and from where to where it is complete.

A snapshot of the table gives both in one step, so the live tail can begin exactly where the files end: no gap, no
message twice, however busy the archive is meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.location import Location, locate
from clarion.pipeline.lake.ranges import Origin, transaction_name
from clarion.pipeline.lake.snapshots import Snapshot, TableFile, snapshot
from clarion.pipeline.lake.table_reader import ROWS_PER_BATCH

_PLACE: Final = ("topic", "topic_id", "partition", "offset")
_COLUMNS: Final = frozenset({"key", "value", "timestamp", *_PLACE})


class Span(NamedTuple):
    """What the archive holds of one partition: everything the topic had from the first to before the next offset."""

    first_offset: int
    next_offset: int


class ArchivedHistory(NamedTuple):
    spans: dict[Origin, Span]
    files: list[TableFile]


def next_offsets(where: str | Location, origins: Iterable[Origin]) -> dict[Origin, int]:
    """Where the table ends, per partition that it knows; nothing if there is no table."""
    from clarion.pipeline.lake import delta

    place = locate(where)
    if not delta.exists(place):
        return {}
    return {origin: span.next_offset for origin, span in _spans(snapshot(place), origins).items()}


def check_archive(place: Location) -> None:
    """On the driver: refuse what is no archive of raw messages."""
    from clarion.pipeline.lake import delta

    if not delta.exists(place):
        raise LakeError(f"history: there is no Delta table at {place}")
    names = delta.schema_of(delta.open_table(place)).names
    if not _COLUMNS.issubset(names):
        raise LakeError(f"history: {place} is no archive of raw messages; it has the columns {', '.join(names)}")


def history(place: Location, origins: Iterable[Origin]) -> ArchivedHistory:
    """The archived past of these partitions, as it is now. The files are read anywhere."""
    found = snapshot(place)
    return ArchivedHistory(_spans(found, origins), sorted(found.files.values(), key=lambda each: each.path))


def _spans(found: Snapshot, origins: Iterable[Origin]) -> dict[Origin, Span]:
    spans: dict[Origin, Span] = {}
    for origin in origins:
        first, end = (found.transactions.get(transaction_name(what, origin)) for what in ("first", "next"))
        if first is not None and end is not None:
            spans[origin] = Span(first, end)
    return spans


def may_hold(file: TableFile, origin: Origin, span: Span) -> bool:
    """What the file's statistics say; where they say nothing it may."""
    known = json.loads(file.statistics)
    lowest, highest = known.get("minValues", {}), known.get("maxValues", {})
    within = (
        ("offset", span.first_offset, span.next_offset - 1),
        ("partition", origin.partition, origin.partition),
        ("topic", origin.topic, origin.topic),
        ("topic_id", origin.topic_id, origin.topic_id),
    )
    return all(lowest.get(name, high) <= high and highest.get(name, low) >= low for name, low, high in within)


def read_file(
    location: Location, file: TableFile, wanted: Mapping[Origin, Span], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The messages of these partitions and offsets in one file of an archive, with the connector's columns."""
    with location.open(file.path) as source, pq.ParquetFile(source) as opened:
        for batch in opened.iter_batches(batch_size=ROWS_PER_BATCH, columns=_columns_of(opened, schema)):
            found = batch.filter(pa.array(_mask(batch, wanted)))
            if found.num_rows:
                yield _shaped(found, schema)


def read_in_order(
    location: Location, files: Sequence[TableFile], origin: Origin, span: Span, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """One partition's messages as they were in its log. Files and their row groups may overlap (a folder per day, a
    compaction), so rows wait until no row group can hold an earlier one."""
    with ExitStack() as stack:
        groups = []
        for file in files:
            opened = stack.enter_context(pq.ParquetFile(stack.enter_context(location.open(file.path))))
            groups += [(low, opened, nth) for low, nth in _row_groups(opened, span)]
        waiting: list[pa.Table] = []
        for low, opened, nth in sorted(groups, key=lambda each: each[0]):
            rows, waiting = _parted(waiting, low)
            yield from _batches(rows, schema)
            read = opened.read_row_group(nth, columns=_columns_of(opened, schema))
            waiting += [
                pa.Table.from_batches([found])
                for batch in read.to_batches()
                if (found := batch.filter(pa.array(_mask(batch, {origin: span})))).num_rows
            ]
        yield from _batches(_parted(waiting, span.next_offset)[0], schema)


def _row_groups(opened: pq.ParquetFile, span: Span) -> Iterator[tuple[int, int]]:
    """Those that may hold such offsets, each with the smallest that it may hold."""
    footer = opened.metadata
    at = footer.schema.names.index("offset") if "offset" in footer.schema.names else None
    for nth in range(footer.num_row_groups):
        known: Any = None if at is None else footer.row_group(nth).column(at).statistics
        low, high = (known.min, known.max) if known is not None and known.has_min_max else span
        if low < span.next_offset and high >= span.first_offset:
            yield low, nth


def _parted(waiting: Sequence[pa.Table], low: int) -> tuple[pa.Table | None, list[pa.Table]]:
    """The rows before this offset in their order, and the others."""
    if not waiting:
        return None, []
    rows = pa.concat_tables(waiting, promote_options="default")
    is_before = pc.less(rows["offset"], low)
    later = rows.filter(pc.invert(is_before))
    return rows.filter(is_before).sort_by("offset"), [later] if later.num_rows else []


def _batches(rows: pa.Table | None, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if rows is not None and rows.num_rows:
        for batch in rows.combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH):
            yield _shaped(batch, schema)


def _columns_of(opened: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    there = opened.schema_arrow.names
    return [each for each in dict.fromkeys((*schema.names, *_PLACE)) if each in there]


def _mask(batch: pa.RecordBatch, wanted: Mapping[Origin, Span]) -> NDArray[np.bool_]:
    """Which rows are wanted: one look-up per row by its partition, one pass per topic."""
    partition = batch["partition"].to_numpy(zero_copy_only=False)
    offset = batch["offset"].to_numpy(zero_copy_only=False)
    mask = np.zeros(batch.num_rows, np.bool_)
    for topic, topic_id in sorted({(each.topic, each.topic_id) for each in wanted}):
        mine = pc.and_(pc.equal(batch["topic"], topic), pc.equal(batch["topic_id"], topic_id))
        spans = {
            each.partition: span for each, span in wanted.items() if (each.topic, each.topic_id) == (topic, topic_id)
        }
        first, end = _by_partition(spans, int(partition.max(initial=0)))
        rows = mine.fill_null(False).to_numpy(zero_copy_only=False)
        mask |= rows & (offset >= first[partition]) & (offset < end[partition])
    return mask


def _by_partition(spans: Mapping[int, Span], largest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    first, end = np.zeros((2, max(largest, *spans) + 1), np.int64)
    for partition, span in spans.items():
        first[partition], end[partition] = span
    return first, end


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Exactly the wanted columns: Spark takes the first batch's word for all of them."""
    return pa.RecordBatch.from_arrays([_column(batch, each) for each in schema], schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch[field.name].cast(field.type)
    if not pa.types.is_list(field.type):
        return column
    # An archive writes "no headers" as an empty list; the connector, as Spark's own, says null.
    return pc.if_else(pc.greater(pc.list_value_length(column), 0), column, pa.scalar(None, field.type))
