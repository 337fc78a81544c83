"""An event loop in a thread of its own, for callers who block."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("clarion.client")


class LoopThread:
    """Begins with its first work. It is a daemon: a program that forgets to close it can end."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Whatever interrupts the caller ends the work."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def in_a_thread(self, work: Callable[..., None], *arguments: object) -> None:
        """Begin something that blocks; in any thread, and without waiting for it. Not while the program ends."""
        self._loop.call_soon_threadsafe(self._begin, work, arguments)

    def _begin(self, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            self._loop.run_in_executor(None, work, *arguments)
        except RuntimeError as error:  # no threads are begun any more; the broker misses who does not say good-bye
            log.debug("not begun: %s", error)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
