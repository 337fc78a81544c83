"""The archived past and the live tail as one: no gap and no duplicate at the seam."""

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.pipeline import archive
from clarion.pipeline.definition import BATCH
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.lake import read_table
from clarion.pipeline.lake.commits import WriterBatch
from clarion.pipeline.lake.history import Span, check_archive, history, read_file
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.ranges import Origin
from clarion.pipeline.lake.snapshots import TableFile
from clarion.pipeline.lake.table_reader import pack
from clarion.pipeline.source.history import archived, origin_of, outside
from tests.pipeline.lake.rows import SOURCE, messages, write
from tests.pipeline.topics import delete_before

ID = UUID(int=7)
NUMBERS = st.integers(0, 20)


@settings(deadline=None)
@given(log_start=NUMBERS, length=NUMBERS, first=NUMBERS, width=st.integers(1, 20), chosen=st.none() | NUMBERS)
def test_past_and_tail_are_everything_once(log_start: int, length: int, first: int, width: int, chosen) -> None:
    """The archive holds [first, first + width); the log goes from its start to its end, the archive's end at least."""
    end = max(log_start + length, first + width)
    # From the earliest means from the archive's, if that is earlier than the log's.
    live = OffsetRange("events", ID, 0, min(log_start, first) if chosen is None else min(chosen, end), end)
    spans = {origin_of(live): Span(first, first + width)}

    taken = list(range(*archived(spans, [live])[origin_of(live)]))
    asked = [n for part in outside(live, spans[origin_of(live)]) for n in range(part.start, part.end)]

    assert len(set(taken) & set(asked)) == 0
    begin = min(first, log_start) if chosen is None else min(chosen, end)
    covered = sorted(taken + asked)
    if chosen is None:
        assert set(covered) >= {*range(first, end)}
        assert set(covered) <= {*range(begin, end)}
    else:
        assert covered == list(range(begin, end))


def test_a_file_gives_only_the_messages_that_are_asked_for(tmp_path: Path) -> None:
    table = TableOptions(path=str(tmp_path / "t"), partition_by=("date",), source_columns=SOURCE)
    write(
        table, messages(0, 10), messages(0, 10, partition=3), messages(0, 5, topic_id="id-0"), batch=WriterBatch("q", 0)
    )
    here, there = Origin("events", "id-1", 0), Origin("events", "id-1", 3)
    with pytest.raises(Exception, match="no archive of raw messages"):
        check_archive(table.location)
    past = history(table.location, [here, there])
    assert past.spans == {here: (0, 10), there: (0, 10)}
    schema = pa.schema(
        [("value", pa.binary()), ("partition", pa.int32()), ("offset", pa.int64()), ("absent", pa.int32())]
    )
    (found,) = read_file(table.location, past.files[0], {here: Span(2, 4), there: Span(0, 100)}, schema)

    assert found.schema == schema
    assert sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)) == sorted(
        [(0, 2), (0, 3), *((3, n) for n in range(10))]
    )
    assert found["absent"].null_count == 12


def test_files_are_packed_evenly() -> None:
    files = [TableFile(f"f{n}", size, {}) for n, size in enumerate([100, 10, 10, 10, 10, 10, 50])]

    lots = [[each.path for each in lot] for lot in pack(files, 2)]
    assert lots == [["f0"], ["f6", "f1", "f2", "f3", "f4", "f5"]]
    assert pack(files[:1], 8) == [(files[0],)]
    assert pack([], 8) == []


def test_a_topic_with_its_archive_is_one_table(house, unique: str) -> None:
    house.make_topic(unique)
    house.send(unique, [b"early"] * 10)
    house.run(archive(unique, house.lake("events")), BATCH)
    house.send(unique, [b"late"] * 6, headers=[("h", b"1")])

    def read(**options: str):
        reader = house.spark.read.format("clarion").option("bootstrap.servers", house.bootstrap)
        return reader.option("subscribe", unique).options(**{"history": house.lake("events"), **options}).load()

    both = read()
    assert both.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    places = sorted((row.partition, row.offset) for row in both.collect())
    assert places == [(p, n) for p in (0, 1) for n in range(8)]
    later = read(startingOffsets=f'{{"{unique}": {{"0": 4, "1": 6}}}}', includeHeaders="true").collect()
    assert sorted((row.partition, row.offset) for row in later) == [*((0, n) for n in range(4, 8)), (1, 6), (1, 7)]
    assert {bytes(row.value): row.headers is None for row in later} == {b"early": True, b"late": False}

    house.delete_topic(unique)
    house.make_topic(unique)
    house.send(unique, [b"new"] * 2)
    with pytest.raises(Exception, match="made anew since, or this is another archive"):
        read().count()
    assert read(failOnDataLoss="false").count() == 2
    with pytest.raises(Exception, match="there is no Delta table at"):
        read(history=house.lake("nowhere")).count()


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_stream_begins_in_the_archive_and_goes_on_in_the_topic(
    house, s3, monkeypatch, unique: str, kind: str
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    lake = house.lake("events") if kind == "folder" else f"{s3.bucket()}/events"
    house.make_topic(unique)
    house.send(unique, [b"early"] * 30)
    house.run(archive(unique, lake), BATCH)
    delete_before(house.bootstrap, unique, 15, 0)
    delete_before(house.bootstrap, unique, 9, 1)
    house.send(unique, [b"late"] * 10)
    copy, checkpoint = house.lake("copy"), Path(house.folder, "checkpoint")

    def play() -> None:
        stream = house.spark.readStream.format("clarion").option("bootstrap.servers", house.bootstrap)
        stream = stream.options(subscribe=unique, history=lake, maxOffsetsPerTrigger="12", **dict(s3.options)).load()
        writer = stream.writeStream.format("clarion-lake").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start(copy)
        assert query.awaitTermination(300)

    play()
    max((checkpoint / "commits").glob("[0-9]*"), key=lambda each: int(each.name)).unlink()  # a driver that died there
    house.send(unique, [b"last"] * 2)
    play()
    rows = read_table(house.spark, copy).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(p, n) for p in (0, 1) for n in range(21)]
    assert {row.offset: bytes(row.value) for row in rows} == {
        n: b"early" if n < 15 else b"late" if n < 20 else b"last" for n in range(21)
    }
