"""Whether the wall clock can be trusted with deletion and expiry, over restarts too.

Whoever deletes by time asks here first: retention, compaction of tombstones, the expiry of producers and of committed
offsets. And who writes down how old something is asks what time it is. While the broker runs, its monotonic clock tells
(`log.clock_watch`). For the time before, a file in the data directory says when the broker was last seen alive, and
since when it has doubted the clock, if it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from clarion.log.clock_watch import ClockWatch, watch_after_start, watch_clock
from clarion.world import Clock, Disk, event_log, read_file, replace_file

log = event_log("log")

CLOCK_FILE: Final = "clock-checkpoint"
_LOG_INTERVAL_MS: Final = 3_600_000


class ClockTrust:
    def __init__(self, clock: Clock, monotonic_seconds: Callable[[], float], disk: Disk, data_dir: str) -> None:
        self._clock = clock
        self._monotonic_seconds = monotonic_seconds
        self._disk = disk
        self._path = os.path.join(data_dir, CLOCK_FILE)
        self._last_logged_ms: int | None = None  # when the doubt was last logged, on the monotonic clock
        last = _load(disk, self._path)
        self.is_first_life = last is None  # nothing says when a broker was here before
        self._watch = watch_after_start(last, clock.now_ms(), self._monotonic_ms())
        self.late_by_ms = self._watch.late_by_ms  # at the last look: how far the wall clock is known to be behind
        self._is_right_again = last is not None and not last.is_trusted and self._watch.is_trusted
        self._when_right_again: list[Callable[[], None]] = []

    def when_right_again(self, callback: Callable[[], None]) -> None:
        """Called when the wall clock is trusted after a doubt: what was noted by it says nothing of how old it is.

        Also now, if that is so of what the process before has noted.
        """
        self._when_right_again.append(callback)
        if self._is_right_again:
            callback()

    def late_ms(self) -> int:
        """What to write down of what must not go before its time: the wall clock's time, while it is trusted."""
        return self._look().late_ms

    def early_ms(self) -> int:
        """By what to tell whether a message is too old for somebody: the wall clock's time, while it is trusted."""
        return self._look().early_ms

    def is_trusted(self) -> bool:
        """Asked before anything goes because its time is over."""
        watch = self._look()
        if watch.is_trusted:
            self._last_logged_ms = None
        elif self._last_logged_ms is None or watch.monotonic_ms - self._last_logged_ms >= _LOG_INTERVAL_MS:
            self._last_logged_ms = watch.monotonic_ms
            log.warning("deletion_paused", reason=watch.sentence)
        return watch.is_trusted

    def _look(self) -> ClockWatch:
        was_trusted = self._watch.is_trusted
        self._watch = watch = watch_clock(self._watch, self._clock.now_ms(), self._monotonic_ms())
        self.late_by_ms = watch.late_by_ms
        if watch.is_trusted and not was_trusted:
            for callback in self._when_right_again:
                callback()
        return watch

    def trust(self) -> None:
        """Somebody knows that the clock is right as it is."""
        self._watch = watch_clock(None, self._clock.now_ms(), self._monotonic_ms())
        self.late_by_ms = 0

    def save(self) -> None:
        """In a thread: a sign of life for the next start."""
        watch = self._watch
        replace_file(self._disk, self._path, f"{watch.wall_ms} {watch.jump_ms} {watch.doubted_since_ms}\n".encode())

    def _monotonic_ms(self) -> int:
        return int(self._monotonic_seconds() * 1000)


def _load(disk: Disk, path: str) -> ClockWatch | None:
    """What the process before this one saw last; its monotonic clock is of no use any longer."""
    try:
        alive_ms, jump_ms, doubted_since_ms = map(int, read_file(disk, path).split())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        # Who cannot tell when the broker was last alive cannot tell whether the clock is right.
        log.warning("clock_checkpoint_unreadable", path=path, reason=str(error))
        return ClockWatch(wall_ms=0, monotonic_ms=0)
    return ClockWatch(wall_ms=alive_ms, monotonic_ms=alive_ms - doubted_since_ms, jump_ms=jump_ms)
