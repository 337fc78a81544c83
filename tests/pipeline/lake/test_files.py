"""What a task writes: folders, files, bounds, origins."""

import json
import os
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.pipeline.lake import delta
from clarion.pipeline.lake import files as files_module
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.files import Layout, TaskFiles
from clarion.pipeline.lake.location import locate
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.partitions import folder, split
from clarion.pipeline.lake.ranges import Origin, SourceRange, united
from tests.pipeline.lake.rows import SOURCE, messages, write

ROWS = st.lists(st.tuples(st.sampled_from(["a", "b/c", "", None]), st.sampled_from([1, 2, None]), st.integers(0, 99)))


@settings(deadline=None)
@given(ROWS)
def test_splitting_keeps_every_row_in_its_order_and_each_piece_in_one_partition(rows: list) -> None:
    schema = pa.schema([("p", pa.string()), ("q", pa.int32()), ("n", pa.int64())])
    batch = pa.RecordBatch.from_pylist([dict(zip("pqn", row, strict=True)) for row in rows], schema=schema)

    pieces: dict[tuple, list[int]] = {}
    for values, piece in split(batch, ["p", "q"]):
        pieces.setdefault(values, []).extend(piece["n"].to_pylist())

    expected: dict[tuple, list[int]] = {}
    for p, q, n in rows:
        expected.setdefault((p or None, None if q is None else str(q)), []).append(n)
    assert pieces == expected or (not rows and pieces == {(): []})


@pytest.mark.parametrize(
    ("value", "name"),
    [("plain", "p=plain"), ("a b/c%", "p=a b%2Fc%25"), (None, "p=__HIVE_DEFAULT_PARTITION__"), ("x=y", "p=x%3Dy")],
)
def test_a_folder_is_called_as_hive_calls_it(value: str | None, name: str) -> None:
    assert folder(["p"], (value,)) == name


def test_a_task_leaves_one_file_per_partition_with_bounds_and_origins(tmp_path: Path) -> None:
    one, two = messages(0, 100, day=1), messages(100, 50, day=2)
    layout = Layout(root=locate(str(tmp_path)), schema=one.schema, partition_by=("date",), source_columns=SOURCE)
    task = TaskFiles(layout, "part-00000")
    task.write(one)
    task.write(two)
    closed, ranges = task.close()

    assert [each.partition_values for each in closed] == [{"date": "2026-11-01"}, {"date": "2026-11-02"}]
    assert [each.rows for each in closed] == [100, 50]
    assert ranges == [SourceRange(Origin("events", "id-1", 0), 0, 150, rows=150)]
    first = json.loads(closed[0].statistics)
    assert first["numRecords"] == 100
    assert (first["minValues"]["offset"], first["maxValues"]["offset"]) == (0, 99)
    assert first["minValues"]["timestamp"] == "2026-11-01T00:00:00.000Z"
    assert "value" not in first["minValues"]
    for each in closed:
        assert os.path.getsize(tmp_path / each.path) == each.size
        assert pq.ParquetFile(tmp_path / each.path).schema_arrow.names == one.schema.names[:-1]


def test_a_file_is_closed_when_it_is_large_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_BYTES", 10_000)
    batch = pa.record_batch({"value": pa.array([os.urandom(1000) for _ in range(10)], pa.binary())})
    task = TaskFiles(Layout(root=locate(str(tmp_path)), schema=batch.schema, target_file_bytes=20_000), "part-00000")
    for _ in range(10):
        task.write(batch)
    closed, _ = task.close()

    assert len(closed) == 5
    assert sum(each.rows for each in closed) == 100


def test_memory_and_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "WAITING_BYTES_MAX", 2_000)
    monkeypatch.setattr(files_module, "OPEN_FILES_MAX", 3)
    batch = pa.record_batch({"n": pa.array(range(1000), pa.int64()), "p": pa.array([i % 7 for i in range(1000)])})
    task = TaskFiles(Layout(root=locate(str(tmp_path)), schema=batch.schema, partition_by=("p",)), "part-00000")
    for _ in range(3):
        task.write(batch)
        assert len(task._open) <= 3
        assert task._waiting_bytes <= 2_000
    closed, _ = task.close()

    assert sum(each.rows for each in closed) == 3000
    assert {each.partition_values["p"] for each in closed} == {str(p) for p in range(7)}


def test_a_task_that_fails_takes_its_files_back(tmp_path: Path) -> None:
    one, two = messages(0, 10, day=1), messages(10, 10, day=2)
    task = TaskFiles(Layout(root=locate(str(tmp_path)), schema=one.schema, partition_by=("date",)), "part-00000")
    task.write(one)
    task._close(next(iter(task._open)))
    task.write(two)
    next(iter(task._open.values())).flush()
    assert len(list(tmp_path.rglob("*.parquet"))) == 2

    task.discard()

    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("tail", ["z", "\U0010ffff", "\U0010ffff\U0010ffffz"])
def test_rows_with_a_long_text_are_found_by_it(tmp_path: Path, tail: str) -> None:
    """delta-rs' datasets, through which pandas and DuckDB read, take a missing bound for one that nothing fulfils."""
    table = TableOptions(path=str(tmp_path))
    text = "\U00020000" + "a" * 62 + "\U0010ffff" + tail
    write(table, pa.record_batch({"text": [text, "a"], "n": [1, 2]}))
    write(table, pa.record_batch({"text": ["b"], "n": [3]}))
    opened = delta.open_table(table.location)
    for wanted, numbers in ((text, [1]), ("a", [2]), ("b", [3])):
        assert pa.table(opened.to_pyarrow_table(filters=[("text", "=", wanted)]))["n"].to_pylist() == numbers


def test_bounds_are_never_too_narrow(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "t": pa.array([moment], pa.timestamp("us", tz="UTC")),
            "s": pa.array(["z" * 100]),
            "f": pa.array([float("nan")]),
            "d": pa.array([date(2026, 1, 2)]),
            "empty": pa.array([None], pa.int64()),
        }
    )
    task = TaskFiles(Layout(root=locate(str(tmp_path)), schema=batch.schema), "part-00000")
    task.write(batch)
    statistics = json.loads(task.close()[0][0].statistics)

    assert statistics["minValues"]["t"] == "2026-11-01T12:00:00.123Z"
    assert statistics["maxValues"]["t"] == "2026-11-01T12:00:00.124Z"
    assert statistics["minValues"]["s"] == "z" * 64
    assert statistics["maxValues"]["s"] == "z" * 64 + "\U0010ffff"
    assert "f" not in statistics["minValues"]
    assert statistics["maxValues"]["d"] == "2026-01-02"
    assert statistics["nullCount"]["empty"] == 1


@pytest.mark.parametrize("micros", [1_700_000_000_000_000_000, -(2**62), 253_402_300_799_999_999])
def test_a_time_that_no_calendar_has_is_written_without_bounds(tmp_path: Path, micros: int) -> None:
    """What a producer means as microseconds, and sends as milliseconds, is in the year 55840."""
    kind = pa.timestamp("us", tz="UTC")
    batch = pa.record_batch({"t": pa.array([0, micros], pa.int64()).view(kind), "n": pa.array([1, 2])})
    task = TaskFiles(Layout(root=locate(str(tmp_path)), schema=batch.schema), "part-00000")
    task.write(batch)
    (file,) = task.close()[0]

    assert json.loads(file.statistics)["minValues"] == {"n": 1}
    assert pq.read_table(tmp_path / file.path)["t"].cast(pa.int64()).to_pylist() == [0, micros]


def test_a_date_that_no_calendar_has_names_no_folder() -> None:
    batch = pa.record_batch({"date": pa.array([10**7], pa.int32()).view(pa.date32()), "n": pa.array([1])})
    with pytest.raises(LakeError, match="after 9999 cannot name a folder"):
        list(split(batch, ["date"]))


def test_ranges_of_one_origin_become_one() -> None:
    here, there = Origin("events", "id-1", 0), Origin("events", "id-2", 0)
    parts = [SourceRange(here, 5, 9, rows=4), SourceRange(there, 0, 3, rows=3), SourceRange(here, 2, 4, rows=1)]

    assert united(parts) == [SourceRange(here, 2, 9, rows=5), SourceRange(there, 0, 3, rows=3)]
