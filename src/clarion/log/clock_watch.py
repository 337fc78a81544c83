"""Whether the wall clock can be trusted with deletion.

Retention is the one place where a wrong wall clock destroys data: a jump forward by a month makes everything expired at
once. So every sweep compares how far the wall clock and the monotonic clock have come since the sweep before. If they
disagree by more than a minute, nothing is deleted until the wall clock is back where it should be, or until the new
time has stood for a day (an operator had time to notice; or it was right, and the old one wrong).

A start knows only when the broker was last alive. If that is more than a day ago, either it was down for so long or the
clock is ahead, and nobody can tell: deletion waits for a day as well. That day is counted over restarts.

A clock that comes back is trusted at once. But what was noted by it while it was wrong is not: a commit of five minutes
ago says that it is a month old. So what is written down says `late_ms`, and what was noted in memory counts anew from
when the clock is trusted again.

    watch = watch_clock(watch, wall_ms, monotonic_ms)
    if not watch.is_trusted: log.warning("deletion_paused", reason=watch.sentence)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

JUMP_MS: Final = 60_000  # slewing by NTP is 0.5 ms per second; what moves a clock by a minute between sweeps is a jump
GRACE_MS: Final = 24 * 3_600_000
DOWN_MS_MAX: Final = 24 * 3_600_000  # a shorter standstill is everyday, and costs at most a day of retention


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWatch:
    wall_ms: int
    monotonic_ms: int
    jump_ms: int = 0  # how far the wall clock is from where it should be; 0 while it is trusted
    jumped_at_ms: int = 0  # on the monotonic clock

    @property
    def is_trusted(self) -> bool:
        return self.jump_ms == 0

    @property
    def late_by_ms(self) -> int:
        """How far the wall clock is behind where it should be; 0 if it is not."""
        return -min(self.jump_ms, 0)

    @property
    def late_ms(self) -> int:
        """The wall clock, or where it should be if that is later: what says so is never taken for older than it is."""
        return self.wall_ms + self.late_by_ms

    @property
    def early_ms(self) -> int:
        """The wall clock, or where it should be if that is earlier: what is judged by it is never taken for too old."""
        return self.wall_ms - max(self.jump_ms, 0)

    @property
    def sentence(self) -> str:
        if self.is_trusted:
            return "the wall clock runs with the monotonic clock"
        way = "forward" if self.jump_ms > 0 else "back"
        left_s = max(0, GRACE_MS - (self.monotonic_ms - self.jumped_at_ms)) // 1000
        return (
            f"the wall clock jumped {way} by {abs(self.jump_ms) / 1000:.0f} s, or the broker was down for so long; "
            f"deletion by time waits up to {left_s} s more"
        )

    @property
    def doubted_since_ms(self) -> int:
        """On the wall clock, as it now is; -1 while it is trusted."""
        return -1 if self.is_trusted else self.wall_ms - (self.monotonic_ms - self.jumped_at_ms)


def watch_clock(before: ClockWatch | None, wall_ms: int, monotonic_ms: int) -> ClockWatch:
    """The watch after one more look at both clocks."""
    if before is None:
        return ClockWatch(wall_ms=wall_ms, monotonic_ms=monotonic_ms)
    drift_ms = (wall_ms - before.wall_ms) - (monotonic_ms - before.monotonic_ms)
    jump_ms = before.jump_ms + drift_ms
    has_grace = before.is_trusted or monotonic_ms - before.jumped_at_ms < GRACE_MS
    if abs(jump_ms) <= JUMP_MS or not has_grace:
        return ClockWatch(wall_ms=wall_ms, monotonic_ms=monotonic_ms)
    return ClockWatch(
        wall_ms=wall_ms,
        monotonic_ms=monotonic_ms,
        jump_ms=jump_ms,
        jumped_at_ms=monotonic_ms if before.is_trusted else before.jumped_at_ms,
    )


def watch_after_start(last: ClockWatch | None, wall_ms: int, monotonic_ms: int) -> ClockWatch:
    """The first watch of a process. `last` is what the process before saw last; None if that is not known."""
    trusted = ClockWatch(wall_ms=wall_ms, monotonic_ms=monotonic_ms)
    if last is None:
        return trusted
    gap_ms = wall_ms - last.wall_ms
    is_gap = abs(gap_ms) > DOWN_MS_MAX
    jump_ms = last.jump_ms + (gap_ms if is_gap else 0)
    has_come_back = is_gap and abs(jump_ms) <= DOWN_MS_MAX
    stood_ms = 0 if last.is_trusted else max(0, wall_ms - last.doubted_since_ms)
    if jump_ms == 0 or has_come_back or stood_ms >= GRACE_MS:
        return trusted
    return replace(trusted, jump_ms=jump_ms, jumped_at_ms=monotonic_ms - stood_ms)
