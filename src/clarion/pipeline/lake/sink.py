"""The data source `clarion-lake`: tasks write parquet files, the driver commits them.

    df.writeStream.format("clarion-lake").option("checkpointLocation", …).start("lake/events")
    df.write.format("clarion-lake").mode("append").save("lake/events")
    spark.read.format("clarion-lake").load("s3://lake/events")

Spark makes a writer in a planning process of the driver, sends it to the tasks, and makes another one for the commit;
only the messages travel between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from clarion.pipeline.lake.checkpoints import flush_offsets
from clarion.pipeline.lake.commits import Commit, WriterBatch
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.files import DataFile, Layout, TaskFiles
from clarion.pipeline.lake.options import TableOptions, read_options
from clarion.pipeline.lake.ranges import SourceRange, united
from clarion.pipeline.workers import freeze_in_workers

FORMAT = "clarion-lake"


class LakeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        which = read_options(self.options, for_reading=True)
        table = _delta().open_table(which.location)
        if which.version is not None:
            table.load_as_version(which.version)
        return from_arrow_schema(_delta().schema_of(table))

    def reader(self, schema: StructType) -> DataSourceReader:
        from clarion.pipeline.lake.table_reader import TableReader

        which = read_options(self.options, for_reading=True)
        return TableReader(which.location, _arrow(schema), which.version, which.refresh)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        return TableWriter(read_options(self.options), _arrow(schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamTableWriter:
        return StreamTableWriter(read_options(self.options), _arrow(schema), overwrite)


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """What one task did."""

    files: tuple[DataFile, ...]
    ranges: tuple[SourceRange, ...]
    query_id: str | None


class _Writer:
    """What the two kinds share: a layout decided on the driver, and the tasks' work."""

    def __init__(self, options: TableOptions, schema: pa.Schema, overwrite: bool) -> None:
        self.options = options
        self.overwrite = overwrite
        self.layout: Layout = _delta().plan(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
        files = TaskFiles(self.layout, f"part-{context.partitionId() if context else 0:05}")
        try:
            for batch in iterator:
                files.write(batch)
            closed, ranges = files.close()
        except BaseException:
            files.discard()
            raise
        return WrittenFiles(tuple(closed), tuple(ranges), query_id)

    def publish(self, messages: Sequence[Any], batch: WriterBatch | None) -> bool:
        done = _done(messages)
        work = Commit(
            schema=self.layout.schema,
            files=[file for each in done for file in each.files],
            ranges=united(part for each in done for part in each.ranges),
            batch=batch,
            overwrite=self.overwrite,
        )
        return bool(_delta().commit(self.options, work))

    def take_back(self, messages: Sequence[Any]) -> None:
        files = [file for each in _done(messages) for file in each.files]
        _delta().remove_uncommitted(self.options.location, files)


class TableWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        app_id, version = self.options.app_id, self.options.version
        if app_id is None or version is None:
            self.publish(messages, None)
            return
        self.publish(messages, WriterBatch(app_id, version))
        _tidy(self.options, version)  # a stream's batch that goes to several targets

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.take_back(messages)


class StreamTableWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(self, options: TableOptions, schema: pa.Schema, overwrite: bool) -> None:
        if options.app_id is not None:
            raise LakeError(
                "txnAppId is for batch writes; a stream is known by its query's id and its batches' numbers"
            )
        super().__init__(options, schema, overwrite)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query_id = next((each.query_id for each in _done(messages) if each.query_id), None)
        if query_id is None:
            return  # a batch without tasks: nothing to write, nothing to remember
        if self.options.sync:
            flush_offsets(self.options.checkpoint, batchId)
        self.publish(messages, WriterBatch(query_id, batchId))
        _tidy(self.options, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.take_back(messages)


def _delta() -> Any:
    """Loaded on the driver only: executors have no delta-rs."""
    from clarion.pipeline.lake import delta

    return delta


def _tidy(options: TableOptions, batch_id: int) -> None:
    from clarion.pipeline.lake.compaction import tidy_sometimes

    tidy_sometimes(options, batch_id)


def _done(messages: Iterable[Any]) -> list[WrittenFiles]:
    """Messages of tasks that ended; of others Spark knows nothing."""
    return [each for each in messages if isinstance(each, WrittenFiles)]


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


freeze_in_workers()
