"""CRC-32C, by the `crc32c` package where it is there (25 GB/s), else by numpy (some hundred MB/s).

The numpy way uses that a CRC is linear: the data is cut into lanes of equal length, all lanes take one step at a time
through the byte table, and neighbouring lanes are then joined, pair by pair, by shifting the left one's CRC over as
many zero bytes as the right one has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Buffer = bytes | bytearray | memoryview


def numpy_crc32c(data: Buffer, value: int = 0) -> int:
    """The same number without the package; `value` is the CRC of what comes before `data`."""
    view = np.frombuffer(data, np.uint8)
    lanes = _lane_count(len(view))
    head = len(view) % lanes
    crc = _step_through(view[:head].reshape(1, head), np.full(1, value ^ 0xFFFFFFFF, np.uint32))
    if head < len(view):
        body = view[head:].reshape(lanes, -1)
        start = np.zeros(lanes, np.uint32)
        start[0] = crc[0]
        crc = _join(_step_through(body, start), body.shape[1])
    return int(crc[0]) ^ 0xFFFFFFFF


_LANES_MAX: Final = 4096  # more lanes take fewer steps, and too many leave the processor's cache
_LANE_BYTES_MIN: Final = 16


def _lane_count(size: int) -> int:
    """A power of two, so that the lanes can be joined pair by pair."""
    wanted = max(1, min(_LANES_MAX, size // _LANE_BYTES_MIN))
    return 1 << (wanted.bit_length() - 1)


def _byte_table() -> Words:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(0x82F63B78), crc >> 1).astype(np.uint32)
    return crc


_TABLE: Final = _byte_table()


def _step_through(lanes: NDArray[np.uint8], crc: Words) -> Words:
    for column in np.ascontiguousarray(lanes.T):
        crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc


def _join(crcs: Words, lane_bytes: int) -> Words:
    while len(crcs) > 1:
        crcs = _shift(crcs[0::2], lane_bytes) ^ crcs[1::2]
        lane_bytes *= 2
    return crcs


def _shift(crcs: Words, zero_bytes: int) -> Words:
    """Each CRC after this many zero bytes more."""
    for bit in range(zero_bytes.bit_length()):
        if zero_bytes >> bit & 1:
            crcs = _apply(_shift_tables(bit), crcs)
    return crcs


@cache
def _shift_tables(bit: int) -> Words:
    """Four byte tables that shift a CRC over 2^bit zero bytes."""
    values = np.arange(256, dtype=np.uint32)
    if bit == 0:
        words = np.stack([values << np.uint32(8 * nth) for nth in range(4)])
        first: Words = _TABLE[words & np.uint32(0xFF)] ^ (words >> np.uint32(8))
        return first
    half = _shift_tables(bit - 1)
    return np.stack([_apply(half, half[nth]) for nth in range(4)])


def _apply(tables: Words, crcs: Words) -> Words:
    out = np.zeros(len(crcs), np.uint32)
    for nth in range(4):
        out ^= tables[nth][(crcs >> np.uint32(8 * nth)) & np.uint32(0xFF)]
    return out


crc32c: Callable[..., int] = numpy_crc32c
try:
    from crc32c import crc32c
except ImportError:
    pass
IS_FAST: Final = crc32c is not numpy_crc32c
