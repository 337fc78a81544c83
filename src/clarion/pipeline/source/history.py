"""Topics with a past: what an archive holds of them is read from its files, the rest from the brokers.

    spark.read.format("clarion").option("subscribe", "events").option("history", "lake/events")

One snapshot of the table says which files there are and, per partition, from which offset to which they hold
everything. A batch cuts that span out of what the brokers are asked for: what is left lies before it (a log that is
older than its archive) and behind it (the live tail). A topic that was deleted and made again has another id, and the
rows of the old one are not its past.

A stream reads the archive up to the seam, which is, per partition, the first offset that the archive does not hold. The
seam is no part of the checkpoint, which says offsets of the topic and nothing else: a message is the same wherever it
is read, so a batch that is played again has the same rows although the archive has grown meanwhile, and the seam with
it. The driver looks at the archive when it starts, whenever it plans a batch that begins before the seam, and when the
brokers have deleted what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.errors import DataLossError
from clarion.pipeline.kafka.offsets import EARLIEST
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.lake.history import Span, check_archive, history, may_hold, read_file, read_in_order
from clarion.pipeline.lake.location import Location
from clarion.pipeline.lake.ranges import Origin
from clarion.pipeline.lake.snapshots import TableFile
from clarion.pipeline.lake.table_reader import pack
from clarion.pipeline.source.bounds import AtOffsets, AtTimes, Bound, Earliest
from clarion.pipeline.source.offsets import StreamOffsets
from clarion.pipeline.source.options import SourceSettings
from clarion.pipeline.source.planning import plan
from clarion.pipeline.source.reader import BatchReader, TaskRanges, on_loss, read_task, task_ranges
from clarion.pipeline.source.rows import arrow_schema
from clarion.pipeline.workers import cores

FILES_PER_TASK_MAX: Final = 64  # so that a long past is read by more tasks than there are cores, and one can fail alone


@dataclass
class TaskArchive(InputPartition):
    """Files of the archive that one task reads, and what it takes from them."""

    location: Location
    files: tuple[TableFile, ...]
    wanted: Mapping[Origin, Span]


class HistoryReader(BatchReader):
    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        if isinstance(self._starting, AtTimes) or isinstance(self._ending, AtTimes):
            raise OptionError('option history: begin and end by offsets, and choose times with where("timestamp >= …")')

    def partitions(self) -> list[InputPartition]:
        live = self._ranges()
        place = self._settings.history
        assert place is not None
        check_archive(place)
        past = history(place, [origin_of(each) for each in live])
        if past.files and not past.spans and live and self._settings.fail_on_data_loss:
            raise _of_another_topic(place, {each.topic for each in live})
        live = [self._from_the_archives_start(each, past.spans.get(origin_of(each))) for each in live]
        ends = {origin: span.next_offset for origin, span in past.spans.items()}
        live = self._reaching([(each, max(each.start, ends.get(origin_of(each), 0))) for each in live])
        wanted = {key: span for key, span in archived(past.spans, live).items() if span[0] < span[1]}
        tail = [part for each in live for part in outside(each, past.spans.get(origin_of(each)))]
        tasks = max(cores() or 1, -(-len(past.files) // FILES_PER_TASK_MAX))
        lots = pack(past.files, tasks) if wanted else []
        return [*(TaskArchive(place, files, wanted) for files in lots), *task_ranges(tail, self._settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        if isinstance(partition, TaskRanges):
            yield from read_behind(partition, settings)
            return
        assert isinstance(partition, TaskArchive)
        schema = arrow_schema(with_headers=settings.include_headers, with_topic_id=settings.include_topic_id)
        for file in partition.files:
            yield from read_file(partition.location, file, partition.wanted, schema)

    def _from_the_archives_start(self, live: OffsetRange, span: Span | None) -> OffsetRange:
        """The earliest, of all partitions or of this one, is the archive's: the log's own may have moved past it."""
        if span is None or not begins_at_the_earliest(self._starting, TopicPartition(live.topic, live.partition)):
            return live
        return replace(live, start=min(live.start, span.first_offset))


def begins_at_the_earliest(starting: Bound, tp: TopicPartition) -> bool:
    return isinstance(starting, Earliest) or (
        isinstance(starting, AtOffsets) and dict(starting.offsets).get(tp) == EARLIEST
    )


def _of_another_topic(place: Location, topics: Iterable[str]) -> DataLossError:
    """An archive of nothing but former topics of these names is more likely a mistake than meant."""
    return DataLossError(
        f"{place} holds nothing of the topic {', '.join(sorted(topics))} as it is now: it was made anew since, or this "
        "is another archive; failOnDataLoss=false reads the live topic alone"
    )


def origin_of(live: OffsetRange) -> Origin:
    return Origin(live.topic, str(live.topic_id), live.partition)


def archived(spans: Mapping[Origin, Span], live: Sequence[OffsetRange]) -> dict[Origin, Span]:
    """What to take from the archive."""
    found = {}
    for each in live:
        span = spans.get(origin_of(each))
        if span is not None:
            found[origin_of(each)] = Span(max(span.first_offset, each.start), min(span.next_offset, each.end))
    return found


def outside(live: OffsetRange, span: Span | None) -> list[OffsetRange]:
    """What to ask the brokers for. Behind the span it begins exactly there, so that a hole is noticed, not skipped."""
    if span is None:
        return [live]
    before = replace(live, end=min(live.end, span.first_offset))
    behind = replace(live, start=max(live.start, span.next_offset))
    return [each for each in (before, behind) if each.start < each.end]


# ------------------------------------------------------------------------------------------------ of a stream


@dataclass
class TaskPast(InputPartition):
    """What one task reads: from the brokers what is older than the archive, then from the archive, then the rest."""

    location: Location
    before: tuple[OffsetRange, ...]
    archived: tuple[tuple[OffsetRange, tuple[TableFile, ...]], ...]
    live: tuple[OffsetRange, ...]


class SeamMovedError(Exception):
    """The archive holds more than it did when it was looked at; look again from there."""


class Past:
    """What the driver knows of the archive."""

    def __init__(
        self, location: Location, is_subscribed: Callable[[str, int | None], bool], *, may_be_anothers: bool
    ) -> None:
        check_archive(location)
        self._location = location
        self._is_subscribed = is_subscribed
        self._may_be_anothers = may_be_anothers
        self._spans: dict[Origin, Span] = {}
        self._asked: set[Origin] = set()

    def first_offsets(self, offsets: StreamOffsets) -> dict[TopicPartition, int]:
        """Where the archive begins, per partition that it knows."""
        self._look_for(offsets)
        return {tp: span.first_offset for tp, span in self._by_partition(offsets).items()}

    def ends(self, offsets: StreamOffsets) -> dict[TopicPartition, int]:
        """Where the archive ends, per partition that it knows."""
        self._look_for(offsets)
        return {tp: span.next_offset for tp, span in self._by_partition(offsets).items()}

    def behind(self, offsets: StreamOffsets) -> StreamOffsets:
        """The same place for somebody who has no archive: where it holds the next message, where the archive ends."""
        self._look_for(offsets)
        spans = self._by_partition(offsets)
        ahead = {tp: after(at, spans.get(tp)) for tp, at in offsets.offsets.items()}
        # What comes from the archive was not read from this log, so there is nothing in it to be compared with.
        epochs = {tp: epoch for tp, epoch in offsets.epochs.items() if ahead[tp] == offsets.offsets[tp]}
        return StreamOffsets(offsets.ids, ahead, epochs)

    def not_held(self, offsets: StreamOffsets) -> StreamOffsets:
        """Only the partitions whose next message is to be had from nobody but the brokers."""
        behind = self.behind(offsets)
        own = {tp: at for tp, at in offsets.offsets.items() if behind.offsets[tp] == at}
        return StreamOffsets(offsets.ids, own, behind.epochs)

    def has_moved(self, offsets: StreamOffsets) -> bool:
        """Look again whether the archive holds what comes next."""
        before = self.behind(offsets)
        self._look(self._asked)
        return self.behind(offsets) != before

    def tasks(
        self, ranges: Sequence[OffsetRange], log_starts: Mapping[TopicPartition, int], settings: SourceSettings
    ) -> list[InputPartition] | None:
        """None if nothing of these ranges is to be had from the archive. `log_starts`: what the brokers still have."""
        origins = {origin_of(each) for each in ranges}
        is_overtaken = any(
            each.start < log_starts.get(TopicPartition(each.topic, each.partition), 0) for each in ranges
        )
        # Not asked before: a driver that begins with a batch that its predecessor did not end.
        if is_overtaken or not origins <= self._asked:
            self._look(self._asked | origins)
        if not any(inside(each, self._spans.get(origin_of(each))) for each in ranges):
            return None
        files = self._look(self._asked)
        pieces = [part for each in ranges for part in outside(each, self._spans.get(origin_of(each)))]
        for origin, span in archived(self._spans, ranges).items():
            mine = next(each for each in ranges if origin_of(each) == origin)
            if span.first_offset < span.next_offset:
                pieces.append(OffsetRange(mine.topic, mine.topic_id, mine.partition, *span))
        planned = plan(pieces, cores(), settings.tasks)
        return [task_of(self._location, each, self._spans, files) for each in planned]

    def _look_for(self, offsets: StreamOffsets) -> None:
        origins = set(_origins(offsets).values())
        if not origins <= self._asked:
            self._look(self._asked | origins)
            if origins and not self._spans and not self._may_be_anothers:
                raise _of_another_topic(self._location, offsets.ids)

    def _look(self, origins: set[Origin]) -> list[TableFile]:
        self._spans, files = history(self._location, origins)
        self._asked = origins
        return files

    def _by_partition(self, offsets: StreamOffsets) -> dict[TopicPartition, Span]:
        """Without what is not subscribed any more: nothing more of it is read, here neither."""
        origins = {tp: origin for tp, origin in _origins(offsets).items() if self._is_subscribed(*tp)}
        return {tp: self._spans[origin] for tp, origin in origins.items() if origin in self._spans}


def _origins(offsets: StreamOffsets) -> dict[TopicPartition, Origin]:
    """Of topics without an id (another connector's checkpoint) nobody can say whether they are the archived ones."""
    return {
        tp: Origin(tp.topic, str(offsets.ids[tp.topic]), tp.partition)
        for tp in offsets.offsets
        if tp.topic in offsets.ids
    }


def after(at: int, span: Span | None) -> int:
    return at if span is None or not span.first_offset <= at < span.next_offset else span.next_offset


def inside(part: OffsetRange, span: Span | None) -> bool:
    return span is not None and part.start < span.next_offset and part.end > span.first_offset


def task_of(
    location: Location, ranges: Sequence[OffsetRange], spans: Mapping[Origin, Span], files: Sequence[TableFile]
) -> InputPartition:
    """Which of a task's ranges the archive holds: the pieces do not cross its ends."""
    before, past, live = [], [], []
    for each in ranges:
        known = spans.get(origin_of(each))
        if inside(each, known):
            span = Span(each.start, each.end)
            past.append((each, tuple(file for file in files if may_hold(file, origin_of(each), span))))
        elif known is not None and each.end <= known.first_offset:
            before.append(each)
        else:
            live.append(each)
    return TaskPast(location, tuple(before), tuple(past), tuple(live)) if past else TaskRanges((*before, *live))


def read_past(task: TaskPast, settings: SourceSettings) -> Iterator[pa.RecordBatch]:
    """In an executor: every partition in the order of its log, which may go back further than the archive does."""
    schema = arrow_schema(with_headers=settings.include_headers, with_topic_id=settings.include_topic_id)
    yield from read_task(TaskRanges(task.before), settings)
    for each, files in task.archived:
        yield from read_in_order(task.location, files, origin_of(each), Span(each.start, each.end), schema)
    yield from read_behind(TaskRanges(task.live), settings)


def read_behind(task: TaskRanges, settings: SourceSettings) -> Iterator[pa.RecordBatch]:
    """In an executor: what the archive did not hold when the batch was planned. If the brokers have deleted some of it
    since because it is archived now, nothing is lost: the batch has to be planned anew, which a restart does."""
    place = settings.history
    assert place is not None

    def lose(what: str) -> None:
        spans = history(place, [origin_of(each) for each in task.ranges]).spans
        if any(inside(each, spans.get(origin_of(each))) for each in task.ranges):
            raise SeamMovedError(f"{what}; they have been archived meanwhile, and are read there after a restart")
        on_loss(settings)(what)

    yield from read_task(task, settings, lose)
