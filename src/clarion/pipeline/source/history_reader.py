"""The batch reader with a past: what an archive holds of the topics is read from its files, the rest from the brokers.

    spark.read.format("clarion").option("subscribe", "events").option("history", "lake/events")

One snapshot of the table says which files there are and, per partition, from which offset to which they hold
everything. That span is cut out of what the brokers are asked for: what is left lies before it (a log that is older
than its archive) and behind it (the live tail). A topic that was deleted and made again has another id, and the rows of
the old one are not its past.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.errors import DataLossError
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.lake.history import History, Span, check_archive, history, read_file
from clarion.pipeline.lake.location import Location
from clarion.pipeline.lake.ranges import Origin
from clarion.pipeline.lake.snapshots import TableFile
from clarion.pipeline.lake.table_reader import pack
from clarion.pipeline.source.bounds import AtTimes, Earliest
from clarion.pipeline.source.options import SourceSettings
from clarion.pipeline.source.reader import BatchReader, task_ranges
from clarion.pipeline.source.rows import arrow_schema
from clarion.pipeline.workers import cores

FILES_PER_TASK_MAX: Final = 64  # so that a long past is read by more tasks than there are cores, and one can fail alone


@dataclass
class TaskFiles(InputPartition):
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
        self._check_identity(past, live)
        from_start = isinstance(self._starting, Earliest)
        wanted = {
            key: span for key, span in archived(past.spans, live, from_start=from_start).items() if span[0] < span[1]
        }
        tail = [part for each in live for part in outside(each, past.spans.get(origin_of(each)), from_start=from_start)]
        tasks = max(cores() or 1, -(-len(past.files) // FILES_PER_TASK_MAX))
        lots = pack(past.files, tasks) if wanted else []
        return [*(TaskFiles(place, files, wanted) for files in lots), *task_ranges(tail, self._settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskFiles):
            yield from super().read(partition)
            return
        settings = self._settings
        schema = arrow_schema(with_headers=settings.include_headers, with_topic_id=settings.include_topic_id)
        for file in partition.files:
            yield from read_file(partition.location, file, partition.wanted, schema)

    def _check_identity(self, past: History, live: Sequence[OffsetRange]) -> None:
        """An archive of nothing but former topics of these names is more likely a mistake than meant."""
        if past.files and not past.spans and live and self._settings.fail_on_data_loss:
            names = ", ".join(sorted({each.topic for each in live}))
            raise DataLossError(
                f"{self._settings.history} holds nothing of the topic {names} as it is now: it was made anew since, or "
                "this is another archive; failOnDataLoss=false reads the live topic alone"
            )


def origin_of(live: OffsetRange) -> Origin:
    return Origin(live.topic, str(live.topic_id), live.partition)


def archived(spans: Mapping[Origin, Span], live: Sequence[OffsetRange], *, from_start: bool) -> dict[Origin, Span]:
    """What to take from the archive. From the start means from its start: the log's own may have moved past it."""
    found = {}
    for each in live:
        span = spans.get(origin_of(each))
        if span is not None:
            first = span.first_offset if from_start else max(span.first_offset, each.start)
            found[origin_of(each)] = Span(first, min(span.next_offset, each.end))
    return found


def outside(live: OffsetRange, span: Span | None, *, from_start: bool) -> list[OffsetRange]:
    """What to ask the brokers for. Behind the span it begins exactly there, so that a hole is noticed, not skipped."""
    if span is None:
        return [live]
    before = replace(live, end=min(live.end, span.first_offset))
    behind = replace(live, start=span.next_offset if from_start else max(live.start, span.next_offset))
    return [each for each in (before, behind) if each.start < each.end]
