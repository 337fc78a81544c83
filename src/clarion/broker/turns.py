"""Long work of requests, in short pieces: whatever one client asks, the others are answered in between.

A loop over what a request names goes through `Turns.each`, which gives the event loop back every few milliseconds.
Pieces of all requests stand in one line: one piece per turn of the event loop, so that a hundred long requests do not
make a turn a hundred times as long. What is pure (decoding a large request, encoding a large reply) goes to a thread,
where it takes the interpreter's lock for half a millisecond at a time. There are two of them, and no more, because all
share that lock with the event loop: one for messages (`aside`), of which a connection has one at a time and which go
first come, first served; and one for what may take seconds (`aside_slowly`), so that nobody's message waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from clarion.world import Clock, event_log

log = event_log("broker")

PIECE_MS: Final = 3  # a tenth of what anybody may feel

Item = TypeVar("Item")
Result = TypeVar("Result")


class Turns:
    def __init__(self, clock: Clock) -> None:
        # The event loop's own time stands still within a turn. A wall clock that jumps makes one piece shorter.
        self._clock = clock
        self._began: int | None = None  # the present turn, as far as long work is concerned
        self._loop = asyncio.get_running_loop()
        self._line: deque[asyncio.Future[None]] = deque()
        self._is_moving = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._messages = ThreadPoolExecutor(1, thread_name_prefix="messages")
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="aside")

    async def each(self, items: Iterable[Item]) -> AsyncIterator[Item]:
        """The items, with a pause whenever this turn has lasted long enough. Loops inside loops share one clock."""
        for item in items:
            if self._is_over():
                await self.pause()
            yield item

    async def pause(self) -> None:
        """Wait for one's next turn."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._line.append(waiting)
        if not self._is_moving:
            self._is_moving = True
            self._loop.call_soon(self._let_next_go)
        await waiting

    def start(self, work: Coroutine[Any, Any, None], on_failure: Callable[[], None]) -> None:
        """Begin long work on a request. It ends with the broker; what it raises is our own mistake."""
        task = self._loop.create_task(self._watched(work, on_failure))  # which lets no error out
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _watched(self, work: Coroutine[Any, Any, None], on_failure: Callable[[], None]) -> None:
        try:
            await work
        except Exception as error:
            # Nobody awaits this task: its boundary is here, and `on_failure` tells who waits for it.
            log.error("request_failed", error=error)
            on_failure()

    async def aside(self, work: Callable[..., Result], *args: Any) -> Result:
        """Do something that needs nothing but its arguments in a thread: some ten milliseconds' worth."""
        return await self._loop.run_in_executor(self._messages, work, *args)

    async def aside_slowly(self, work: Callable[..., Result], *args: Any) -> Result:
        """The same for what may take seconds."""
        return await self._loop.run_in_executor(self._slow, work, *args)

    def _is_over(self) -> bool:
        now = self._clock.now_ms()
        if self._began is None:
            self._began = now
            self._loop.call_soon(self._on_next_turn)
        return abs(now - self._began) >= PIECE_MS

    def _on_next_turn(self) -> None:
        self._began = None

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for thread in (self._messages, self._slow):
            thread.shutdown(wait=False)

    def _let_next_go(self) -> None:
        while self._line:
            waiting = self._line.popleft()
            if not waiting.done():  # cancelled
                waiting.set_result(None)
                break
        if self._line:
            self._loop.call_soon(self._let_next_go)
        else:
            self._is_moving = False
