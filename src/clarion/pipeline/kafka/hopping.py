"""Where records begin: what must be found one after the other, since each record says only how long it is.

Two ways are combined. Records of equal length stand at equal distances, so a whole run of them is found at once: the
length bytes at all those places are compared with the first's, and as far as they agree, each record does lead to the
next. Where lengths differ, a Python loop hops from one to the next and reads nothing but lengths.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from clarion.pipeline.kafka.varints import Bytes, Longs

Buffer = bytes | bytearray | memoryview

# A length of one byte, and what the first byte adds to a length of two: the hop to the next record, looked up.
_SHORT_HOPS: Final = tuple(1 + (byte >> 1) for byte in range(128))
_FIRST_BYTE_HOPS: Final = tuple(2 + ((byte & 0x7F) >> 1) for byte in range(256))

_RUN_MIN: Final = 64  # below this the loop is as fast
_FAILURES_MAX: Final = 2  # after so many runs that were none, this data is not of that kind
_LENGTH_BYTES_MAX: Final = 5


class UnfilledBatchError(ValueError):
    """The records of the nth batch do not fill it exactly."""

    def __init__(self, nth: int, count: int) -> None:
        super().__init__(f"its {count} records do not fill it exactly")
        self.nth = nth


def record_starts(data: Buffer, octets: Bytes, at: list[int], end: list[int], counts: list[int]) -> Longs:
    """Where each record begins. `octets` is `data` for numpy; each batch has its records from `at` to `end`.

    A negative length is hopped over like a positive one; whoever reads the lengths finds it.
    """
    pieces: list[Longs] = []
    failures = 0
    for nth, count in enumerate(counts):
        here, left = at[nth], count
        while left >= _RUN_MIN and failures < _FAILURES_MAX:
            run, here = _equal_records(octets, here, end[nth], left)
            failures = failures + 1 if len(run) < _RUN_MIN else 0
            left -= len(run)
            pieces.append(run)
        if left:
            here = _hop(data, here, left, pieces)
        if here != end[nth]:
            raise UnfilledBatchError(nth, count)
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def _equal_records(octets: Bytes, here: int, end: int, count: int) -> tuple[Longs, int]:
    """The records from `here` on that are as long as the first, and where the next one begins."""
    width, length = _read_length(octets[here : here + _LENGTH_BYTES_MAX].tolist())
    size = width + length
    count = min(count, (end - here) // size)
    places = here + size * np.arange(count)
    for nth in range(width):
        same = octets[places + nth] == octets[here + nth]
        if not same.all():
            places = places[: int(same.argmin())]
    return places, here + size * len(places)


def _hop(data: Buffer, here: int, count: int, pieces: list[Longs]) -> int:
    """Note where `count` records begin; where the next one would. Written in one piece because it runs per record."""
    starts = array("q")
    note = starts.append
    short, first = _SHORT_HOPS, _FIRST_BYTE_HOPS
    try:
        for _ in range(count):
            note(here)
            byte = data[here]
            if byte < 0x80:
                here += short[byte]
            elif (second := data[here + 1]) < 0x80:
                here += (second << 6) + first[byte]
            else:
                width, length = _read_length(list(data[here : here + _LENGTH_BYTES_MAX]))
                here += width + length
    except IndexError:
        return -1
    pieces.append(np.frombuffer(starts, np.int64))
    return here


def _read_length(octets: list[int]) -> tuple[int, int]:
    """How many bytes a length has, and what it says; its sign is ignored."""
    folded = 0
    for nth, byte in enumerate(octets):
        folded |= (byte & 0x7F) << (7 * nth)
        if byte < 0x80:
            return nth + 1, folded >> 1
    return _LENGTH_BYTES_MAX, 1 << 40  # no length at all: leads out of everything
