"""`latest`: the last value per key of topics, as a table.

    from clarion.pipeline import latest

    prices = latest("prices", "lake/prices", json="amount double, currency string")

Within a partition the larger offset is the later message, as for a compacted topic; a key that moved to another
partition goes by time. A message without a value deletes its key's row; one without a key belongs to no row and is left
out. Spark leaves one row per key of a batch, the driver merges those into the table, and the table remembers the
offsets it has seen: a replayed batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final

from clarion.pipeline.definition import MicroBatch, Pipeline, QuerySettings, RunSettings, check
from clarion.pipeline.ready.archive import ArchiveSource, Shape
from clarion.pipeline.ready.columns import ORIGIN
from clarion.pipeline.table_reference import TableReference, table
from clarion.pipeline.topic_reference import TopicReference, topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from clarion.pipeline.lake.merging import MergeRule
    from clarion.pipeline.lake.ranges import Origin, SourceRange

# What crosses the driver with one batch stays small enough to be merged in memory.
BATCH_MESSAGES_MAX: Final = 1_000_000
_IS_DELETED: Final = "__deleted"


def latest(
    topics: str | Sequence[str],
    table_path: str,
    *,
    name: str | None = None,
    json: str | None = None,
    trigger: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Pipeline:
    """Keep the last value per key.

    json  the fields of the JSON values as Spark's DDL, or "infer"; by default raw bytes
    """
    limits = {"maxOffsetsPerTrigger": str(BATCH_MESSAGES_MAX)}
    source = topic(topics, options={**limits, **(options or {})})
    target = table(table_path)
    made = Pipeline(
        name=name or f"latest-{source.names[0] if source.names else 'topics'}",
        function=lambda messages: messages,
        reads=(ArchiveSource(source, target, Shape(json, "none", keeps_value=False)),),
        writes=(LatestTarget(target, source, prefix="" if json is None else "_"),),
        trigger=trigger,
        description=f"keeps the last value per key of {source.description} in {table_path}",
    )
    check(made)
    return made


@dataclass(frozen=True, slots=True)
class LatestTarget:
    table: TableReference
    topic: TopicReference
    prefix: str  # of the columns that say where a message came from
    output_modes: tuple[str, ...] = field(default=("append",))
    keeps_order: bool = False

    @property
    def description(self) -> str:
        return self.table.description

    def prepare(self, spark: SparkSession, run: RunSettings) -> None:
        """The first batch makes the table."""

    def start(self, df: DataFrame, run: RunSettings, query: QuerySettings) -> StreamingQuery:
        from clarion.pipeline.lake.tables import query_id_of

        def merge_batch(rows: DataFrame, batch_id: int) -> None:
            self.write(rows, run, MicroBatch(query_id_of(rows), batch_id))

        return query.start(df.writeStream.foreachBatch(merge_batch))

    def write(self, df: DataFrame, run: RunSettings, batch: MicroBatch | None = None) -> None:
        from clarion.pipeline.lake.commits import WriterBatch
        from clarion.pipeline.lake.compaction import tidy_sometimes
        from clarion.pipeline.lake.merging import merge_unseen
        from clarion.pipeline.lake.options import read_options
        from clarion.pipeline.lake.tables import MERGED

        options = read_options({**MERGED, **self.table.options, "path": self.table.path})
        named = None if batch is None else WriterBatch(batch.query_id, batch.batch_id)
        df = df.persist()  # looked at twice: for its origins and for its rows
        try:
            ranges = ranges_of(df, self.prefix)

            def rows_after(seen: Mapping[Origin, int]) -> pa.Table:
                return newest(unseen(df, seen, ranges, self.prefix), self.prefix).toArrow()

            merge_unseen(options, rows_after, rule(self.prefix), batch=named, ranges=ranges)
        finally:
            df.unpersist()
        if batch is not None:
            tidy_sometimes(options, batch.batch_id)


def rule(prefix: str) -> MergeRule:
    """SQL of delta-rs: `new` replaces `old` if it is later."""
    from clarion.pipeline.lake.merging import MergeRule

    def both(column: str, sign: str) -> str:
        return f'new."{prefix}{column}" {sign} old."{prefix}{column}"'

    same = " AND ".join(both(each, "=") for each in ("topic", "topic_id", "partition"))
    later = f"(({same}) AND {both('offset', '>')}) OR (NOT ({same}) AND {both('timestamp', '>=')})"
    return MergeRule(
        key=(f"{prefix}key",),
        delete_when=f'new."{_IS_DELETED}" AND ({later})',
        insert_when=f'NOT new."{_IS_DELETED}"',
        update_when=later,
        leave_out=(_IS_DELETED,),
    )


def newest(df: DataFrame, prefix: str) -> DataFrame:
    """One row per key: by offset within a partition, then by time between partitions."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key, place = f"{prefix}key", [f"{prefix}{each}" for each in ("topic", "topic_id", "partition")]
    in_partition = Window.partitionBy(key, *place).orderBy(F.col(f"{prefix}offset").desc())
    over_all = Window.partitionBy(key).orderBy(F.col(f"{prefix}timestamp").desc(), *place)
    with_key = df.where(F.col(key).isNotNull())
    last = with_key.withColumn("__rank", F.row_number().over(in_partition)).where("__rank = 1")
    last = last.withColumn("__rank", F.row_number().over(over_all)).where("__rank = 1").drop("__rank")
    dropped = [f"{prefix}{each}" for each in ("headers", "timestampType")]
    return last.withColumn(_IS_DELETED, _is_deleted(df, prefix)).drop(*dropped)


def ranges_of(df: DataFrame, prefix: str) -> list[SourceRange]:
    from pyspark.sql import functions as F

    from clarion.pipeline.lake.ranges import Origin, SourceRange

    topic_name, topic_id, partition, offset = (f"{prefix}{each}" for each in ORIGIN)
    found = df.groupBy(topic_name, topic_id, partition).agg(F.min(offset), F.max(offset)).collect()
    return sorted(SourceRange(Origin(row[0], row[1] or "", row[2]), row[3], row[4] + 1) for row in found)


def unseen(df: DataFrame, seen: Mapping[Origin, int], ranges: Sequence[SourceRange], prefix: str) -> DataFrame:
    """Without the messages that the table has seen: a lost checkpoint must not bring deleted keys back."""
    from pyspark.sql import functions as F

    topic_name, topic_id, partition, offset = (F.col(f"{prefix}{each}") for each in ORIGIN)
    old: list[Column] = [
        (topic_name == origin.topic)
        & (topic_id == origin.topic_id)
        & (partition == origin.partition)
        & (offset < next_offset)
        for origin, next_offset in seen.items()
        if any(each.origin == origin and each.first_offset < next_offset for each in ranges)
    ]
    return df.where(~reduce(lambda one, other: one | other, old)) if old else df


def _is_deleted(df: DataFrame, prefix: str) -> Column:
    from pyspark.sql import functions as F

    if not prefix:
        return F.col("value").isNull()
    return F.col("_is_empty")
