"""How Ctrl-C ends a command, and SIGTERM as well: commit, leave the group, stop what was started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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


@contextmanager
def interrupts_outside(*functions: Callable[..., Any]) -> Iterator[Callable[[], None]]:
    """Within the block Ctrl-C raises KeyboardInterrupt, but not in these functions, nor in what they call: what comes
    out raises it afterwards. For what counts, and for callbacks, of whose exceptions the client library makes a
    SystemError."""
    codes = {one.__code__ for one in functions}
    is_waiting = False

    def interrupt(_number: int, frame: FrameType | None) -> None:
        nonlocal is_waiting
        while frame is not None:
            if frame.f_code in codes:
                is_waiting = True
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    def check() -> None:
        if is_waiting:
            raise KeyboardInterrupt

    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.default_int_handler:  # a background job ignores it
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, previous)
