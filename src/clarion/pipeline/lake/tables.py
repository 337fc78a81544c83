"""A pipeline's `table(...)` reference in the lake: stream into it, write a batch to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from clarion.pipeline.lake.checkpoints import flush_offsets
from clarion.pipeline.lake.commits import WriterBatch
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.options import read_options
from clarion.pipeline.lake.sink import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from clarion.pipeline.definition import MicroBatch, QuerySettings
    from clarion.pipeline.table_reference import TableReference


# Every merge writes the files of the rows it changes anew: what it replaced goes soon, or a small table with many
# changes grows by its own size with each of them.
MERGED: Final = {"compactEvery": "20", "vacuumHours": "2"}


def stream_table(df: DataFrame, table: TableReference, query: QuerySettings) -> StreamingQuery:
    """Start the query that keeps a table; every batch is in it once, whoever dies when."""
    if table.mode == "merge":
        check_merge(table, df.columns)
        writer = df.writeStream.foreachBatch(merging_function(table, query.checkpoint))
    else:
        writer = df.writeStream.format(FORMAT).options(**_sink_options(table))
    return query.start(writer)


def write_table(df: DataFrame, table: TableReference, batch: MicroBatch | None = None) -> None:
    """Write a static DataFrame, or one micro-batch that is skipped if the table has it."""
    if table.mode == "merge":
        check_merge(table, df.columns)
        _merge(df, table, None if batch is None else WriterBatch(batch.query_id, batch.batch_id))
        return
    named = {} if batch is None else {"txnAppId": batch.query_id, "txnVersion": str(batch.batch_id)}
    mode = "overwrite" if table.mode == "overwrite" else "append"
    df.write.format(FORMAT).options(**_sink_options(table), **named).mode(mode).save()


def merging_function(table: TableReference, checkpoint: str) -> Callable[[DataFrame, int], None]:
    def merge_batch(df: DataFrame, batch_id: int) -> None:
        flush_offsets(checkpoint, batch_id)
        _merge(df, table, WriterBatch(query_id_of(df), batch_id))

    return merge_batch


def query_id_of(df: DataFrame) -> str:
    """The id of the query whose batch this is: the checkpoint's, the same after a restart."""
    found = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise LakeError("not inside a streaming query's batch")
    return str(found)


def _merge(df: DataFrame, table: TableReference, batch: WriterBatch | None) -> None:
    from clarion.pipeline.lake.compaction import tidy_sometimes
    from clarion.pipeline.lake.merging import DELETED, merge, newest_per_key, ordered

    options = read_options({**MERGED, **_sink_options(table, without=("orderBy", "deleteWhen"))})
    order_by, delete_when = _names(option_of(table, "orderBy")), option_of(table, "deleteWhen")
    rule = ordered(table.key, order_by, deletes=bool(delete_when))
    if delete_when:
        from pyspark.sql import functions as F

        df = df.withColumn(DELETED, F.coalesce(F.expr(delete_when), F.lit(False)))
    rows = newest_per_key(df, rule).toArrow()
    if rows.num_rows:
        merge(options, rows, rule, batch=batch)
    if batch is not None:
        tidy_sometimes(options, batch.version)


def check_merge(table: TableReference, columns: Sequence[str]) -> None:
    """Refuse before a query starts what no batch of it could do."""
    from clarion.pipeline.lake.merging import DELETED, RANK

    if taken := sorted({DELETED, RANK} & {name.lower() for name in columns}):
        raise LakeError(f"{table.path}: a merge needs the name {taken[0]} for itself; call that column something else")
    for what, names in (("key", table.key), ("orderBy", _names(option_of(table, "orderBy")))):
        if missing := [name for name in names if name not in columns]:
            raise LakeError(
                f"{table.path}: {what} names the column {', '.join(missing)}, and the rows have {', '.join(columns)}"
            )


def option_of(table: TableReference, name: str) -> str:
    return next((value for key, value in table.options.items() if key.lower() == name.lower()), "")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _sink_options(table: TableReference, without: tuple[str, ...] = ()) -> dict[str, str]:
    dropped = {name.lower() for name in without}
    options = {name: value for name, value in table.options.items() if name.lower() not in dropped}
    if table.partition_by:
        options["partitionBy"] = ",".join(table.partition_by)
    # Spark's planning processes have the folder and the environment in which the JVM was started, not those that we
    # may have changed to since.
    place = table.location
    return {**options, **dict(place.options), "path": place.uri}
