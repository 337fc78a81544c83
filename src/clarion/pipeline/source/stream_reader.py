"""The streaming reader: what Spark asks of a source, answered from what the topics hold.

In the driver, one long-lived process per query calls `initialOffset` once or twice, then `latestOffset` at every
trigger and `partitions` for every batch that has something in it. In the executors only `read` is called, on a copy
that knows the settings and nothing else. An exception in the driver's part would end the query, so waiting for a broker
to come back happens inside.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.offsets import EARLIEST, list_offsets
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.kafka.watch import WatchedPosition
from clarion.pipeline.source.admission import admit
from clarion.pipeline.source.bounds import AtTimes, Earliest, Latest, moves, told_apart
from clarion.pipeline.source.group import GroupProgress
from clarion.pipeline.source.history import (
    Past,
    SeamMovedError,
    TaskPast,
    begins_at_the_earliest,
    read_behind,
    read_past,
)
from clarion.pipeline.source.live_topics import LiveTopics
from clarion.pipeline.source.offsets import Json, StreamOffsets, forward
from clarion.pipeline.source.options import SourceSettings, TriggerLimits
from clarion.pipeline.source.positions import check_all_there, find_topics, partitions_of, resolve
from clarion.pipeline.source.reader import TaskRanges, on_loss, read_task, task_ranges, tell_of_short_logs

# A query without news asks again within a hundredth of a second. If it takes longer, it has done something else.
OTHERS_BUSY_S: Final = 0.05
# While a batch waits to become large enough, news come at once and nothing would pause the loop.
TOO_FEW_PAUSE_S: Final = 0.1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: SourceSettings) -> None:
        if settings.ending is not None:
            raise OptionError("a streaming query has no end: endingOffsets and its kin are for batch queries")
        self._settings = settings
        self._starting = settings.starting or (Latest() if settings.history is None else Earliest())
        if settings.history is not None and isinstance(self._starting, Latest | AtTimes):
            raise OptionError(
                'option history: begin at the earliest or at offsets, and choose times with where("timestamp >= …")'
            )
        self._initial: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._latest: StreamOffsets | None = None
        self._asked_from = StreamOffsets()
        self._last_batch_at = time.monotonic()
        self._pace = Pace(settings.long_poll_ms)

    def __reduce__(self) -> Any:
        return StreamReader, (self._settings,)

    # In the driver

    def initialOffset(self) -> Json:
        """Called twice before the first batch, and again by a run that finds it unfinished: always the same answer."""
        if self._initial is None:
            self._initial = self._find_start()
        return self._initial.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = target = self._live.ends_now()
        if self._past is not None:
            ends = {tp: end for tp, end in self._past.ends(target).items() if end > target.offsets[tp]}
            tell_of_short_logs(self._client, ends, self._lose)
            self._target = forward(target, ends)

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._settings.limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        return ReadMaxBytes(limits.bytes_max) if limits.bytes_max is not None else ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """`start` is the end of the last batch that is done, which makes it the group's progress."""
        standing = StreamOffsets.from_json(start)
        if self._group is not None:
            self._group.store(standing)
        limits = TriggerLimits(bytes_max=None) if isinstance(limit, ReadAllAvailable) else self._settings.limits
        if self._target is not None:
            end = self._next_end_before(self._target, standing, limits)
        else:
            end = self._next_end(standing, limits)
        return end.to_json()

    def reportLatestOffset(self) -> Json | None:
        return self._latest.to_json() if self._latest is not None else None

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        first, last = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
        beginnings = _beginnings(first, last)
        ids = {**self._ids_missing_in(last), **last.ids}
        ranges = [
            OffsetRange(tp.topic, ids[tp.topic], tp.partition, beginnings[tp], offset)
            for tp, offset in last.offsets.items()
            if offset > beginnings[tp]
        ]
        tasks = None if self._past is None else self._past.tasks(ranges, self._log_starts(ranges), self._settings)
        return task_ranges(ranges, self._settings) if tasks is None else tasks

    def commit(self, end: Json) -> None:
        """Comes one batch late, and not at all for the last one: `latestOffset` has stored it before."""

    def stop(self) -> None:
        for each in ("_live", "_client"):  # whichever were needed
            if each in self.__dict__:
                getattr(self, each).close()

    # In an executor

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPast):
            return read_past(partition, self._settings)
        if self._settings.history is not None and isinstance(partition, TaskRanges):
            return read_behind(partition, self._settings)
        return read_task(partition, self._settings)

    # Deciding

    @cached_property
    def _client(self) -> Client:
        return Client(self._settings.client)

    @cached_property
    def _live(self) -> LiveTopics:
        return LiveTopics(self._client, self._settings, self._lose)

    @cached_property
    def _past(self) -> Past | None:
        settings = self._settings
        if settings.history is None:
            return None
        return Past(settings.history, settings.subscription.covers, may_be_anothers=not settings.fail_on_data_loss)

    def _log_starts(self, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, int]:
        """Of a topic that is gone whoever reads it will tell."""
        places = [TopicPartition(each.topic, each.partition) for each in ranges]
        try:
            isolation = self._settings.fetch.isolation
            return list_offsets(self._client, dict.fromkeys(places, EARLIEST), isolation=isolation)
        except KafkaError:
            return {}

    def _lose(self, what: str) -> None:
        """What the brokers have deleted may be in the archive by now."""
        if self._past is not None and self._past.has_moved(self._asked_from):
            raise SeamMovedError
        on_loss(self._settings)(what)

    def _latest_from(self, start: StreamOffsets, wait_ms: int) -> StreamOffsets:
        """The ends of all partitions; as soon as one is past `start`, or behind what the archive holds from there."""
        if self._past is None:
            return self._live.latest(start, wait_ms)
        self._asked_from = start
        while True:
            behind = self._past.behind(start)
            try:
                return self._live.latest(behind, wait_ms if behind == start else 0)
            except SeamMovedError:
                continue

    @cached_property
    def _group(self) -> GroupProgress | None:
        group_id = self._settings.group_id
        return GroupProgress(self._client, group_id, told_apart(self._starting)) if group_id is not None else None

    def _ids_missing_in(self, offsets: StreamOffsets) -> dict[str, UUID]:
        """Of a batch that another connector planned and did not finish: topics as they are now."""
        without = sorted(offsets.topics - offsets.ids.keys())
        if not without:
            return {}
        return {name: topic.topic_id for name, topic in self._client.topics_surely(without).items()}

    def _find_start(self) -> StreamOffsets:
        settings = self._settings
        topics = find_topics(self._client, settings.subscription, surely=True)
        check_all_there(self._client, topics, settings.subscription)
        ids = {name: topic.topic_id for name, topic in topics.items()}
        offsets = resolve(
            self._client,
            self._starting,
            partitions_of(topics, settings.subscription),
            isolation=settings.fetch.isolation,
            option="startingOffsets",
            takes_latest=settings.takes_latest_without_time,
        )
        start = StreamOffsets(ids, offsets)
        if self._past is not None:
            firsts = self._past.first_offsets(start)
            earlier = {tp: first for tp, first in firsts.items() if begins_at_the_earliest(self._starting, tp)}
            return StreamOffsets(ids, {tp: min(offset, earlier.get(tp, offset)) for tp, offset in offsets.items()})
        if self._group is None or not moves(self._starting):
            return start
        start = StreamOffsets(ids, {**offsets, **self._group.pinned(start)})
        self._group.pin(start)
        return start

    def _next_end(self, start: StreamOffsets, limits: TriggerLimits) -> StreamOffsets:
        wait_ms = self._pace.wait_ms(start, time.monotonic())
        self._latest = latest = self._latest_from(start, wait_ms)
        self._pace.answered(start, time.monotonic())
        beginnings = _beginnings(start, latest)
        waiting = sum(offset - beginnings[tp] for tp, offset in latest.offsets.items())
        if waiting and self._waits_for_more(waiting, limits):
            time.sleep(TOO_FEW_PAUSE_S)
            return start
        end = self._admit(start, beginnings, latest, limits)
        if end != start:
            self._last_batch_at = time.monotonic()
        return end

    def _waits_for_more(self, waiting: int, limits: TriggerLimits) -> bool:
        if limits.rows_min is None or waiting >= limits.rows_min:
            return False
        return time.monotonic() - self._last_batch_at < limits.delay_max_ms / 1000

    def _next_end_before(self, target: StreamOffsets, start: StreamOffsets, limits: TriggerLimits) -> StreamOffsets:
        """Towards what was there when the run began, and no further."""
        standing = self._live.towards(start, target)
        self._live.check_logs(start if self._past is None else self._past.not_held(start), target)
        self._latest = latest = forward(standing.offsets, target.offsets)
        beginnings = _beginnings(start, latest)
        waiting = {tp: offset for tp, offset in beginnings.items() if offset < latest.offsets[tp]}
        if waiting and limits.bytes_max is not None:
            here = StreamOffsets(latest.ids, waiting)
            live = here if self._past is None else self._past.behind(here)
            positions = {tp: WatchedPosition(latest.ids[tp.topic], offset) for tp, offset in live.offsets.items()}
            self._live.estimate(positions)
        return self._admit(start, beginnings, latest, limits)

    def _admit(
        self, start: StreamOffsets, beginnings: dict[TopicPartition, int], latest: StreamOffsets, limits: TriggerLimits
    ) -> StreamOffsets:
        offsets = admit(
            beginnings,
            latest.offsets,
            rows_max=limits.rows_max,
            bytes_max=limits.bytes_max,
            bytes_per_row=self._live.bytes_per_row,
        )
        # Where nothing was read the text must stay as it was: for Spark another text is another batch.
        epochs = {
            tp: epoch
            for tp, offset in offsets.items()
            if (epoch := start.epochs.get(tp, -1) if offset == beginnings[tp] else self._live.epoch_of(tp)) >= 0
        }
        return StreamOffsets(latest.ids, offsets, epochs)


def _beginnings(start: StreamOffsets, end: StreamOffsets) -> dict[TopicPartition, int]:
    """Where each partition of `end` begins after `start`; one that is new, or of another topic, at the very first."""
    return {
        tp: start.offsets.get(tp, 0) if start.ids.get(tp.topic, end.ids.get(tp.topic)) == end.ids.get(tp.topic) else 0
        for tp in end.offsets
    }


class Pace:
    """How long to wait for news. Spark asks the sources of a query one after the other, so that one that waits keeps
    the others waiting: if there were batches although nothing came from here, they have news and we have not (or Spark
    asks at intervals), and a look must do. Pure."""

    def __init__(self, long_poll_ms: int) -> None:
        self._long_poll_ms = long_poll_ms
        self._last: tuple[StreamOffsets, float] | None = None

    def wait_ms(self, start: StreamOffsets, now: float) -> int:
        if self._last is not None and self._last[0] == start and now - self._last[1] > OTHERS_BUSY_S:
            return 0
        return self._long_poll_ms

    def answered(self, start: StreamOffsets, now: float) -> None:
        self._last = (start, now)
