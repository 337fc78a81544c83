"""`replay`: an archive, or a range of its time, back into a topic: keys, headers and timestamps as they were.

    from clarion.pipeline import replay

    again = replay("lake/events", "events-again", since="2026-11-01", until="2026-11-02", rate=5000)

Messages of one key are sent by one task in the order they had (offsets within a partition); between keys there is no
order. Spark sorts on disk as it must, Python sees a few thousand rows at a time. It is a batch: started again after a
crash it begins anew, and what was sent before is sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Final

from clarion.pipeline.broker_link import BrokerLink
from clarion.pipeline.definition import DefinitionError, MicroBatch, Pipeline, QuerySettings, RunSettings, check
from clarion.pipeline.ready.columns import fields_of_archive, is_typed, with_empty_headers
from clarion.pipeline.topic_reference import FORMAT, TopicReference, topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PACE_SECONDS: Final = 0.1  # a limited replay sends so much at a time
BATCH_ROWS_MAX: Final = 10_000  # as many rows as Spark hands to Python by default
_NEVER: Final = -1
_LAST_MICROS: Final = 253_402_214_400_000_000  # 31 December 9999; Python has no word for what is later

log = logging.getLogger("clarion.pipeline")


def replay(
    table_path: str,
    to: str,
    *,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    only: str | None = None,
    rate: float | None = None,
    keep_partitions: bool = False,
    keep_timestamps: bool = True,
    name: str | None = None,
    partitions: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Pipeline:
    """Replay an archive into the topic `to`, which is made if it is not there. Run it as a batch.

    since, until     of the messages' own time, as ISO text (UTC unless it says otherwise); `until` is not included
    only             of an archive with several topics, the one to replay
    rate             messages per second at most, over all tasks
    keep_partitions  into the partitions they came from; by default by key, as a producer would
    keep_timestamps  False: the messages' time is when they are sent
    """
    if rate is not None and not 0 < rate < inf:
        raise DefinitionError(f"rate={rate}: a number of messages per second above 0")
    source = ReplaySource(table_path, _moment(since, "since"), _moment(until, "until"), only)
    target = ReplayTarget(
        topic(to, partitions=partitions, options=options), source, rate, keep_partitions, keep_timestamps
    )
    made = Pipeline(
        name=name or f"replay-{to}",
        function=lambda messages: messages,
        reads=(source,),
        writes=(target,),
        description=f"replays {table_path} into topic {to}",
    )
    check(made)
    return made


@dataclass(frozen=True, slots=True)
class ReplaySource:
    path: str
    since: datetime | None = None
    until: datetime | None = None
    only: str | None = None

    @property
    def description(self) -> str:
        return f"table {self.path}"

    def missing(self, run: RunSettings) -> str | None:
        from clarion.pipeline.lake.location import is_table

        return None if is_table(self.path) else f"there is no table at {self.path}"

    def load(self, spark: SparkSession, run: RunSettings, *, streaming: bool) -> DataFrame:
        if streaming:
            raise DefinitionError("a replay is a batch: run it with --to latest")
        return self.messages(spark)

    def messages(self, spark: SparkSession) -> DataFrame:
        """key, value, headers, topic, topic_id, partition, offset, timestamp of the chosen rows."""
        from pyspark.sql import functions as F

        from clarion.pipeline.lake.reading import read_table

        rows = read_table(spark, self.path)
        prefix = "_" if is_typed(rows.columns) else ""
        for condition in self._conditions(rows, prefix):
            rows = rows.where(condition)
        names = ("key", "headers", "topic", "topic_id", "partition", "offset", "timestamp")
        origins = [F.col(f"{prefix}{each}").alias(each) for each in names]
        return with_empty_headers(rows.select(_value(rows, prefix).alias("value"), *origins))

    def _conditions(self, rows: DataFrame, prefix: str) -> list[Column]:
        from pyspark.sql import functions as F

        found = []
        timestamp, day = F.col(f"{prefix}timestamp"), f"{prefix}date"
        if self.only is not None:
            found.append(F.col(f"{prefix}topic") == self.only)
        if self.since is not None:
            found.append(timestamp >= F.lit(self.since))
        if self.until is not None:
            found.append(timestamp < F.lit(self.until))
        if day in rows.columns:  # whole folders are left out
            found += [F.col(day) >= F.lit(self.since.date())] if self.since else []
            found += [F.col(day) <= F.lit(self.until.date())] if self.until else []
        return found


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    topic: TopicReference
    source: ReplaySource
    rate: float | None = None
    keeps_partitions: bool = False
    keeps_timestamps: bool = True
    output_modes: tuple[str, ...] = field(default=("append",))
    keeps_order: bool = True

    @property
    def description(self) -> str:
        return self.topic.description

    def prepare(self, spark: SparkSession, run: RunSettings) -> None:
        """Make the topic; then say, before a message is sent, what will not stay in it."""
        self.topic.prepare(spark, run)
        if self.keeps_timestamps:
            settings = BrokerLink(self.topic.connection(run)).settings(self.topic.names[0])
            for warning in warnings_about(settings, oldest(self.source.messages(spark)), datetime.now(UTC)):
                log.warning("topic %s: %s", self.topic.names[0], warning)

    def start(self, df: DataFrame, run: RunSettings, query: QuerySettings) -> StreamingQuery:
        raise DefinitionError("a replay is a batch: run it with --to latest")

    def write(self, df: DataFrame, run: RunSettings, batch: MicroBatch | None = None) -> None:
        tasks = max(1, df.sparkSession.sparkContext.defaultParallelism)
        rows = in_order(df, tasks, by_partition=self.keeps_partitions)
        columns = ["key", "value", "headers"]
        columns += ["timestamp"] if self.keeps_timestamps else []
        columns += ["partition"] if self.keeps_partitions else []
        rows = rows.select(*columns)
        options = {**self.topic.connection(run), "topic": self.topic.names[0], **self.topic.options}
        if self.rate is None:
            rows.write.format(FORMAT).options(**options).mode("append").save()
            return
        with _small_batches(df.sparkSession, max(1, int(self.rate / tasks * PACE_SECONDS))):
            paced = rows.mapInArrow(pacer(self.rate / tasks), rows.schema)
            paced.write.format(FORMAT).options(**options).mode("append").save()


def in_order(df: DataFrame, tasks: int, *, by_partition: bool) -> DataFrame:
    """All of a key in one task, in the order it had. A topic that was made anew comes after the one it replaced."""
    from pyspark.sql import functions as F

    first = F.min(F.when(_has_time(), F.col("timestamp"))).alias("first")
    ages = df.groupBy("topic", "topic_id").agg(first).orderBy("first").select("topic", "topic_id").collect()
    ids = F.array(*[F.lit(f"{row.topic}/{row.topic_id}") for row in ages] or [F.lit("")])
    age = F.array_position(ids, F.concat_ws("/", "topic", "topic_id"))
    whose = F.col("partition") if by_partition else F.coalesce("key", F.col("partition").cast("string").cast("binary"))
    return df.withColumn("__age", age).repartition(tasks, whose).sortWithinPartitions("__age", "offset", "partition")


def pacer(rate: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Lets at most `rate` rows a second through, in steps of `PACE_SECONDS`. Runs in executors: it travels whole."""
    step = max(1, int(rate * PACE_SECONDS))

    def paced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin, sent = time.monotonic(), 0
        for batch in batches:
            for start in range(0, batch.num_rows, step):
                piece = batch.slice(start, step)
                wait = begin + sent / rate - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                sent += piece.num_rows
                yield piece

    return paced


def _has_time() -> Column:
    """Whether a message has a time: Kafka's word for none is -1 ms."""
    from pyspark.sql import functions as F

    return F.col("timestamp") >= F.timestamp_millis(F.lit(0))


def oldest(messages: DataFrame) -> datetime | None:
    """One without a time is as old as it is in the topic."""
    from pyspark.sql import functions as F

    time_or_now = F.when(_has_time(), F.col("timestamp")).otherwise(F.current_timestamp())
    found = messages.agg(F.unix_micros(F.min(time_or_now))).first()
    return None if found is None or found[0] is None else datetime.fromtimestamp(min(found[0], _LAST_MICROS) / 1e6, UTC)


def warnings_about(settings: Mapping[str, str], first: datetime | None, now: datetime) -> list[str]:
    """What the topic's settings will do to messages that are so old."""
    if first is None:
        return ["the table has no message to replay"]
    age_ms = int((now - first).total_seconds() * 1000)
    found = []
    retention_ms = int(settings.get("retention.ms", _NEVER))
    if "delete" in settings.get("cleanup.policy", "delete") and 0 <= retention_ms < age_ms:
        found.append(
            f"keeps messages for {_days(retention_ms)}, and the oldest to be replayed is {_days(age_ms)} old: "
            "it will be deleted soon after it is sent; raise retention.ms or use keep_timestamps=False"
        )
    before_ms = int(settings.get("message.timestamp.before.max.ms", _NEVER))
    if 0 <= before_ms < age_ms:
        found.append(f"refuses messages older than {_days(before_ms)} (message.timestamp.before.max.ms)")
    return found


def _value(rows: DataFrame, prefix: str) -> Column:
    """The bytes as they were; of a typed archive that did not keep them, the fields as JSON again."""
    from pyspark.sql import functions as F

    if not prefix:
        return F.col("value")
    fields = [f"`{each}`" for each in fields_of_archive(rows.schema).names]
    again = F.to_json(F.struct(*fields)).cast("binary")
    # An archive may have begun to keep the bytes only later.
    kept = [F.col("_value")] if "_value" in rows.columns else []
    return F.when(F.col("_is_empty"), F.lit(None)).otherwise(F.coalesce(*kept, "_unparsed", again))


def _moment(given: str | datetime | None, name: str) -> datetime | None:
    if given is None:
        return None
    try:
        found = given if isinstance(given, datetime) else datetime.fromisoformat(given)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # the latter of the first hours and the last ones that Python knows
        raise DefinitionError(f"{name}={given!r}: write a time like 2026-11-01 or 2026-11-01T12:30:00+01:00") from None


@contextmanager
def _small_batches(spark: SparkSession, rows: int) -> Iterator[None]:
    """Spark hands rows to the sink in batches; a slow replay must not wait for ten thousand of them."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark.conf.get(name))
    spark.conf.set(name, str(min(rows, BATCH_ROWS_MAX)))
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _days(milliseconds: int) -> str:
    hours = milliseconds / 3_600_000
    return (
        f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} hours" if hours >= 2 else f"{hours * 60:.0f} minutes"
    )
