"""An archive as the past of its topics: which files hold it, and from where to where it is complete.

A snapshot of the table gives both in one step, so the live tail can begin exactly where the files end: no gap, no
message twice, however busy the archive is meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.options import local_path
from clarion.pipeline.lake.ranges import Origin

if TYPE_CHECKING:
    from deltalake import DeltaTable

ROWS_PER_BATCH: Final = 10_000  # more would leave the processor's cache on its way to the JVM
_PLACE: Final = ("topic", "topic_id", "partition", "offset")
_COLUMNS: Final = frozenset({"key", "value", "timestamp", *_PLACE})


class Span(NamedTuple):
    """What the archive holds of one partition: everything the topic had from the first to before the next offset."""

    first_offset: int
    next_offset: int


class ArchiveFile(NamedTuple):
    path: str
    size: int


class History(NamedTuple):
    spans: dict[Origin, Span]
    files: list[ArchiveFile]


def next_offsets(path: str, origins: Iterable[Origin]) -> dict[Origin, int]:
    """Where the table ends, per partition that it knows."""
    return {origin: span.next_offset for origin, span in spans_of(path, origins).items()}


def spans_of(path: str, origins: Iterable[Origin]) -> dict[Origin, Span]:
    from clarion.pipeline.lake import delta

    path = local_path(path)
    return _spans(delta.open_table(path), origins) if delta.exists(path) else {}


def history(path: str, origins: Iterable[Origin]) -> History:
    """The archived past of these partitions. On the driver; the files are read with `read_file` anywhere."""
    from clarion.pipeline.lake import delta

    path = local_path(path)
    if not delta.exists(path):
        raise LakeError(f"history: there is no Delta table at {path}")
    table = delta.open_table(path)
    names = delta.schema_of(table).names
    if not _COLUMNS.issubset(names):
        raise LakeError(f"history: {path} is no archive of raw messages; it has the columns {', '.join(names)}")
    spans = _spans(table, origins)
    sizes = {each: os.path.getsize(os.path.join(path, each)) for each in delta.paths_of(table)}
    return History(spans, [ArchiveFile(os.path.join(path, each), size) for each, size in sorted(sizes.items())])


def read_file(path: str, wanted: Mapping[Origin, Span], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of these partitions and offsets in one file of an archive, with the connector's columns."""
    with pq.ParquetFile(path) as file:
        there = file.schema_arrow.names
        columns = [each for each in dict.fromkeys((*schema.names, *_PLACE)) if each in there]
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns):
            found = batch.filter(pa.array(_mask(batch, wanted)))
            if found.num_rows:
                yield _shaped(found, schema)


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


def _spans(table: DeltaTable, origins: Iterable[Origin]) -> dict[Origin, Span]:
    from clarion.pipeline.lake.delta import first_offset, next_offset

    found: dict[Origin, Span] = {}
    for origin in origins:
        first, end = first_offset(table, origin), next_offset(table, origin)
        if first is not None and end is not None:
            found[origin] = Span(first, end)
    return found


def pack(files: Sequence[ArchiveFile], parts: int) -> list[list[str]]:
    """The files in at most so many lots of about the same size, for as many tasks."""
    lots: list[tuple[int, list[str]]] = [(0, []) for _ in range(max(1, min(parts, len(files))))]
    for each in sorted(files, key=lambda file: (-file.size, file.path)):
        smallest = min(range(len(lots)), key=lambda index: lots[index][0])
        total, names = lots[smallest]
        lots[smallest] = (total + each.size, [*names, each.path])
    return [names for _, names in lots if names]
