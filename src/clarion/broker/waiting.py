"""Replies that wait for a commit, of producers and of coordinators, and the clock that ends their patience.

Almost every wait ends within milliseconds, so there is no timer per request: one look per second at those that wait.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

LOOK_SECONDS: Final = 1.0
_TIMEOUT_MS_MAX: Final = 3_600_000  # nobody needs to hold a request longer than an hour


class Waiting(Protocol):
    deadline: float

    def time_out(self) -> None: ...


class WaitingReplies:
    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting, timeout_ms: int) -> float:
        """Returns the deadline."""
        self._waiting[waiting] = None
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        return self._loop.time() + min(max(timeout_ms, 0), _TIMEOUT_MS_MAX) / 1000

    def discard(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        for waiting in [one for one in self._waiting if one.deadline <= now]:
            waiting.time_out()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look) if self._waiting else None
