"""Wall time. Only timestamps that people or records see come from here; durations come from the event loop."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970, as in a record's timestamp."""
        ...


def boot_seconds() -> float:
    """Seconds that only grow, also while the machine sleeps: what was promised to last so long ends all the same.

    (Python's monotonic clock, the event loop's, stands still in suspend.)
    """
    return time.clock_gettime(_SINCE_BOOT)


_SINCE_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the second where there is no first


precise_seconds: Final = time.perf_counter  # for what takes less than the event loop's time can tell apart


thread_seconds: Final = time.thread_time  # for how long the calling thread has had a processor


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
