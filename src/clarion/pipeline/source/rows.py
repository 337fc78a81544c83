"""Messages as the Arrow batches that Spark takes: the columns of Spark's Kafka connector, a few thousand rows each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from clarion.pipeline.kafka.columns import number_column
from clarion.pipeline.kafka.decode import TIMESTAMP_TYPE, Rows
from clarion.pipeline.kafka.headers import HEADERS_TYPE
from clarion.pipeline.kafka.range_progress import OffsetRange

COLUMNS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", TIMESTAMP_TYPE),
    ("timestampType", pa.int32()),
)
HEADERS: Final = ("headers", HEADERS_TYPE)
TOPIC_ID: Final = ("topic_id", pa.string())

# Larger batches leave the processor's cache on their way through the socket to the JVM (measured: 2 to 10 thousand
# rows).
ROWS_PER_BATCH_MAX: Final = 10_000
BYTES_PER_BATCH: Final = 2 * 1024 * 1024


def arrow_schema(*, with_headers: bool, with_topic_id: bool) -> pa.Schema:
    """`data_source.message_schema` has the same in Spark's words."""
    return pa.schema([*COLUMNS, *([HEADERS] if with_headers else []), *([TOPIC_ID] if with_topic_id else [])])


def record_batches(
    rows: Rows, ranges: Sequence[OffsetRange], *, with_topic_id: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of a good size."""
    columns = [
        rows.key,
        rows.value,
        _texts(rows, [one.topic for one in ranges]),
        number_column(_partitions(rows, ranges), pa.int32()),
        rows.offset,
        rows.timestamp,
        rows.timestamp_type,
    ]
    if rows.headers is not None:
        columns.append(rows.headers)
    if with_topic_id:
        columns.append(_texts(rows, [str(one.topic_id) for one in ranges]))
    schema = arrow_schema(with_headers=rows.headers is not None, with_topic_id=with_topic_id)
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    step = _rows_per_batch(whole)
    if whole.num_rows <= step:
        yield whole
        return
    for at in range(0, whole.num_rows, step):
        yield whole.slice(at, step)


def _rows_per_batch(whole: pa.RecordBatch) -> int:
    fitting = int(whole.num_rows * BYTES_PER_BATCH // max(whole.nbytes, 1))
    return max(1, min(ROWS_PER_BATCH_MAX, fitting))


def _texts(rows: Rows, by_range: Sequence[str]) -> pa.Array:
    """One text for all rows of a range."""
    names = sorted(set(by_range))
    if len(names) == 1:
        return pa.repeat(pa.scalar(names[0]), rows.count)
    which = np.array([names.index(one) for one in by_range], np.int32)[rows.run]
    return pa.DictionaryArray.from_arrays(number_column(which, pa.int32()), names).cast(pa.string())


def _partitions(rows: Rows, ranges: Sequence[OffsetRange]) -> np.typing.NDArray[np.int32]:
    if len(ranges) == 1:
        return np.full(rows.count, ranges[0].partition, np.int32)
    return np.array([one.partition for one in ranges], np.int32)[rows.run]
