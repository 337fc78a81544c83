"""Kafka's variable-length integers, thousands at a time: seven bits a byte, signs folded in (zigzag)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

_VARINT_BYTES_MAX: Final = 10
_LAST_BYTE_MAX: Final = 1  # nine bytes hold 63 bits, so the tenth has one left


class UnreadableVarintError(ValueError):
    """A number with more than 64 bits; `index` says which of those asked for."""

    def __init__(self, index: int) -> None:
        super().__init__("a number has more than 64 bits")
        self.index = index


def read_varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """The numbers at these places, and the place behind each.

    A place outside of the data reads whatever is at its edge, never past it: callers check the places that come back.
    """
    first = data.take(at, mode="clip")
    following = at + 1
    (longer,) = (first >= 0x80).nonzero()
    if not len(longer):
        return _ZIGZAG.take(first), following
    folded = first.astype(np.uint64)
    folded[longer] &= np.uint64(0x7F)
    _read_longer(data, folded, following, longer)
    return _unfold(folded), following


def _read_longer(data: Bytes, folded: NDArray[np.uint64], following: Longs, longer: NDArray[np.intp]) -> None:
    for nth in range(1, _VARINT_BYTES_MAX):
        byte = data.take(following[longer], mode="clip")
        following[longer] += 1
        folded[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * nth)
        if nth == _VARINT_BYTES_MAX - 1 and (byte > _LAST_BYTE_MAX).any():
            raise UnreadableVarintError(int(longer[byte > _LAST_BYTE_MAX][0]))
        longer = longer[byte >= 0x80]
        if not len(longer):
            return


def _unfold(folded: NDArray[np.uint64]) -> Longs:
    return (folded >> np.uint64(1)).view(np.int64) ^ -(folded & np.uint64(1)).view(np.int64)


_ZIGZAG: Final = _unfold(np.arange(256, dtype=np.uint64))


def fold(numbers: Longs) -> NDArray[np.uint64]:
    """Signs moved to the last bit, so that small negative numbers are short too."""
    folded: NDArray[np.uint64] = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    return folded


def varint_sizes(numbers: Longs) -> Longs:
    """How many bytes each number takes."""
    folded = fold(numbers)
    sizes = np.ones(len(numbers), np.int64)
    highest = int(folded.max(initial=0))
    for nth in range(1, _VARINT_BYTES_MAX):
        if highest < 1 << (7 * nth):
            break
        sizes += folded >= np.uint64(1 << (7 * nth))
    return sizes


def put_varints(out: Bytes, at: Longs, numbers: Longs, sizes: Longs) -> Longs:
    """Write each number at its place; the places behind them."""
    rest = fold(numbers)
    most = int(sizes.max(initial=1))
    if most == 1:
        out[at] = rest
        return at + 1
    where: Any = at
    left = sizes
    for nth in range(most):
        out[where] = (rest & np.uint64(0x7F)).astype(np.uint8) | ((left > 1).astype(np.uint8) << 7)
        if nth < most - 1:
            keep = left > 1
            where, rest, left = where[keep] + 1, rest[keep] >> np.uint64(7), left[keep] - 1
    return at + sizes
