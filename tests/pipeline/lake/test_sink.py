"""The writers that Spark makes, called as Spark calls them: planned here, written there, committed by a third."""

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from clarion.pipeline.lake import delta
from clarion.pipeline.lake.checkpoints import flush_offsets
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.options import TableOptions, read_options
from clarion.pipeline.lake.sink import LakeSource, StreamTableWriter, TableWriter, WrittenFiles
from tests.pipeline.lake.rows import messages, offsets_in


def options(path: Path, **more: str) -> TableOptions:
    return read_options({"path": str(path), "partitionBy": "date", "checkpointLocation": "elsewhere", **more})


def written(writer: StreamTableWriter | TableWriter, first: int, query_id: str | None = "query") -> WrittenFiles:
    """What a task sends back: the writer travels to it, and its message back, as pickles."""
    found = pickle.loads(pickle.dumps(writer)).write(iter([messages(first, 10)]))
    return pickle.loads(pickle.dumps(WrittenFiles(found.files, found.ranges, query_id)))


def test_a_stream_compacts_as_often_as_it_is_told(tmp_path: Path) -> None:
    table = options(tmp_path / "t", compactEvery="10", vacuumHours="24")
    schema = messages(0, 1).schema
    for batch_id in range(10):
        message = written(StreamTableWriter(table, schema, overwrite=False), batch_id * 10)
        StreamTableWriter(table, schema, overwrite=False).commit([message, None], batch_id)
        assert len(delta.paths_of(delta.open_table(table.path))) == (batch_id + 1 if batch_id < 9 else 1)

    assert offsets_in(table) == list(range(100))


def test_a_batch_without_tasks_and_an_abort_without_messages_do_nothing(tmp_path: Path) -> None:
    table, schema = options(tmp_path / "t"), messages(0, 1).schema
    writer = StreamTableWriter(table, schema, overwrite=False)
    writer.commit([], 0)
    writer.abort([None, None], 0)
    writer.abort([written(writer, 0)], 0)

    assert not delta.exists(table.path)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_commit_that_raised_after_it_was_done_is_not_undone(tmp_path: Path) -> None:
    table, schema = options(tmp_path / "t"), messages(0, 1).schema
    writer = StreamTableWriter(table, schema, overwrite=False)
    message = written(writer, 0)
    writer.commit([message], 0)
    writer.abort([message], 0)

    assert offsets_in(table) == list(range(10))


def test_a_named_batch_write_is_done_once(tmp_path: Path) -> None:
    table, schema = options(tmp_path / "t", txnAppId="nightly", txnVersion="7"), messages(0, 1).schema
    for _ in range(2):
        writer = TableWriter(table, schema, overwrite=False)
        writer.commit([written(writer, 0, None)])

    assert offsets_in(table) == list(range(10))
    with pytest.raises(LakeError, match="txnAppId is for batch writes"):
        StreamTableWriter(table, schema, overwrite=False)


def test_an_option_for_writing_is_refused_where_a_table_is_read() -> None:
    with pytest.raises(LakeError, match="a table has no option partitionby; it has path, refresh, version"):
        LakeSource({"path": "t", "partitionBy": "date"}).schema()


def test_what_executors_import_needs_no_delta_library() -> None:
    import subprocess
    import sys

    missing = ("deltalake", "confluent_kafka", "kio", "pandas", "polars", "duckdb", "rich", "typer", "uvloop")
    code = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
    code += "import clarion.pipeline.lake.sink, clarion.pipeline.lake.history, pyspark_clarion_lake"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_streams_batch_that_goes_to_several_targets_is_compacted_too(tmp_path: Path) -> None:
    """With several targets Spark's batches come as batch writes with a number."""
    path = str(tmp_path / "t")
    for number in range(8):
        given = {"path": path, "txnAppId": "q", "txnVersion": str(number), "compactEvery": "8"}
        rows = pa.record_batch({"n": pa.array([number], pa.int64())})
        writer = TableWriter(read_options(given), rows.schema, overwrite=False)
        writer.commit([writer.write(iter([rows]))])
    table = delta.open_table(path)
    assert len(table.file_uris()) == 1
    assert sorted(pa.table(table.to_pyarrow_table())["n"].to_pylist()) == list(range(8))


@pytest.mark.parametrize("spelling", ["{}", "file://{}", "file:{}"])
def test_what_spark_noted_of_a_batch_is_on_the_disk_before_the_table_has_it(tmp_path, monkeypatch, spelling) -> None:
    """Else a machine that stops may leave a table that knows a number which Spark gives to other messages."""
    checkpoint, flushed = tmp_path / "checkpoint", []
    for name in ("offsets/0", "offsets/1", "metadata"):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).touch()
    table, schema = options(tmp_path / "t", checkpointLocation=spelling.format(checkpoint)), messages(0, 1).schema
    real = os.fsync

    def fsync(handle: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if checkpoint in (place, *place.parents):
            has_committed = delta.exists(table.path) and offsets_in(table) != list(range(batch_id * 10))
            flushed.append((str(place.relative_to(checkpoint)), has_committed))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for batch_id in range(2):
        message = written(StreamTableWriter(table, schema, overwrite=False), batch_id * 10)
        StreamTableWriter(table, schema, overwrite=False).commit([message], batch_id)

    first = [("offsets/0", False), ("offsets", False), ("metadata", False), (".", False)]
    assert flushed == [*first, ("offsets/1", False), ("offsets", False)]


def test_a_checkpoint_on_another_file_system_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "open", None)
    flush_offsets("hdfs://there/checkpoint", 0)
    flush_offsets(None, 0)
