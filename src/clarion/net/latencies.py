"""How long requests take, by API: from the turn of the event loop in which they came to that of their reply.

The replies of a turn leave together at its end, so those that need not wait have taken equally long: the clock is
looked at twice in such a turn, however many requests it served. One that waits, for a commit or for messages, is
timed by itself. The loop's own time is too coarse for this: it goes in milliseconds, and stands still during a turn.

Two kinds of requests can be answered in the turn in which they came, and both are what a busy broker does all day: they
have counters of their own, for a dictionary's would cost as much as all the rest of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clarion.model.histogram import Histogram
from clarion.world import precise_seconds

_NO_TURN: Final = -1.0


class Quick:
    """Requests of one API that may be answered at once."""

    __slots__ = ("_noted", "histogram", "total")

    def __init__(self) -> None:
        self.histogram = Histogram()
        self.total = 0
        self._noted = 0  # of those, what is in the histogram, or comes into it by itself, or never will

    def set_apart(self) -> None:
        """The last one is not answered in this turn, or not at all."""
        self._noted += 1

    def note(self, seconds: float) -> None:
        """So long ago began the turn in which all the others were answered."""
        times = self.total - self._noted
        if times:
            self.histogram.note(seconds, times)
            self._noted = self.total


class Latencies:
    __slots__ = ("_began", "_clock", "_others", "_turn", "fetches", "produces")

    def __init__(self, clock: Callable[[], float] = precise_seconds) -> None:
        self.produces = Quick()
        self.fetches = Quick()
        self._others: dict[int, Histogram] = {}  # by API
        self._turn = _NO_TURN
        self._clock = clock
        self._began = clock()

    def histograms(self, produce: int, fetch: int) -> dict[int, Histogram]:
        """By API, whose numbers for the quick ones this room does not know."""
        return {produce: self.produces.histogram, fetch: self.fetches.histogram, **self._others}

    def begin_turn(self, now: float) -> None:
        """Called for everything that is read; only the first in a turn costs anything."""
        if now != self._turn:
            self._turn = now
            self._began = self._clock()

    def end_turn(self) -> None:
        """The replies of this turn have left."""
        self._turn = _NO_TURN
        seconds = self._clock() - self._began
        self.produces.note(seconds)
        self.fetches.note(seconds)

    @property
    def began(self) -> float:
        """When the requests came that are being served now."""
        return self._began

    def note_answered(self, histogram: Histogram, began: float) -> None:
        """A request that had to wait."""
        histogram.note(self._clock() - began)

    def of(self, api_key: int) -> Histogram:
        histogram = self._others.get(api_key)
        if histogram is None:
            histogram = self._others[api_key] = Histogram()
        return histogram
