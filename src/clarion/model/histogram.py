"""How often something took how long: counts by duration, cheap enough for what happens thousands of times a second."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# In steps of about two and a half, from what a page cache takes to what a client's patience takes; each is one more
# series for each API, and quantiles are as exact as these are fine.
BOUNDS_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_FIRST: Final = 0.0005


class Histogram:
    """`counts[n]` took at most `BOUNDS_SECONDS[n]`, and longer than the bound before; the last one, longer than all."""

    __slots__ = ("counts", "seconds_total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.seconds_total = 0.0

    def note(self, seconds: float, times: int = 1) -> None:
        # Most are as quick as can be told apart, and need not be looked for.
        self.counts[0 if seconds <= _FIRST else bisect_left(BOUNDS_SECONDS, seconds)] += times
        self.seconds_total += seconds * times

    def copy(self) -> Histogram:
        other = Histogram()
        other.counts, other.seconds_total = self.counts.copy(), self.seconds_total
        return other
