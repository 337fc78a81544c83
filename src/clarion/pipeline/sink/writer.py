"""The writers that Spark calls: `write` in every task, `commit` or `abort` in the driver."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.partitioner import Dealer
from clarion.pipeline.kafka.producer import IdempotentProducer
from clarion.pipeline.sink.options import SinkSettings, sink_settings
from clarion.pipeline.sink.routing import route
from clarion.pipeline.sink.rows import check_columns, stage
from clarion.pipeline.workers import freeze_in_workers, kept_client, kept_producer
from clarion.world.clock import SystemClock

# Rows are gathered up to this size before they are sorted by partition and encoded: large enough for good batches in
# dozens of partitions, small enough to stay in the processor's cache.
STAGE_BYTES: Final = 8 * 1024 * 1024

log = logging.getLogger("clarion.pipeline")


@dataclass(frozen=True)
class WrittenMessages(WriterCommitMessage):
    """What one task did. Its messages are visible as soon as the brokers have them: at least once."""

    count: int


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = _checked(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(iterator, self._settings)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is visible already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _warn_of_repetition(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._settings = _checked(options, schema, False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(iterator, self._settings)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is visible already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _warn_of_repetition(messages)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkSettings:
    settings = sink_settings(options)
    if overwrite:
        raise OptionError("a topic cannot be overwritten; write with mode append")
    check_columns(schema, settings.topic)
    return settings


def _warn_of_repetition(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Some task failed. What others wrote stays."""
    if written := sum(each.count for each in messages if isinstance(each, WrittenMessages)):
        log.warning("a batch failed after %d messages were written; they are written again with it", written)


# ------------------------------------------------------------------------------------------------ in a task


def write_task(batches: Iterator[pa.RecordBatch], settings: SinkSettings) -> WrittenMessages:
    """Write all rows of a task, and wait until the brokers have them."""
    context = TaskContext.get()
    assert context is not None, "write runs in a task"
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    turn = first_turn(context.partitionId(), None if batch_id is None else int(batch_id))
    try:
        with kept_producer(settings.client, settings.producer) as producer:
            task = _Task(settings, producer, turn)
            for some in _gathered(batches):
                task.write(some)
    except Exception as error:
        error.add_note(f"(rows are counted from 0 within Spark's partition {context.partitionId()})")
        raise
    return WrittenMessages(producer.written.total())


def first_turn(spark_partition: int, batch_id: int | None) -> int:
    """Which partition of a topic a task begins with where rows have no key. Most micro-batches have a row or two: if
    all of them began alike, one partition would get everything."""
    return spark_partition + (next(_turns) if batch_id is None else batch_id)


_turns = itertools.count(os.getpid())  # of batch queries, which have no number; other processes begin elsewhere


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        size += batch.nbytes
        if size >= STAGE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


class _Task:
    """The writing of one task, from Arrow batches to requests."""

    def __init__(self, settings: SinkSettings, producer: IdempotentProducer, first_turn: int) -> None:
        self._producer = producer
        self._settings = settings
        self._client: Client = kept_client(settings.client)
        self._dealer = Dealer(settings.producer.batch_bytes_max, first=first_turn)
        self._partition_counts: dict[str, int] = {}
        self._next_row = 0
        self._clock = SystemClock()

    def write(self, batches: list[pa.RecordBatch]) -> None:
        staged = stage(
            batches,
            first_row=self._next_row,
            now_ms=self._clock.now_ms(),
            message_bytes_max=self._settings.producer.request_bytes_max,
        )
        self._next_row += staged.messages.count
        routed = route(staged, self._settings.topic, self._partition_count, self._dealer)
        self._producer.write(routed.messages, routed.groups, routed.positions)

    def _partition_count(self, topic: str) -> int:
        """Asked once per task. A topic that is not there is made by the broker, if the broker does such things."""
        if topic not in self._partition_counts:
            found = self._client.topics([topic], may_create=True)
            self._partition_counts[topic] = len(found[topic].partitions)
        return self._partition_counts[topic]


freeze_in_workers()
