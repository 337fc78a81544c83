"""An archive as the past of its topics: which files hold it, and from where to where it is complete.

A snapshot of the table gives both in one step, so the live tail can begin exactly where the files end: no gap, no
message twice, however busy the archive is meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from heapq import heappop, heappush
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
    waiting = _WaitingRows()
    for low, opened, nth in _groups_in_order(location, files, span):
        yield from _batches(waiting.before(low), schema)
        for batch in opened.read_row_group(nth, columns=_columns_of(opened, schema)).to_batches():
            found = batch.filter(pa.array(_mask(batch, {origin: span})))
            if found.num_rows:
                waiting.add(pa.Table.from_batches([found]))
    yield from _batches(waiting.before(span.next_offset), schema)


class _OpenParquet:
    def __init__(self, location: Location, file: TableFile) -> None:
        with ExitStack() as stack:
            self.parquet = stack.enter_context(pq.ParquetFile(stack.enter_context(location.open(file.path))))
            self.close = stack.pop_all().close


def _groups_in_order(
    location: Location, files: Sequence[TableFile], span: Span
) -> Iterator[tuple[int, pq.ParquetFile, int]]:
    """Row groups by the smallest offset that they may hold. That of a file is known before it is opened, and it is open
    only while groups of it are to be read: an archive may have more files than a process may open."""
    unopened = sorted(files, key=lambda each: _lowest(each, span), reverse=True)
    groups: list[tuple[int, int, int]] = []  # the smallest offset, which file, which group of it
    opened: dict[int, _OpenParquet] = {}
    try:
        while unopened or groups:
            if unopened and (not groups or _lowest(unopened[-1], span) < groups[0][0]):
                number = len(unopened)
                opened[number] = _OpenParquet(location, unopened.pop())
                for low, nth in _row_groups(opened[number].parquet, span):
                    heappush(groups, (low, number, nth))
            else:
                low, number, nth = heappop(groups)
                yield low, opened[number].parquet, nth
            if all(number != each[1] for each in groups):
                opened.pop(number).close()
    finally:
        for each in opened.values():
            each.close()


def _lowest(file: TableFile, span: Span) -> int:
    return int(json.loads(file.statistics).get("minValues", {}).get("offset", span.first_offset))


def _row_groups(opened: pq.ParquetFile, span: Span) -> Iterator[tuple[int, int]]:
    """Those that may hold such offsets, each with the smallest that it may hold."""
    footer = opened.metadata
    at = footer.schema.names.index("offset") if "offset" in footer.schema.names else None
    for nth in range(footer.num_row_groups):
        known: Any = None if at is None else footer.row_group(nth).column(at).statistics
        low, high = (known.min, known.max) if known is not None and known.has_min_max else span
        if low < span.next_offset and high >= span.first_offset:
            yield low, nth


class _WaitingRows:
    """Rows for which there may be earlier ones. Whoever takes some touches none that stay: where a file holds several
    partitions, the small offsets of one keep all rows of another waiting, from thousands of files."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, int, pa.Table]] = []  # the first offset, the how manieth, rows by offset
        self._count = 0

    def add(self, rows: pa.Table) -> None:
        self._push(rows.sort_by("offset"))

    def _push(self, rows: pa.Table) -> None:
        self._count += 1
        heappush(self._pieces, (rows["offset"][0].as_py(), self._count, rows))

    def before(self, offset: int) -> pa.Table | None:
        """The rows before this offset, in their order."""
        found = []
        while self._pieces and self._pieces[0][0] < offset:
            rows = heappop(self._pieces)[2]
            count = int(np.searchsorted(rows["offset"].to_numpy(), offset))
            found.append(rows.slice(0, count))
            if count < rows.num_rows:
                self._push(rows.slice(count))
        return pa.concat_tables(found, promote_options="default").sort_by("offset") if found else None


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
