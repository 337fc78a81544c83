"""Small tables of messages, and what a task makes of them, without Spark."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from clarion.pipeline.lake import delta
from clarion.pipeline.lake.commits import Commit, WriterBatch
from clarion.pipeline.lake.files import TaskFiles
from clarion.pipeline.lake.options import TableOptions

SOURCE = ("topic", "topic_id", "partition", "offset")


def messages(first: int, count: int, *, partition: int = 0, topic_id: str = "id-1", day: int = 1) -> pa.RecordBatch:
    begin = datetime(2026, 11, day, tzinfo=UTC)
    times = [begin + timedelta(seconds=number) for number in range(count)]
    return pa.record_batch(
        {
            "value": pa.array([f"message {first + number}".encode() for number in range(count)], pa.binary()),
            "topic": pa.array(["events"] * count, pa.string()),
            "topic_id": pa.array([topic_id] * count, pa.string()),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
            "date": pa.array([each.date() for each in times], pa.date32()),
        }
    )


def staged(options: TableOptions, *batches: pa.RecordBatch, batch: WriterBatch | None = None, **more: object) -> Commit:
    """What tasks have written and the driver has not committed."""
    layout = delta.plan(options, batches[0].schema)
    files = TaskFiles(layout, "part-00000")
    for each in batches:
        files.write(each)
    closed, ranges = files.close()
    return Commit(schema=layout.schema, files=closed, ranges=ranges, batch=batch, **more)


def write(options: TableOptions, *batches: pa.RecordBatch, batch: WriterBatch | None = None, **more: object) -> bool:
    return delta.commit(options, staged(options, *batches, batch=batch, **more))


def offsets_in(options: TableOptions) -> list[int]:
    """What a reader of the table finds."""
    return sorted(read(options)["offset"].to_pylist())


def read(options: TableOptions) -> pa.Table:
    return pa.table(delta.open_table(options.location).to_pyarrow_table())
