"""Work that may wait for the disk, in a thread, without losing sight of it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """Like `run_in_executor`, but a cancelled caller leaves only when the thread is done.

    A thread cannot be stopped. Whoever cancelled is going to close or remove what it works on.
    OSError if the machine has no thread to give; the work is never done then.
    """
    running = _start(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # nobody is left to hear of it
        raise


def _start(work: Callable[[], Result]) -> asyncio.Future[Result]:
    is_given_up = False

    def run() -> Result:
        if is_given_up:
            raise asyncio.CancelledError
        return work()

    try:
        return asyncio.get_running_loop().run_in_executor(None, run)
    except RuntimeError as error:
        # The executor keeps the work all the same, and gives it to the next thread that has nothing else to do. By
        # then a folder that was to be removed may be another topic's.
        is_given_up = True
        raise OSError(errno.EAGAIN, str(error)) from error
