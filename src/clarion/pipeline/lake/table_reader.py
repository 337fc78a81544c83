"""Reading a table through the format `clarion-lake`: where Spark cannot read its files by itself, or must look again.

A snapshot is shared out among tasks. A look-up table (`refresh`) is read by one task, which finds out by itself what is
in it at that moment: Spark plans a static side once for all micro-batches of a query, and what was planned then would
be frozen, and gone with the next vacuum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition

from clarion.pipeline.lake.location import Location, telling
from clarion.pipeline.lake.snapshots import TableFile, snapshot
from clarion.pipeline.workers import cores

ROWS_PER_BATCH: Final = 10_000  # more would leave the processor's cache on its way to the JVM
BYTES_PER_TASK: Final = 64 << 20  # of files, which are compressed


@dataclass
class TaskTable(InputPartition):
    """The files of one task; None: all that there are when it runs."""

    files: tuple[TableFile, ...] | None


class TableReader(DataSourceReader):
    def __init__(self, location: Location, schema: pa.Schema, version: int | None, refresh: bool) -> None:
        self._location = location
        self._schema = schema
        self._version = version
        self._refresh = refresh

    def partitions(self) -> list[InputPartition]:
        if self._refresh:
            return [TaskTable(None)]
        files = list(snapshot(self._location, self._version).files.values())
        total = sum(each.size for each in files)
        return [TaskTable(lot) for lot in pack(files, max(cores() or 1, total // BYTES_PER_TASK))] or [TaskTable(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskTable)
        with telling(self._location):
            files = snapshot(self._location).files.values() if partition.files is None else partition.files
            for each in files:
                yield from read_file(self._location, each, self._schema)


def read_file(location: Location, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A file's rows with exactly these columns."""
    with location.open(file.path) as source, pq.ParquetFile(source) as opened:
        there = [each for each in schema.names if each in opened.schema_arrow.names]
        for batch in opened.iter_batches(batch_size=ROWS_PER_BATCH, columns=there):
            columns = [_column(batch, each, file) for each in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field, file: TableFile) -> pa.Array:
    if field.name in batch.schema.names:
        return batch[field.name].cast(field.type)
    value = file.values.get(field.name)
    if value is None:  # also of a column that is younger than the file
        return pa.nulls(batch.num_rows, field.type)
    return pa.repeat(pc.cast(pa.scalar(value), field.type), batch.num_rows)


def pack(files: Sequence[TableFile], parts: int) -> list[tuple[TableFile, ...]]:
    """The files in at most so many lots of about the same size, for as many tasks."""
    lots: list[list[TableFile]] = [[] for _ in range(max(1, min(parts, len(files))))]
    sizes = [0] * len(lots)
    for each in sorted(files, key=lambda file: (-file.size, file.path)):
        smallest = min(range(len(lots)), key=sizes.__getitem__)
        lots[smallest].append(each)
        sizes[smallest] += each.size
    return [tuple(lot) for lot in lots if lot]
