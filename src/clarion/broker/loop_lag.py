"""How late the event loop is: whatever holds it up holds up every client, so this is the first number to look at.

A timer asks to be called ten times a second, and notes how much later it was called. What is told is the worst of the
last 15 to 30 seconds: scrapers come every few seconds, several of them, and none takes it away from the others.
"""

from __future__ import annotations

import asyncio
from typing import Final

PAUSE_SECONDS: Final = 0.1  # a stall of less is a request's usual work; ten wake-ups a second cost nothing
WINDOW_SECONDS: Final = 15.0  # Prometheus asks that often where nobody says otherwise


class LoopLag:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._window_ends = self._loop.time() + WINDOW_SECONDS
        self._worst = self._worst_before = 0.0
        self._timer = self._loop.call_later(PAUSE_SECONDS, self._look, self._loop.time() + PAUSE_SECONDS)

    def worst_seconds(self) -> float:
        return max(self._worst, self._worst_before)

    def note(self, late_seconds: float, now: float) -> None:
        if now >= self._window_ends:
            self._worst_before, self._worst = self._worst, 0.0
            self._window_ends = now + WINDOW_SECONDS
        self._worst = max(self._worst, late_seconds)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self, due: float) -> None:
        now = self._loop.time()
        self.note(max(0.0, now - due), now)
        self._timer = self._loop.call_later(PAUSE_SECONDS, self._look, now + PAUSE_SECONDS)
