"""Work that may wait for the disk, in a thread, without losing sight of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Like `run_in_executor`, but a cancelled caller leaves only when the thread is done.

    A thread cannot be stopped. Whoever cancelled is going to close or remove what it works on.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # nobody is left to hear of it
        raise
