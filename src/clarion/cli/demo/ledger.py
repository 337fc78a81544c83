"""The demo's bookkeeping: which order was acknowledged, and how often each reader saw it. One byte per order."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

_GROW_BY = 65_536
_COUNT_MAX = 255  # a byte; nobody needs to know that an order came 256 times


class SeenCounts:
    """How often each number was seen. Several threads may write: a group's members share one."""

    def __init__(self) -> None:
        self._counts = bytearray(_GROW_BY)
        self._lock = Lock()
        self.distinct = 0
        self.repeated = 0

    def see(self, numbers: list[int]) -> None:
        with self._lock:
            for number in numbers:
                self._see(number)

    def _see(self, number: int) -> None:
        if number >= len(self._counts):
            self._counts.extend(bytes(number + _GROW_BY - len(self._counts)))
        count = self._counts[number]
        if count:
            self.repeated += 1
        else:
            self.distinct += 1
        self._counts[number] = min(count + 1, _COUNT_MAX)

    def missing_from(self, other: SeenCounts) -> int:
        """How many of our numbers the other has never seen."""
        theirs = other._counts
        length = len(theirs)
        return sum(1 for number, count in enumerate(self._counts) if count and (number >= length or not theirs[number]))


@dataclass
class OrderWatch:
    """Within one key, messages come in the order in which they were sent."""

    breaks: int = 0
    _last: dict[str, int] = field(default_factory=dict)

    def see(self, key: str, sequence: int) -> None:
        if sequence != self._last.get(key, -1) + 1:
            self.breaks += 1
        self._last[key] = sequence


@dataclass(frozen=True, slots=True)
class ReaderVerdict:
    reader: str
    expected: int
    received: int
    missing: int
    unasked: int  # seen, but never acknowledged to the publisher
    repeated: int
    order_breaks: int | None  # None: nobody looked
    may_repeat: bool  # a group delivers at least once; a lone reader sees everything once

    @property
    def is_good(self) -> bool:
        repeats_are_fine = self.may_repeat or self.repeated == 0
        return self.missing == 0 and self.unasked == 0 and not self.order_breaks and repeats_are_fine


def verdict(
    reader: str, acknowledged: SeenCounts, seen: SeenCounts, order_breaks: int | None, *, may_repeat: bool
) -> ReaderVerdict:
    return ReaderVerdict(
        reader=reader,
        expected=acknowledged.distinct,
        received=seen.distinct,
        missing=acknowledged.missing_from(seen),
        unasked=seen.missing_from(acknowledged),
        repeated=seen.repeated,
        order_breaks=order_breaks,
        may_repeat=may_repeat,
    )
