"""An event loop whose time is virtual: nothing waits, and the same seed gives the same run to the last byte.

When nothing can run, the clock jumps to the next timer; without a timer it is a deadlock, and that is raised.
What a thread would do (`run_in_executor`) becomes one step at a random later time. Every callback belongs to the
process that scheduled it (a context variable says which); a process that has died runs none of its callbacks any more.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.machine import Process
    from tests.sim.network import Network

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen again."""


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int, *, thread_seconds: tuple[float, float] = (0.0001, 0.004)) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.thread_seconds = thread_seconds
        self.network: Network
        self.trace = Trace(self)
        self.errors: list[str] = []  # of callbacks and tasks that nobody awaited
        self._now = 0.0
        self._selector = self  # `_run_once` asks it how long to sleep
        self.set_exception_handler(_keep_error)

    # Time

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock(f"nothing can run at {self._now:.6f}")
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...

    # Processes

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        if self.is_closed():
            return asyncio.Handle(callback, args, self, context)  # the life is over: it will never run
        return super().call_soon(_guarded(callback, context), *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        if self.is_closed():
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, _guarded(callback, context), *args, context=context)

    def run_in_executor(self, executor: object, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()

        def step() -> None:
            try:
                result = work(*args)
            except Exception as error:
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(result)

        self.call_later(self.random.uniform(*self.thread_seconds), step)
        return done

    # Sockets

    async def create_server(self, factory: Callable[[], Any], host: str, port: int, **_: Any) -> Any:  # type: ignore[override]
        return self.network.listen(factory, port)

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int, **_: Any) -> Any:  # type: ignore[override]
        return await self.network.connect(factory, port)


class Trace:
    """Everything that happened, as one hash; with `lines`, to be read."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0
        self.lines: list[str] | None = None

    def note(self, *words: object) -> None:
        line = f"{self._loop.time():.9f} {' '.join(map(str, words))}"
        self._hash.update(line.encode())
        self.count += 1
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def _guarded(callback: Callable[..., object], context: contextvars.Context | None) -> Callable[..., object]:
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is None:
        return callback

    def run(*args: Any) -> None:
        if process.is_frozen:
            process.held.append((run, args, contextvars.copy_context()))
        elif process.is_running:
            callback(*args)

    return run


def _keep_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception")
    # A task that a crash interrupted is not a mistake; an ordinary exception that reached the loop is one.
    if isinstance(error, Exception):
        loop.errors.append(f"{context.get('message')}: {error!r}")
