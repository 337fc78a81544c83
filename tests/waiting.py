"""Bounded waits for conditions: what tests use instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.01
PATIENCE_SECONDS = 60  # a bound, not a measure: the machine may be busy with other things


def wait_for(condition: Callable[[], T], *, seconds: float = PATIENCE_SECONDS, what: str = "") -> T:
    """Call `condition` until it answers something true, and return that; fail loudly after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up after {seconds} s waiting for: {what or condition}")
        time.sleep(POLL_SECONDS)
    return answer
