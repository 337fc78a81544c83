"""How long requests take, by API: from the turn of the event loop in which they came to that of their reply.

The replies of a turn leave together at its end, so those that need not wait have taken equally long: the clock is
looked at twice in such a turn, however many requests it served. One that waits, for a commit or for messages, is
timed by itself. The loop's own time is too coarse for this: it goes in milliseconds, and stands still during a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clarion.model.histogram import Histogram
from clarion.world import precise_seconds

_NO_TURN: Final = -1.0


class Latencies:
    __slots__ = ("_began", "_clock", "_turn", "at_once", "histograms")

    def __init__(self, clock: Callable[[], float] = precise_seconds) -> None:
        self.histograms: dict[int, Histogram] = {}  # by API
        self.at_once: dict[int, int] = {}  # requests that were answered in this turn, by API
        self._turn = _NO_TURN
        self._clock = clock
        self._began = clock()

    def begin_turn(self, now: float) -> None:
        """Called for everything that is read; only the first in a turn costs anything."""
        if now != self._turn:
            self._turn = now
            self._began = self._clock()

    def end_turn(self) -> None:
        """The replies of this turn have left."""
        self._turn = _NO_TURN
        if self.at_once:
            seconds = self._clock() - self._began
            for api_key, times in self.at_once.items():
                self._of(api_key).note(seconds, times)
            self.at_once.clear()

    @property
    def began(self) -> float:
        """When the requests came that are being served now."""
        return self._began

    def note_answered(self, api_key: int, began: float) -> None:
        """A request that had to wait."""
        self._of(api_key).note(self._clock() - began)

    def _of(self, api_key: int) -> Histogram:
        histogram = self.histograms.get(api_key)
        if histogram is None:
            histogram = self.histograms[api_key] = Histogram()
        return histogram
