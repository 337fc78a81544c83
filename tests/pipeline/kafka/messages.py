"""Messages at random, and the pipeline's codec with the same words as the broker's: rows in, rows out."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from clarion.pipeline.kafka.batches import BatchRun, check_crcs, choose, find_batches, next_offsets
from clarion.pipeline.kafka.decode import decode
from clarion.pipeline.kafka.encode import (
    EncodedRecords,
    assemble,
    cut_batches,
    encode_records,
    messages,
    size_bounds,
)
from clarion.pipeline.kafka.headers import HEADERS_TYPE

EVERYTHING = 2**62
unhurried = settings(deadline=None)  # the machine may be busy; pytest has its own limit

# Long content is a short one repeated: lengths of one, two and three bytes, without drawing thousands of bytes.
content = st.none() | st.binary(max_size=100) | st.binary(min_size=1, max_size=9).map(lambda one: one * 1000)
header = st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20))
timestamp = st.integers(0, 2**41) | st.just(-1)
message = st.tuples(content, content, st.lists(header, max_size=4).map(tuple), timestamp)
few_messages = st.lists(message, min_size=1, max_size=12)
compression = st.integers(0, 4)


def read(
    frame: bytes, *, start: int = 0, end: int = EVERYTHING, with_headers: bool = True, aborted: tuple = ()
) -> list:
    """Every message as (offset, milliseconds, key, value, headers), by the pipeline's decoder."""
    return read_runs(frame, [BatchRun("t-0", 0, len(frame), start, end, aborted)], with_headers=with_headers)[0]


def read_runs(frame: bytes, runs: Sequence[BatchRun], *, with_headers: bool = True) -> tuple[list, list[int]]:
    found = find_batches(frame, runs)
    chosen = choose(found, runs)
    check_crcs(frame, chosen, runs)
    out = []
    for rows in decode(frame, chosen, runs, with_headers=with_headers):
        stamps = (np.frombuffer(rows.timestamp.buffers()[1], np.int64) // 1000).tolist()
        headers = rows.headers.to_pylist() if rows.headers is not None else [None] * rows.count
        columns = (rows.offset.to_pylist(), stamps, rows.key.to_pylist(), rows.value.to_pylist(), headers)
        out += zip(*columns, strict=True)
    plain = [
        (offset, stamp, key, value, tuple((one["key"], one["value"]) for one in headers or ()))
        for offset, stamp, key, value, headers in out
    ]
    return plain, next_offsets(found, runs)


def write(rows: Sequence[tuple], *, batch_bytes_max: int = 1_000_000, **options: int) -> list[bytearray]:
    """(key, value, headers, milliseconds) as whole batches, by the pipeline's encoder."""
    keys, values, headers, stamps = zip(*rows, strict=True)
    columns = messages(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        np.array(stamps, np.int64),
        pa.array([[{"key": k, "value": v} for k, v in one] or None for one in headers], HEADERS_TYPE),
    )
    starts = cut_batches(size_bounds(columns), np.array([0]), batch_bytes_max)
    records = encode_records(columns, starts)
    return [sealed(records, nth, **options) for nth in range(len(starts))]


def sealed(
    records: EncodedRecords,
    nth: int,
    *,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    batch = assemble(records, nth, compression=compression)
    batch.stamp(producer_id, producer_epoch, base_sequence)
    return batch.head + bytes(batch.body)
