"""The threads in which flushes wait for the device.

An executor's way back into the loop goes over two futures and an extra turn of the loop. A flush is waited for by every
client that wants to be safe, and half the time of a small one was that way; here the outcome comes back directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

Work = Callable[[], None]
OnDone = Callable[[BaseException | None], None]


class Threads(Protocol):
    def start(self, work: Work, on_done: OnDone) -> None:
        """Do the work in a thread, then call `on_done` in the loop, with what went wrong or None.

        RuntimeError if there is no thread to be had now; `on_done` is never called then.
        """
        ...

    def close(self) -> None:
        """Returns when all work that was started has been done."""
        ...

    def abandon(self) -> None:
        """As if the process had died: what has not begun never will, and nobody waits for what has."""
        ...


class FlushThreads:
    def __init__(self, count_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._count_max = count_max
        self._threads: list[Thread] = []
        self._queue: SimpleQueue[tuple[Work, OnDone] | None] = SimpleQueue()
        self._under_way = 0

    def start(self, work: Work, on_done: OnDone) -> None:
        if len(self._threads) < min(self._under_way + 1, self._count_max):
            self._add_thread()
        self._under_way += 1
        self._queue.put((work, on_done))

    def _add_thread(self) -> None:
        thread = Thread(target=self._run, name=f"clarion-flush-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return  # the machine has no more to give; those that there are do it one after the other
        self._threads.append(thread)

    def close(self) -> None:
        self._let_go()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self._let_go()

    def _let_go(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            work, on_done = job
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # whatever it is, who waits for the flush has to hear of it
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody is left to hear of it
                self._loop.call_soon_threadsafe(self._finish, on_done, error)
            del job, work, on_done, error  # not to be kept alive while this thread sleeps

    def _finish(self, on_done: OnDone, error: BaseException | None) -> None:
        self._under_way -= 1
        on_done(error)


class LoopThreads:
    """The loop's own idea of threads, or an executor of the caller's: a simulated loop has simulated ones."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor

    def start(self, work: Work, on_done: OnDone) -> None:
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        running.add_done_callback(lambda done: on_done(_error_of(done)))

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


def _error_of(done: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if done.cancelled() else done.exception()
