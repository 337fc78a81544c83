"""How a test waits: for a condition, and never longer than it says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

Value = TypeVar("Value")

__tracebackhide__: Final = True  # by pytest, as in embedded_broker
_POLL_SECONDS: Final = 0.005


def _no_check() -> None:
    """Nothing else can keep the condition from coming true."""


def wait_until(condition: Callable[[], Value], timeout: float, check: Callable[[], None] = _no_check) -> Value:
    """What the condition answers when that is true. `check` raises when there is nothing left to wait for."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(_never_true(condition, timeout) + blocked_loop())
        check()
        time.sleep(_POLL_SECONDS)
    return answer


async def wait_until_async(
    condition: Callable[[], Value],
    timeout: float,  # noqa: ASYNC109
    check: Callable[[], None] = _no_check,
) -> Value:
    """The same while the test's own loop goes on."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(_never_true(condition, timeout))
        check()
        await asyncio.sleep(_POLL_SECONDS)
    return answer


def blocked_loop() -> str:
    """A hint for whoever waits for an async client without letting it run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return " (waiting like this stops the test's own event loop; `await broker.wait_for_async(…)` does not)"


def _never_true(condition: Callable[[], object], timeout: float) -> str:
    return f"after {timeout} s still not true: {getattr(condition, '__qualname__', repr(condition))}"
