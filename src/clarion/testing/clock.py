"""A wall clock that a test may move, so that a week of retention passes in no time."""

from __future__ import annotations

from collections.abc import Callable

from clarion.world import SystemClock


class ShiftedClock:
    """The system's clock and a distance from it. Only wall time moves: timeouts go by the monotonic clock."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._shift_ms = 0
        self.on_shift: Callable[[], None] | None = None

    def now_ms(self) -> int:
        return self._real.now_ms() + self._shift_ms

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let so much time pass at once; a negative number turns the clock back."""
        self._shift_ms += round(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000)
        if self.on_shift is not None:
            self.on_shift()

    def reset(self) -> None:
        """Show the system's time again."""
        self.advance(-self._shift_ms / 1000)
