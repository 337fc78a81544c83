"""How many topics may come into being by being asked for: so many per request, and so many per second by all."""

from __future__ import annotations

from typing import Final

from clarion.world.events import Repeats

_REFUSAL_SECONDS: Final = 60.0  # so often the log says anew what could not be made; clients ask again every second
_BURST_SECONDS: Final = 2  # a quiet broker lets so many seconds' worth through at once: a fleet of clients that starts


class AutoCreation:
    """A bucket of permits that fills with time."""

    def __init__(self, per_request: int, per_second: int) -> None:
        self._per_request = per_request
        self._per_second = per_second
        self._permits = float(per_second * _BURST_SECONDS)
        self._filled_at: float | None = None
        self.refusals = Repeats(seconds=_REFUSAL_SECONDS)

    def take(self, wanted: int, now: float) -> int:
        """How many of these may be made now, by one request."""
        self._fill(now)
        granted = min(wanted, self._per_request, int(self._permits))
        self._permits -= granted
        return granted

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            more = (now - self._filled_at) * self._per_second
            self._permits = min(self._permits + more, float(self._per_second * _BURST_SECONDS))
        self._filled_at = now
