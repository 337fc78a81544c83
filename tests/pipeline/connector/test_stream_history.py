"""A stream that begins in an archive and goes on in its topic, asked as Spark asks it: no gap, nothing twice."""

import json
import pickle
import random
import time
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.errors import DataLossError
from clarion.pipeline.lake.commits import WriterBatch
from clarion.pipeline.lake.compaction import compact
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.restarting import can_be_mended
from clarion.pipeline.source.history import HistoryReader, SeamMovedError, TaskPast
from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.stream_reader import StreamReader
from tests.pipeline.connector.stream_readers import latest
from tests.pipeline.lake.rows import SOURCE, write
from tests.pipeline.topics import create, delete, delete_before, ends, fill
from tests.waiting import wait_for

PARTITIONS = 3


class Stream:
    """A query: a reader, and how far it has come. `restart` is what a killed driver leaves."""

    def __init__(self, bootstrap: str, topic: str, **options: str) -> None:
        self.options = {"bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest", **options}
        self.batches: list[tuple[dict, dict]] = []
        self.rows: list[tuple[int, int, bytes]] = []
        self._start: dict | None = None
        self.restart()

    def restart(self) -> None:
        self.reader = StreamReader(source_settings(self.options))
        self._start = self._start or self.reader.initialOffset()

    def step(self, rows_max: int = 1_000_000) -> bool:
        """One micro-batch, if there is something for it."""
        start = self._start or {}
        self.reader._settings = source_settings(
            {**self.options, "maxOffsetsPerTrigger": str(rows_max), "longPollMs": "1"}
        )
        end = self.reader.latestOffset(start, ReadMaxRows(rows_max))
        if end == start:
            return False
        self.rows += self.read(start, end)
        self.batches.append((start, end))
        self._start = end
        return True

    def record_batches(self, start: dict, end: dict) -> list:
        copy = pickle.loads(pickle.dumps(self.reader))
        tasks = [pickle.loads(pickle.dumps(one)) for one in self.reader.partitions(start, end)]
        self.used_the_archive = any(isinstance(task, TaskPast) and task.archived for task in tasks)
        return [batch for task in tasks for batch in copy.read(task)]

    def read(self, start: dict, end: dict) -> list[tuple[int, int, bytes]]:
        columns = ("partition", "offset", "value")
        found = [
            zip(*(one[name].to_pylist() for name in columns), strict=True) for one in self.record_batches(start, end)
        ]
        return [row for rows in found for row in rows]

    def read_all(self, rows_max: int = 1_000_000) -> None:
        """A step without news is not the end yet: it asks for a millisecond only, and a broker may be slower."""
        while self.step(rows_max) or not self._is_at_end():
            pass

    def _is_at_end(self) -> bool:
        topic = self.options["subscribe"]
        at = (self._start or {})[topic]
        return all(at[str(index)] == end for index, end in enumerate(ends(self.options["bootstrap.servers"], topic)))


class Archive(Stream):
    """The archive of a topic: a query of the same kind whose batches go into a table."""

    def __init__(self, bootstrap: str, topic: str, path: str, **options: str) -> None:
        self.table = TableOptions(path=path, source_columns=SOURCE)
        super().__init__(bootstrap, topic, includeTopicId="true", includeHeaders="true", **options)

    def read(self, start: dict, end: dict) -> list[tuple[int, int, bytes]]:
        write(self.table, *self.record_batches(start, end), batch=WriterBatch("archive", len(self.batches)))
        return []


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def send(bootstrap: str, topic: str, partition: int, first: int, count: int) -> None:
    fill(bootstrap, topic, [b"%d:%d" % (partition, number) for number in range(first, first + count)], partition)


def expected(counts: list[int], first: int = 0) -> list[tuple[int, int, bytes]]:
    return [(p, n, b"%d:%d" % (p, n)) for p, count in enumerate(counts) for n in range(first, count)]


def in_log_order(rows: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Sorted by partition alone: within one the order is the stream's own."""
    return sorted(rows, key=lambda row: row[0])


def play(bootstrap: str, topic: str, path: str, seed: int, steps: int) -> None:
    """Writers, an archive with compactions, retention that follows it, a stream whose driver dies."""
    rng = random.Random(seed)
    create(bootstrap, topic, PARTITIONS)
    counts, deleted = [0] * PARTITIONS, [0] * PARTITIONS

    def produce() -> None:
        p, count = rng.randrange(PARTITIONS), rng.randint(1, 40)
        send(bootstrap, topic, p, counts[p], count)
        counts[p] += count

    for _ in range(5):
        produce()
    archive = Archive(bootstrap, topic, path)
    archive.read_all(rng.randint(20, 200))
    stream: Stream | None = None
    from_archive = 0
    for _ in range(steps):
        match rng.choice(["produce", "archive", "compact", "delete", "stream", "stream", "restart", "again"]):
            case "produce":
                produce()
            case "archive":
                archive.step(rng.randint(5, 100))
            case "compact":
                compact(path, files_min=2)
            case "delete":  # never more than the archive holds
                p = rng.randrange(PARTITIONS)
                held = archive._start[topic][str(p)]
                deleted[p] = rng.randint(deleted[p], held)
                if deleted[p]:
                    delete_before(bootstrap, topic, deleted[p], p)
            case "restart" if stream is not None:
                stream.restart()
            case "again" if stream is not None and stream.batches:
                stream.restart()
                start, end = stream.batches[-1]
                again = {(p, n) for p, n, _ in stream.read(start, end)}
                wanted = {
                    (int(p), n)
                    for p in end[topic]
                    if p not in ("id", "epochs")
                    for n in range(start[topic].get(p, 0), end[topic][p])
                }
                assert again == wanted, f"seed {seed}: a batch that is played again"
            case _:
                if stream is None:
                    stream = Stream(bootstrap, topic, history=path)
                if stream.step(rng.randint(5, 120)):
                    from_archive += stream.used_the_archive
    stream = stream or Stream(bootstrap, topic, history=path)
    stream.read_all()
    assert in_log_order(stream.rows) == expected(counts), f"seed {seed}"
    assert from_archive, f"seed {seed}: the archive was never read"


@pytest.mark.parametrize("seed", range(5))
def test_everything_once_and_in_order_whatever_happens_meanwhile(
    bootstrap: str, unique: str, path: str, seed: int
) -> None:
    play(bootstrap, unique, path, seed, steps=40)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_everything_once_and_in_order_with_many_seeds(bootstrap: str, unique: str, tmp_path: Path) -> None:
    for seed in range(100, 200):
        play(bootstrap, f"{unique}-{seed}", str(tmp_path / str(seed)), seed, steps=80)


def test_the_checkpoint_says_offsets_of_the_topic_and_nothing_else(bootstrap: str, unique: str, path: str) -> None:
    create(bootstrap, unique, 2)
    for partition in (0, 1):
        send(bootstrap, unique, partition, 0, 10)
    archive = Archive(bootstrap, unique, path)
    archive.read_all()
    delete_before(bootstrap, unique, 10, 0)
    send(bootstrap, unique, 0, 10, 5)
    stream = Stream(bootstrap, unique, history=path)

    assert {p: n for p, n in stream._start[unique].items() if p not in ("id", "epochs")} == {"0": 0, "1": 0}
    stream.read_all(8)
    assert in_log_order(stream.rows) == expected([15, 10])
    assert stream._start[unique] == {**archive._start[unique], "0": 15}


def test_what_is_older_than_the_archive_comes_before_it(bootstrap: str, unique: str, path: str) -> None:
    """An archive that began at the latest, or an hour ago: the log goes back further than it does."""
    create(bootstrap, unique, 2)
    for partition in (0, 1):
        send(bootstrap, unique, partition, 0, 30)
    began = f'{{"{unique}": {{"0": 10, "1": 0}}}}'
    Archive(bootstrap, unique, path, startingOffsets=began).step(20)
    stream = Stream(bootstrap, unique, history=path)
    stream.read_all()
    assert in_log_order(stream.rows) == expected([30, 30])


def test_a_hole_between_the_archive_and_the_log_is_told(bootstrap: str, unique: str, path: str) -> None:
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    Archive(bootstrap, unique, path).read_all()
    send(bootstrap, unique, 0, 10, 10)
    delete_before(bootstrap, unique, 15)

    with pytest.raises(DataLossError, match="offsets 10 to 14 are deleted"):
        Stream(bootstrap, unique, history=path).read_all()

    forgiving = Stream(bootstrap, unique, history=path, failOnDataLoss="false")
    forgiving.read_all()
    assert [n for _, n, _ in forgiving.rows] == [*range(10), *range(15, 20)]


def test_a_stream_that_retention_overtook_finds_the_rest_in_the_archive(bootstrap: str, unique: str, path: str) -> None:
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    archive = Archive(bootstrap, unique, path)
    archive.read_all()
    stream = Stream(bootstrap, unique, history=path)
    stream.read_all()
    send(bootstrap, unique, 0, 10, 20)
    archive.read_all()
    delete_before(bootstrap, unique, 25)
    send(bootstrap, unique, 0, 30, 1)
    stream.read_all()
    assert stream.rows == expected([31])


@pytest.mark.parametrize("history_was_needed", [True, False])
def test_what_is_archived_and_deleted_between_planning_and_reading_is_not_lost(
    bootstrap: str, unique: str, path: str, history_was_needed: bool
) -> None:
    """Not even for a stream that goes on behind what is lost: the batch is planned anew, by whoever starts it again."""
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    archive = Archive(bootstrap, unique, path)
    archive.read_all()
    stream = Stream(bootstrap, unique, history=path, failOnDataLoss="false")
    if not history_was_needed:
        stream.read_all()
    send(bootstrap, unique, 0, 10, 20)
    start, reader = stream._start, stream.reader
    end = {unique: {**start[unique], "0": 30}}
    tasks = reader.partitions(start, end)
    archive.read_all()
    delete_before(bootstrap, unique, 25)

    with pytest.raises(SeamMovedError, match=r"offsets 10 to 24 are deleted.* archived meanwhile"):
        [batch for task in tasks for batch in reader.read(task)]
    stream.restart()
    assert [n for _, n, _ in stream.read(start, end)] == [*range(start[unique]["0"], 30)]
    assert can_be_mended(SeamMovedError("offsets 10 to 24 are deleted"))


def test_what_a_batch_of_both_sides_missed_is_not_left_out(bootstrap: str, unique: str, path: str) -> None:
    """A batch query is planned once: what is archived and deleted before its tasks read it is there in the next run."""
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    archive = Archive(bootstrap, unique, path)
    archive.read_all()
    send(bootstrap, unique, 0, 10, 20)
    options = {"bootstrap.servers": bootstrap, "subscribe": unique, "history": path, "failOnDataLoss": "false"}
    reader = HistoryReader(source_settings(options))
    tasks = reader.partitions()
    archive.read_all()
    delete_before(bootstrap, unique, 25)
    with pytest.raises(SeamMovedError, match=r"offsets 10 to 24 are deleted.* archived meanwhile"):
        [batch for task in tasks for batch in reader.read(task)]


def test_available_now_goes_on_when_the_archive_is_past_its_end(bootstrap: str, unique: str, path: str) -> None:
    """What the archive holds is not looked for in the log, which may have moved on twice meanwhile."""
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    archive = Archive(bootstrap, unique, path)
    archive.read_all()
    stream = Stream(bootstrap, unique, history=path)
    stream.reader.prepareForTriggerAvailableNow()
    for first in (10, 20):
        send(bootstrap, unique, 0, first, 10)
        archive.read_all()
        delete_before(bootstrap, unique, first + 10)
        assert stream.step(rows_max=5)
    assert not stream.step()
    assert stream.rows == expected([10])


def test_an_archive_of_a_former_topic_is_refused(bootstrap: str, unique: str, path: str) -> None:
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    Archive(bootstrap, unique, path).read_all()
    delete(bootstrap, unique)
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 3)
    with pytest.raises(DataLossError, match="made anew since, or this is another archive"):
        Stream(bootstrap, unique, history=path)
    alone = Stream(bootstrap, unique, history=path, failOnDataLoss="false")
    alone.read_all()
    assert alone.rows == expected([3])


@pytest.mark.parametrize("starting", ["earliest", '{"TOPIC": {"0": -2}}'])
def test_the_earliest_is_the_archives_for_a_batch_as_well(
    bootstrap: str, unique: str, path: str, starting: str
) -> None:
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    Archive(bootstrap, unique, path).read_all()
    delete_before(bootstrap, unique, 6)
    options = {"bootstrap.servers": bootstrap, "subscribe": unique, "history": path}
    assert offsets_of_batch({**options, "startingOffsets": starting.replace("TOPIC", unique)}) == [*range(10)]


def offsets_of_batch(options: dict[str, str]) -> list[int]:
    reader = HistoryReader(source_settings(options))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return sorted(offset for each in batches for offset in each["offset"].to_pylist())


def test_a_log_that_ends_before_its_archive_is_told_to_a_batch_and_by_available_now(
    bootstrap: str, unique: str, path: str, caplog
) -> None:
    """It lost its end after that was archived: a batch had all but the archived messages behind the log's end."""
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    archive = Archive(bootstrap, unique, path)
    archive.read_all()
    (known,) = archive.record_batches({}, {**archive.batches[0][1], unique: {**archive.batches[0][1][unique], "0": 5}})
    lost = known.set_column(known.schema.get_field_index("offset"), "offset", pa.array(range(10, 15), pa.int64()))
    write(archive.table, lost)
    options = {"bootstrap.servers": bootstrap, "subscribe": unique, "history": path}
    with pytest.raises(DataLossError, match="-0: the log ends at 10, before offset 15, where reading goes on"):
        offsets_of_batch(options)
    assert offsets_of_batch({**options, "failOnDataLoss": "false"}) == [*range(15)]
    assert "the log ends at 10, before offset 15" in caplog.text
    for loss in ("true", "false"):
        stream = Stream(bootstrap, unique, history=path, failOnDataLoss=loss)
        told = pytest.raises(DataLossError, match="-0: the log ends at 10, before offset 15")
        with told if loss == "true" else nullcontext():
            stream.reader.prepareForTriggerAvailableNow()
            stream.step()
            assert not stream.step()
            assert [offset for _, offset, _ in stream.rows] == [*range(15)]


@pytest.mark.parametrize("what", ["topic", "partition"])
def test_what_is_not_subscribed_any_more_is_not_read_from_the_archive_either(bootstrap, unique, path, what) -> None:
    other = f"{unique}-other"
    create(bootstrap, unique, 2)
    create(bootstrap, other, 1)
    for topic, partition in ((unique, 0), (unique, 1), (other, 0)):
        fill(bootstrap, topic, [b"wanted"] * 4, partition)
    archive = Archive(bootstrap, f"{unique},{other}", path)
    archive.step()
    stream = Stream(bootstrap, f"{unique},{other}", history=path, failOnDataLoss="false")
    stream.step()
    assert len(stream.rows) == 12
    fill(bootstrap, *((other,) if what == "topic" else (unique,)), [b"not wanted"] * 3, 0 if what == "topic" else 1)
    archive.step()
    del stream.options["subscribe"]
    stream.options |= {"subscribe": unique} if what == "topic" else {"assign": json.dumps({unique: [0], other: [0]})}
    stream.restart()
    fill(bootstrap, unique, [b"wanted"] * 2, 0)
    wait_for(stream.step)
    assert not stream.step()
    assert [value for *_, value in stream.rows] == [b"wanted"] * 14


def test_a_past_begins_at_its_earliest_or_at_an_offset(bootstrap: str, unique: str, path: str) -> None:
    create(bootstrap, unique, 1)
    send(bootstrap, unique, 0, 0, 10)
    Archive(bootstrap, unique, path).read_all()
    delete_before(bootstrap, unique, 10)
    middle = Stream(bootstrap, unique, history=path, startingOffsets=f'{{"{unique}": {{"0": 4}}}}')
    middle.read_all()
    assert middle.rows == expected([10], first=4)
    with pytest.raises(OptionError, match="begin at the earliest or at offsets"):
        Stream(bootstrap, unique, history=path, startingOffsets="latest")
    with pytest.raises(Exception, match="there is no Delta table at"):
        Stream(bootstrap, unique, history=f"{path}/nowhere")


@pytest.mark.parametrize("archive_goes_on", [False, True])
def test_a_topic_that_is_deleted_is_told_also_while_the_archive_goes_on(bootstrap, unique, tmp_path, archive_goes_on):
    """The archive has grown, so the seam is looked for anew: what was about to be told then is told all the same."""
    one, other = f"{unique}-one", f"{unique}-other"
    for each in (one, other):
        create(bootstrap, each)
        fill(bootstrap, each, [b"x"] * 10)
    archive = Archive(bootstrap, f"{one},{other}", str(tmp_path / "t"))
    archive.step()
    soon = {"kafka.default.api.timeout.ms": "300"}
    stream = Stream(bootstrap, f"{one},{other}", history=str(tmp_path / "t"), **soon)
    stream.step(4)
    start = stream._start
    delete(bootstrap, other)
    latest(stream.reader, start)
    time.sleep(0.6)  # it is away for longer than anybody has patience for
    if archive_goes_on:
        archive.options |= {"subscribe": one, "failOnDataLoss": "false"}
        archive.restart()
        fill(bootstrap, one, [b"y"] * 10)
        archive.step()
    with pytest.raises(DataLossError, match="is deleted"):
        wait_for(lambda: latest(stream.reader, start) != latest(stream.reader, start), seconds=30)
