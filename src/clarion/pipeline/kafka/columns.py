"""Arrow columns over raw bytes: pieces gathered out of them, numbers written into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clarion.pipeline.kafka.varints import Longs, put_varints, varint_sizes


def gather(raw: pa.Buffer, at: Longs, length: Longs) -> pa.Array:
    """The bytes at these places as one binary column; a negative length is a null.

    An array is laid over the raw bytes with the bounds of every piece as offsets; every other element of it is a piece,
    and `take` copies those at the speed of memory.
    """
    count = len(at)
    if not count:
        return pa.nulls(0, pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + np.maximum(length, 0)
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), raw])
    nulls = length < 0
    return pieces.take(number_column(np.arange(0, 2 * count, 2), pa.int64(), nulls if nulls.any() else None))


def number_column(numbers: NDArray[Any], kind: pa.DataType, nulls: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as they are in memory. (`pa.array` would import pandas, where it is there, to ask it about them.)"""
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [valid, pa.py_buffer(np.ascontiguousarray(numbers))])


def binary_column(bounds: Longs, data: bytes | memoryview) -> pa.Array:
    """Consecutive pieces of `data`, with bounds that begin at the first and end after the last."""
    return pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    )


def varint_column(numbers: Longs) -> pa.Array:
    """A binary column with the varint of each number."""
    sizes = varint_sizes(numbers)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    out = np.empty(int(bounds[-1]), np.uint8)
    put_varints(out, bounds[:-1], numbers, sizes)
    return binary_column(bounds, out.data)


def lengths(column: pa.Array) -> Longs:
    """The length of each piece, -1 for null."""
    sizes: Longs = pc.fill_null(pc.binary_length(column), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes
