"""Tables written and read by Spark: batch, stream, replays, schema, merge."""

import json
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from clarion.pipeline import table
from clarion.pipeline.definition import MicroBatch, QuerySettings
from clarion.pipeline.lake import compact, delta, read_table, stream_table, write_table
from clarion.pipeline.lake.ranges import Origin

SOURCE = "topic,topic_id,partition,offset"


def message_rows(spark, count: int, *, first: int = 0):
    """Rows like those of a topic with two partitions."""
    return (
        spark.range(first, first + count, 1, 2)
        .select(
            F.col("id").cast("string").cast("binary").alias("value"),
            F.lit("events").alias("topic"),
            F.lit("id-1").alias("topic_id"),
            (F.col("id") % 2).cast("int").alias("partition"),
            F.floor(F.col("id") / 2).alias("offset"),
            F.timestamp_seconds(F.lit(1_793_491_200) + F.col("id")).alias("timestamp"),
            F.array(F.struct(F.lit("h").alias("key"), F.col("id").cast("string").cast("binary").alias("value"))).alias(
                "headers"
            ),
        )
        .withColumn("date", F.to_date("timestamp"))
    )


@pytest.fixture
def stream(spark, tmp_path: Path):
    """A stream of the files in a folder, one per batch; `run` plays what is there and stops."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    class Stream:
        def feed(self, count: int, *, first: int = 0) -> None:
            message_rows(spark, count, first=first).coalesce(1).write.mode("append").parquet(str(source))

        def run(self, target, df=lambda df: df):
            frame = spark.readStream.schema(message_rows(spark, 1).schema).option("maxFilesPerTrigger", 1)
            settings = QuerySettings("q", str(checkpoint), "append", {"availableNow": True})
            stream_table(df(frame.parquet(str(source))), target, settings).awaitTermination()

        def forget_the_last_commit(self) -> None:
            """The driver died after the sink's commit and before the checkpoint's."""
            last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
            last.unlink()

        checkpoint_path = checkpoint

    return Stream()


def numbers(df) -> list[int]:
    return sorted(int(row[0]) for row in df.select(F.col("value").cast("string")).collect())


def test_a_replayed_batch_is_in_the_table_once(spark, tmp_path: Path, stream) -> None:
    path = str(tmp_path / "lake" / "events")
    target = table(path, partition_by="date", options={"sourceColumns": SOURCE})
    for number in range(2):
        stream.feed(100, first=100 * number)
    stream.run(target)
    stream.forget_the_last_commit()
    stream.feed(100, first=200)
    stream.run(target)

    found = read_table(spark, path)
    assert numbers(found) == list(range(300))
    assert found.schema.names == message_rows(spark, 1).schema.names
    row = found.where("offset = 5 and partition = 1").first()
    assert bytes(row.headers[0].value) == b"11"


def test_a_batch_write_with_a_name_is_skipped_when_it_is_there(spark, tmp_path: Path) -> None:
    target = table(str(tmp_path / "t"))
    for _ in range(2):
        write_table(message_rows(spark, 10), target, MicroBatch("query", 7))
    write_table(message_rows(spark, 10, first=10), target, MicroBatch("query", 8))

    assert numbers(read_table(spark, target)) == list(range(20))


def test_a_task_that_fails_leaves_no_row_and_no_file(spark, tmp_path: Path) -> None:
    bad = message_rows(spark, 1000).withColumn("value", F.expr("if(offset = 400, raise_error('bad row'), value)"))

    with pytest.raises(Exception, match="bad row"):
        write_table(bad, table(str(tmp_path / "t")))

    assert not list(tmp_path.rglob("*.parquet"))


def test_columns_that_do_not_fit_are_refused_in_words(spark, tmp_path: Path) -> None:
    target = table(str(tmp_path / "t"))
    write_table(message_rows(spark, 10), target)

    with pytest.raises(Exception, match="column offset is int64 in the table and string in what is to be written"):
        write_table(message_rows(spark, 10).withColumn("offset", F.col("offset").cast("string")), target)
    with pytest.raises(Exception, match="a table has no option colour"):
        write_table(message_rows(spark, 10), table(str(tmp_path / "t"), options={"colour": "blue"}))


def test_a_table_keeps_its_origins_and_its_rows_through_growth_and_compaction(spark, tmp_path: Path) -> None:
    target = table(str(tmp_path / "t"), partition_by="date", options={"sourceColumns": SOURCE})
    for number in range(5):
        write_table(message_rows(spark, 20, first=20 * number), target, MicroBatch("q", number))
    write_table(message_rows(spark, 10, first=100).withColumn("level", F.lit("INFO")), target, MicroBatch("q", 5))

    report = compact(target.path)

    assert report.files_after == 1 < report.files_before
    found = read_table(spark, target)
    assert numbers(found) == list(range(110))
    assert found.where("level is null").count() == 100
    opened = delta.open_table(target.path)
    assert [delta.next_offset(opened, Origin("events", "id-1", each)) for each in (0, 1)] == [55, 55]


def test_odd_partition_values_and_an_odd_path_are_read_back(spark, tmp_path: Path) -> None:
    path = str(tmp_path / "a table with % and ü")
    values = ["a b/c%", "x=y", "ü", None, "2026", "007"]
    write_table(spark.createDataFrame(list(enumerate(values)), "n int, p string"), table(path, partition_by="p"))

    assert {row.n: row.p for row in read_table(spark, path).collect()} == dict(enumerate(values))


def test_an_empty_table_and_an_old_version_can_be_read(spark, tmp_path: Path) -> None:
    target = table(str(tmp_path / "t"), mode="overwrite")
    write_table(message_rows(spark, 10), target)
    write_table(message_rows(spark, 0), target)

    assert read_table(spark, target).count() == 0
    assert read_table(spark, target, version=1).count() == 10
    with pytest.raises(Exception, match="there is no Delta table"):
        read_table(spark, str(tmp_path / "nowhere"))


def test_merge_keeps_the_newest_row_per_key_and_a_batch_once(spark, tmp_path: Path) -> None:
    target = table(str(tmp_path / "t"), mode="merge", key="user", options={"orderBy": "n"})
    first = spark.createDataFrame([("ann", 1), ("bob", 2), ("ann", 3)], "user string, n long")
    second = spark.createDataFrame([("bob", 5), ("eve", 6)], "user string, n long")
    for _ in range(2):
        write_table(first, target, MicroBatch("q", 0))
    write_table(second, target, MicroBatch("q", 1))
    write_table(first, target, MicroBatch("q", 0))

    assert {row.user: row.n for row in read_table(spark, target).collect()} == {"ann": 3, "bob": 5, "eve": 6}
    with pytest.raises(Exception, match="orderBy says which is the newest"):
        write_table(first, table(str(tmp_path / "t"), mode="merge", key="user"))


def test_a_stream_merges_too(spark, tmp_path: Path, stream) -> None:
    target = table(str(tmp_path / "t"), mode="merge", key="partition", options={"orderBy": "offset"})
    stream.feed(10)
    stream.feed(10, first=10)
    stream.run(target, lambda df: df.select("partition", "offset"))

    assert {row.partition: row.offset for row in read_table(spark, target).collect()} == {0: 9, 1: 9}
    ids = json.loads((stream.checkpoint_path / "metadata").read_text())
    assert delta.open_table(target.path).transaction_version(ids["id"]) == 1
