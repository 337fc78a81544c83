"""SIGTERM ends a command as Ctrl-C does: commit, leave the group, stop what was started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminate_interrupts() -> Iterator[None]:
    """Within the block both raise KeyboardInterrupt, even in a background job, whose shell made it ignore SIGINT."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
