"""`archive`: topics into a lake table, every message once.

    from clarion.pipeline import archive

    events = archive("events", "lake/events")                       # raw bytes, a folder per day
    clicks = archive("clicks", "lake/clicks", json="user string, url string, ms long", by="hour")

The table itself remembers up to which offset it holds each partition of each topic (by the topic's id), in the same
commit as the rows. So a batch that is played again is recognised; and a pipeline that lost its checkpoint goes on where
the table ends, not where the topic begins.

The archive is a reader like any other: its group shows its lag, and while it is behind the broker deletes nothing that
is not archived (`clarion.retention.hold.groups`), unless `hold=False`.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from clarion.model.ids import TopicPartition
from clarion.pipeline.broker_link import BrokerLink, Layout
from clarion.pipeline.definition import DefinitionError, MicroBatch, Pipeline, QuerySettings, RunSettings, check
from clarion.pipeline.field_list import names_in, why_no_fields
from clarion.pipeline.ready.columns import (
    check_fields,
    column_of,
    origin_columns,
    partition_columns,
    raw_rows,
    typed_rows,
)
from clarion.pipeline.table_reference import TableReference, table
from clarion.pipeline.topic_reference import FORMAT, TopicReference, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from clarion.pipeline.lake.ranges import Origin

INFER: Final = "infer"
TRIGGER: Final = "10 seconds"  # a table wants few large files; whoever wants rows sooner says so
COMPACT_EVERY: Final = 30  # batches: five minutes at the pace above
VACUUM_HOURS: Final = 7 * 24
EARLIEST: Final = -2  # in the connector's offset JSON
SAMPLE: Final = 10_000  # messages: enough to meet rare fields, little enough to look at before every start
_CORRUPT: Final = "__corrupt"


def archive(
    topics: str | Sequence[str],
    table_path: str,
    *,
    name: str | None = None,
    json: str | None = None,
    by: str = "date",
    keep_value: bool = True,
    hold: bool = True,
    trigger: str | None = TRIGGER,
    compact_every: int = COMPACT_EVERY,
    options: Mapping[str, str] | None = None,
) -> Pipeline:
    """Archive topics (a name, several, or a pattern) in one table.

    json        the fields of the JSON values as Spark's DDL, or "infer"; by default raw bytes
    by          folders of the table: `date`, `hour` or `none`, of the messages' own time in UTC
    keep_value  keep the bytes beside the fields (the default); without them, fields that are not declared are left out
    hold        let the broker keep what is not archived yet
    """
    source = topic(topics, options=options)
    typed = json is not None
    target = table(
        table_path,
        partition_by=partition_columns(by, typed=typed),
        options={
            "sourceColumns": origin_columns(typed=typed),
            "compactEvery": str(compact_every),
            "vacuumHours": str(VACUUM_HOURS),
        },
    )
    shape = Shape(json, by, keeps_value=keep_value)
    made = Pipeline(
        name=name or f"archive-{source.names[0] if source.names else 'topics'}",
        function=lambda messages: messages,
        reads=(ArchiveSource(source, target, shape),),
        writes=(ArchiveTarget(target, source, hold),),
        trigger=trigger,
        description=f"archives {source.description} in {table_path}",
    )
    check(made)
    return made


@dataclass(frozen=True, slots=True)
class Shape:
    """How messages become rows."""

    json: str | None = None
    by: str = "date"
    keeps_value: bool = False

    def __post_init__(self) -> None:
        if self.json is None or self.json == INFER:
            return
        if reason := why_no_fields(self.json):
            raise DefinitionError(f"json={self.json!r} is not a valid field list: {reason}")
        check_fields(names_in(self.json))

    def rows(self, messages: DataFrame, schema: StructType | None) -> DataFrame:
        if schema is None:
            return raw_rows(messages, self.by)
        return typed_rows(messages, schema, self.by, keeps_value=self.keeps_value)


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """The messages that the table does not hold, as its rows."""

    topic: TopicReference
    table: TableReference
    shape: Shape

    @property
    def description(self) -> str:
        return self.topic.description

    def missing(self, run: RunSettings) -> str | None:
        return self.topic.missing(run)

    def load(self, spark: SparkSession, run: RunSettings, *, streaming: bool) -> DataFrame:
        connection = self.topic.connection(run)
        link = BrokerLink(connection)
        layout = link.layout(link.matching(self.topic.names, self.topic.pattern))
        # A name may be given anew while we run; which topic a message belongs to, its source knows.
        subscription = {"subscribe": ",".join(sorted(layout)), "includeHeaders": "true", "includeTopicId": "true"}
        schema = self._schema(spark, {**connection, **subscription})
        options = {
            **connection,
            **subscription,
            **({"groupId": run.group} if streaming else run.ending),
            "splitPartitions": str(run.may_split).lower(),
            **self._starting(run, layout),
            **self.topic.options,
        }
        reader = (spark.readStream if streaming else spark.read).format(FORMAT).options(**options)
        return self.shape.rows(reader.load(), schema)

    def _starting(self, run: RunSettings, layout: Layout) -> dict[str, str]:
        """Where the table ends. Spark asks only if there is no checkpoint, or for a batch."""
        held = held_offsets(self.table, layout)
        if not held:
            return dict(run.starting)
        if dict(run.starting) != {"startingOffsets": "earliest"}:
            raise DefinitionError(f"{self.table.description} holds a part of this and goes on there: leave out --from")
        return {"startingOffsets": json_format.dumps(starting_offsets(held, layout))}

    def _schema(self, spark: SparkSession, options: Mapping[str, str]) -> StructType | None:
        if self.shape.json is None:
            return None
        if self.shape.json != INFER:
            from clarion.pipeline.topic_rows import schema_of

            return schema_of(topic(self.topic.names or ("topic",), json=self.shape.json))
        return infer(spark, options, known_fields(self.table))


@dataclass(frozen=True, slots=True)
class ArchiveTarget:
    """The table, and the broker's promise to wait for it."""

    table: TableReference
    topic: TopicReference
    holds: bool = True
    output_modes: tuple[str, ...] = field(default=("append",))
    keeps_order: bool = False

    @property
    def description(self) -> str:
        return self.table.description

    def prepare(self, spark: SparkSession, run: RunSettings) -> None:
        link = BrokerLink(self.topic.connection(run))
        names = link.matching(self.topic.names, self.topic.pattern)
        if self.holds:
            link.hold(names, run.group)
        else:
            link.release(names, run.group)

    def start(self, df: DataFrame, run: RunSettings, query: QuerySettings) -> StreamingQuery:
        return self.table.start(df, run, query)

    def write(self, df: DataFrame, run: RunSettings, batch: MicroBatch | None = None) -> None:
        self.table.write(df, run, batch)
        if batch is None:
            self._commit(run)

    def _commit(self, run: RunSettings) -> None:
        """A batch has no stream that says how far it came; and a group that never says so holds everything back."""
        link = BrokerLink(self.topic.connection(run))
        held = held_offsets(self.table, link.layout(link.matching(self.topic.names, self.topic.pattern)))
        link.commit(run.group, {TopicPartition(each.topic, each.partition): offset for each, offset in held.items()})


def held_offsets(target: TableReference, layout: Layout) -> dict[Origin, int]:
    """Per partition the first offset that the table does not hold; without those of which it holds nothing."""
    from clarion.pipeline.lake.history import next_offsets
    from clarion.pipeline.lake.ranges import Origin

    origins = [Origin(name, topic_id, number) for name, (topic_id, count) in layout.items() for number in range(count)]
    return next_offsets(target.location, origins)


def starting_offsets(held: Mapping[Origin, int], layout: Layout) -> dict[str, dict[str, int]]:
    """The connector's JSON: from the table's end, and all of what it has never seen."""
    known = {(each.topic, each.partition): offset for each, offset in held.items()}
    return {
        name: {str(number): known.get((name, number), EARLIEST) for number in range(count)}
        for name, (_, count) in sorted(layout.items())
    }


def known_fields(target: TableReference) -> StructType | None:
    """The fields that a typed archive has already; None for a table that is not there."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from clarion.pipeline.lake.reading import schema_at
    from clarion.pipeline.ready.columns import fields_of_archive

    found = schema_at(target.location)
    return None if found is None else fields_of_archive(from_arrow_schema(found))


def infer(spark: SparkSession, options: Mapping[str, str], known: StructType | None) -> StructType:
    """The fields of a topic's JSON, guessed from its first messages. What a table has decided stays: a restart adds
    columns that are new, it never changes one. `options`: of the connector, for the topics. Refuses a topic without a
    single JSON object, unless it is known."""
    from pyspark.sql import functions as F

    reader = spark.read.format("clarion").options(**options).option("startingOffsets", "earliest")
    values = reader.load().where("value is not null").select(F.col("value").cast("string")).limit(SAMPLE).collect()
    texts = spark.sparkContext.parallelize([row[0] for row in values], 1)
    seen = spark.read.option("columnNameOfCorruptRecord", _CORRUPT).json(texts).schema if values else None
    found = joined(known, None if seen is None else _without_corrupt(seen))
    if not found.fields:
        raise DefinitionError(
            "no JSON object among the topic's first messages: declare its fields, or archive raw bytes"
        )
    return found


def joined(known: StructType | None, seen: StructType | None) -> StructType:
    """The known fields as they are, then those that are new. A table may call a field otherwise than the JSON does: it
    is read under the JSON's name. Of two fields that would be the same column the one with that very name is it."""
    from pyspark.sql.types import StructField, StructType

    def column(field: StructField) -> str:
        return column_of(field.name).lower()

    found = {} if known is None else {column(each): each for each in known.fields}
    new: dict[str, StructField] = {}
    for each in sorted(() if seen is None else seen.fields, key=lambda each: column_of(each.name) != each.name):
        new.setdefault(column(each), each)
    for name, each in new.items():
        if name in found and column_of(each.name) != each.name:
            found[name] = StructField(each.name, found[name].dataType)
    in_their_order = [] if seen is None else [each for each in seen.fields if new[column(each)] is each]
    return StructType([*found.values(), *(each for each in in_their_order if column(each) not in found)])


def _without_corrupt(schema: StructType) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([each for each in schema.fields if each.name != _CORRUPT])
