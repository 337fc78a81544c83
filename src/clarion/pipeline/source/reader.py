"""The batch reader: a range of every partition, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.offsets import LATEST, READ_UNCOMMITTED, list_offsets
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.kafka.range_reader import OnLoss, fail_on_loss, read_ranges, warn_on_loss
from clarion.pipeline.source.bounds import AtOffsets, Earliest, Latest, check_batch
from clarion.pipeline.source.options import SourceSettings
from clarion.pipeline.source.planning import plan
from clarion.pipeline.source.positions import Offsets, check_all_there, find_topics, partitions_of, resolve
from clarion.pipeline.source.rows import record_batches
from clarion.pipeline.workers import cores, freeze_in_workers, kept_client


@dataclass
class TaskRanges(InputPartition):
    """What one task reads."""

    ranges: tuple[OffsetRange, ...]


class BatchReader(DataSourceReader):
    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._starting = settings.starting or Earliest()
        self._ending = settings.ending or Latest()
        check_batch(self._starting, self._ending)

    def partitions(self) -> list[InputPartition]:
        return task_ranges(self._reaching([(each, each.start) for each in self._ranges()]), self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._settings)

    def _ranges(self) -> list[OffsetRange]:
        settings = self._settings
        client = kept_client(settings.client)
        topics = find_topics(client, settings.subscription)
        check_all_there(client, topics, settings.subscription)
        places = partitions_of(topics, settings.subscription)
        isolation = settings.fetch.isolation
        start = resolve(
            client,
            self._starting,
            places,
            isolation=isolation,
            option="startingOffsets",
            takes_latest=settings.takes_latest_without_time,
        )
        end = resolve(client, self._ending, places, isolation=isolation, option="endingOffsets")
        if isinstance(self._ending, AtOffsets):
            end = self._within_the_log(end, resolve(client, Latest(), places, isolation=isolation, option=""))
        return [OffsetRange(tp.topic, topics[tp.topic].topic_id, tp.partition, start[tp], end[tp]) for tp in places]

    def _reaching(self, going_on: Sequence[tuple[OffsetRange, int]]) -> list[OffsetRange]:
        """Ranges, each with the offset at which reading its log goes on."""
        if not isinstance(self._ending, Latest):
            return [each for each, _ in going_on]
        short = {TopicPartition(each.topic, each.partition): at for each, at in going_on if each.end < at}
        tell_of_short_logs(kept_client(self._settings.client), short, on_loss(self._settings))
        return [replace(each, end=max(each.end, at)) for each, at in going_on]

    def _within_the_log(self, wanted: Offsets, latest: Offsets) -> Offsets:
        """Waiting for messages that may never come is a stream's business, not a batch's."""
        for tp, end in wanted.items():
            if end > latest[tp]:
                on_loss(self._settings)(f"{tp} ends at {latest[tp]}, before the wanted end {end}")
        return {tp: min(end, latest[tp]) for tp, end in wanted.items()}


def on_loss(settings: SourceSettings) -> OnLoss:
    return fail_on_loss if settings.fail_on_data_loss else warn_on_loss


def tell_of_short_logs(client: Client, going_on: Offsets, lose: OnLoss) -> None:
    """A log that ends before the offset where reading goes on has lost its end; what is there and not committed yet is
    not lost."""
    ends = list_offsets(client, dict.fromkeys(going_on, LATEST), isolation=READ_UNCOMMITTED)
    for tp, at in going_on.items():
        if ends[tp] < at:
            lose(f"{tp}: the log ends at {ends[tp]}, before offset {at}, where reading goes on")


def task_ranges(ranges: Sequence[OffsetRange], settings: SourceSettings) -> list[InputPartition]:
    tasks = plan(ranges, cores(), settings.tasks)
    return [TaskRanges(tuple(one)) for one in tasks] or [TaskRanges(())]


def read_task(
    partition: InputPartition, settings: SourceSettings, lose: OnLoss | None = None
) -> Iterator[pa.RecordBatch]:
    """In an executor: everything that the task's ranges hold. `lose` is told what they do not; by default as set."""
    assert isinstance(partition, TaskRanges)
    if not partition.ranges:
        return
    client = kept_client(settings.client)
    for rows, ranges in read_ranges(client, partition.ranges, settings.fetch, lose or on_loss(settings)):
        yield from record_batches(rows, ranges, with_topic_id=settings.include_topic_id)


freeze_in_workers()
