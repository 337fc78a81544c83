"""Micro-batches as Spark plays them, without Spark: offsets are written down, tasks run in any order, the sink commits,
and only then is the batch done. Whoever dies in between comes back with the same batch. Readers and tasks travel as
pickles."""

import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.offsets import EARLIEST, LATEST, list_offsets
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.kafka.range_reader import FetchSettings, read_ranges
from clarion.pipeline.kafka.settings import ClientSettings
from clarion.pipeline.lake import delta
from clarion.pipeline.lake.commits import Commit, WriterBatch
from clarion.pipeline.lake.files import TaskFiles
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.ranges import united
from clarion.pipeline.sink.options import sink_settings
from clarion.pipeline.sink.writer import _Task
from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.rows import record_batches
from clarion.pipeline.source.stream_reader import StreamReader
from clarion.pipeline.workers import kept_producer
from tests.pipeline.checker.model import Content, Place

ORIGIN = ("topic", "topic_id", "partition", "offset")


class KilledError(Exception):
    """The driver dies here."""


class Sink:
    """What becomes of a batch; `crash` is called between any two steps."""

    def take(self, number: int, tasks: list[list[pa.RecordBatch]], crash: Any) -> None:
        raise NotImplementedError


class TableSink(Sink):
    def __init__(self, path: Path) -> None:
        self._options = TableOptions(path=str(path), source_columns=ORIGIN, sync=False)

    def take(self, number: int, tasks: list[list[pa.RecordBatch]], crash: Any) -> None:
        schema = next((batch.schema for task in tasks for batch in task), None)
        if schema is None:
            return
        layout = delta.plan(self._options, schema)
        written = []
        for nth, task in enumerate(tasks):
            files = TaskFiles(layout, f"part-{nth:05}")
            for batch in task:
                files.write(batch)
            written.append(files.close())
            crash()
        work = Commit(
            schema=layout.schema,
            files=[file for files, _ in written for file in files],
            ranges=united(part for _, parts in written for part in parts),
            batch=WriterBatch("checker", number),
        )
        delta.commit(self._options, work)
        crash()

    def rows(self) -> list[tuple[Place, Content]]:
        if not delta.exists(self._options.path):
            return []
        found = pa.table(delta.open_table(self._options.path).to_pyarrow_table())
        return [(_place(row), _content(row)) for row in found.to_pylist()]


class TopicSink(Sink):
    """Every message to the partition it came from, with everything it had."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._settings = sink_settings({"bootstrap.servers": bootstrap, "topic": topic})

    def take(self, number: int, tasks: list[list[pa.RecordBatch]], crash: Any) -> None:
        for nth, task in enumerate(tasks):
            with kept_producer(self._settings.client, self._settings.producer) as producer:
                writing = _Task(self._settings, producer, number + nth)
                for batch in task:
                    writing.write([batch.select(["key", "value", "headers", "partition", "timestamp"])])
                    crash()
        crash()

    def rows(self) -> dict[int, list[Content]]:
        """Per partition, in order."""
        client = Client(ClientSettings(self._settings.client.bootstrap_servers))
        topic = client.topics([str(self._settings.topic)])[str(self._settings.topic)]
        found: dict[int, list[Content]] = {}
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.number)
            first, last = (list_offsets(client, {tp: when})[tp] for when in (EARLIEST, LATEST))
            wanted = OffsetRange(topic.name, topic.topic_id, one.number, first, last)
            parts = read_ranges(client, [wanted], FetchSettings(with_headers=True))
            rows = [
                row for rows, ranges in parts for batch in record_batches(rows, ranges) for row in batch.to_pylist()
            ]
            found[one.number] = [_content(row) for row in rows]
        client.close()
        return found


class Engine:
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        sink: Sink,
        chance: random.Random,
        note: Callable[[str], None],
        **options: str,
    ) -> None:
        """`note` is told what happens, before it does."""
        self._note = note
        self._options = {
            "bootstrap.servers": bootstrap, "subscribe": topic, "startingoffsets": "earliest", "includeheaders": "true",
            "includetopicid": "true", "failondataloss": "false", "longpollms": "1", "kafka.metadata.max.age.ms": "1",
            "maxoffsetspertrigger": str(chance.choice((5, 50, 1000))), "kafka.fetch.max.bytes": "600",
            "splitpartitions": "true" if isinstance(sink, TableSink) else "false", **options,
        }  # fmt: skip
        self._sink = sink
        self._chance = chance
        self._reader = self._new_reader()
        self._number = 0
        self._done: dict[str, Any] | None = None
        self._planned: tuple[dict[str, Any], dict[str, Any]] | None = None

    def restart(self) -> None:
        """Another process, which knows what the checkpoint knows."""
        self._reader.stop()
        self._reader = self._new_reader()

    def step(self, *, may_crash: bool) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Play the batch that is planned, or plan one. What was done; None if there was nothing to do, or a death."""
        if self._planned is None:
            start = self._done if self._done is not None else self._reader.initialOffset()
            end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
            if end == start:
                self._done = start
                return None
            self._planned = (start, end)
        self._note(f"batch {self._number}: {json.dumps(self._planned[0])} to {json.dumps(self._planned[1])}")
        try:
            self._play(*self._planned, may_crash)
        except KilledError:
            self._note("  the driver dies in it")
            self.restart()
            return None
        done, self._planned = self._planned, None
        self._done = done[1]
        self._number += 1
        return done

    def close(self) -> None:
        self._reader.stop()

    def _play(self, start: dict[str, Any], end: dict[str, Any], may_crash: bool) -> None:
        def crash() -> None:
            if may_crash and self._chance.random() < 0.25:
                raise KilledError

        crash()
        tasks = [list(task) for task in self._tasks(start, end)]
        self._chance.shuffle(tasks)
        self._sink.take(self._number, tasks, crash)

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Iterator[pa.RecordBatch]]:
        copy = pickle.loads(pickle.dumps(self._reader))
        for task in self._reader.partitions(start, end):
            yield copy.read(pickle.loads(pickle.dumps(task)))

    def _new_reader(self) -> StreamReader:
        return StreamReader(source_settings(self._options))


def _place(row: dict[str, Any]) -> Place:
    return row["topic_id"], row["partition"], row["offset"]


def _content(row: dict[str, Any]) -> Content:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    return row["key"], row["value"], headers, round(row["timestamp"].timestamp() * 1000)
