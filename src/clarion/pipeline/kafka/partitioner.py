"""Which partition a message goes to: Kafka's own rule (murmur2 of the key), computed for all rows at once.

Keys of one length are hashed together, word by word. Messages without a key are dealt out in runs, so that they still
make large batches.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from clarion.model.key_hash import WORD_BYTES, mix, partition_of_hash, seed
from clarion.pipeline.kafka.columns import lengths
from clarion.pipeline.kafka.varints import Longs


def partitions_of_keys(keys: pa.Array, partition_count: int) -> Longs:
    """The partition of each key, as Java's, librdkafka's (`murmur2`) and Spark's producers choose it; -1 for null."""
    sizes = lengths(keys)
    hashes = np.zeros(len(keys), np.uint32)
    starts = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset :][: len(keys)].astype(np.int64)
    content = keys.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(1, np.uint8)
    if len(sizes) and sizes[0] >= 0 and (sizes == sizes[0]).all():
        hashes = _murmur2(data, starts, int(sizes[0]))
    else:
        for size in np.unique(sizes[sizes >= 0]).tolist():
            (rows,) = (sizes == size).nonzero()
            hashes[rows] = _murmur2(data, starts[rows], size)
    return np.where(sizes < 0, -1, partition_of_hash(hashes.astype(np.int64), partition_count))


def _murmur2(data: NDArray[np.uint8], at: Longs, size: int) -> NDArray[np.uint32]:
    """The hashes of many keys of the same size."""
    whole = size - size % WORD_BYTES
    words = (_word(data, at + word, WORD_BYTES) for word in range(0, whole, WORD_BYTES))
    rest = _word(data, at + whole, size - whole) if size > whole else None
    hashes: NDArray[np.uint32] = mix(np.full(len(at), seed(size), np.uint32), words, rest)
    return hashes


def _word(data: NDArray[np.uint8], at: Longs, size: int) -> NDArray[np.uint32]:
    """Little-endian words of up to four bytes."""
    if size == WORD_BYTES:
        whole: NDArray[np.uint32] = sliding_window_view(data, WORD_BYTES)[at].view("<u4")[:, 0].astype(np.uint32)
        return whole
    word = data[at].astype(np.uint32)
    for nth in range(1, size):
        word |= data[at + nth].astype(np.uint32) << np.uint32(8 * nth)
    return word


class Dealer:
    """Deals messages without a key to partitions in turn, a run of `run_bytes` to each."""

    def __init__(self, run_bytes: int, first: int = 0) -> None:
        self._run_bytes = run_bytes
        self._dealt = first * run_bytes

    def deal(self, sizes: Longs, partition_count: int) -> Longs:
        before = self._dealt + np.cumsum(sizes) - sizes
        self._dealt += int(sizes.sum())
        partitions: Longs = before // self._run_bytes % partition_count
        return partitions
