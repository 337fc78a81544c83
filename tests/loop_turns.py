"""How long one client may keep the event loop from all others.

Measured in CPU time of the loop's own thread, which a busy machine does not lengthen: between two ticks of a timer lies
one turn of the loop, or a few short ones. What the test process has gathered before is frozen meanwhile: a collector
that walks over the objects of a thousand other tests is not the broker's doing.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TICK_SECONDS = 0.002
TURN_SECONDS_MAX = 0.05  # the rule: nobody holds the loop longer than this
SLACK = 3  # for slow machines, and the test's own client, which lives on the same loop


class Turns:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = time.thread_time()
        self.longest_seconds = 0.0
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        now = time.thread_time()
        self.longest_seconds = max(self.longest_seconds, now - self._last)
        self._last = now
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def stop(self) -> None:
        self._tick()
        self._timer.cancel()

    def skip(self) -> None:
        """What the test itself has just done on the loop does not count."""
        self._last = time.thread_time()


@asynccontextmanager
async def watched_turns(what: str = "somebody", slack: float = SLACK) -> AsyncIterator[Turns]:
    """Fails if the loop was held longer than the rule allows, times `slack`."""
    gc.collect()
    gc.freeze()
    turns = Turns()
    try:
        yield turns
    finally:
        turns.stop()
        gc.unfreeze()
    assert turns.longest_seconds < TURN_SECONDS_MAX * slack, f"{what} held the loop for {turns.longest_seconds:.3f} s"
