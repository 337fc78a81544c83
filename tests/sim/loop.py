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
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.machine import Process
    from tests.sim.network import Network

HASHED_TOGETHER = 500  # words of the trace: each by itself would cost as much as what it tells of
PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen again."""


class Step(asyncio.TimerHandle):
    """A callback that is to be run, and the process that it belongs to."""

    __slots__ = ("process",)

    # Every event of a life is one: all that the base class does for debugging is left out.
    def __init__(self, when: float, callback: Callable[..., object], args: Any, context: Any) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when
        self.process = self._context.get(PROCESS)

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def __repr__(self) -> str:
        return f"{self._callback}{self._args}"


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int, *, thread_seconds: tuple[float, float] = (0.0001, 0.004)) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.thread_seconds = thread_seconds
        self.network: Network
        self.trace = Trace(self)
        self.errors: list[str] = []  # of callbacks and tasks that nobody awaited
        self._now = 0.0
        self._due: deque[Step] = deque()
        self._later: list[tuple[float, int, Step]] = []  # a heap; steps of the same time in the order of their numbers
        self._numbers = count()
        self.set_exception_handler(_keep_error)

    # Time

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """Turn after turn, until it is told to stop: whatever is due now, but not what that makes due."""
        due, later = self._due, self._later
        while True:
            if not due and not self._stopping:
                self._jump()
            while later and later[0][0] <= self._now:
                due.append(heappop(later)[2])
            for _ in range(len(due)):
                step = due.popleft()
                if not step._cancelled:
                    self._take(step)
            if self._stopping:
                return

    def _jump(self) -> None:
        later = self._later
        while later and later[0][2]._cancelled:
            heappop(later)
        if not later:
            raise Deadlock(f"nothing can run at {self._now:.6f}")
        self._now = max(self._now, later[0][0])

    def _take(self, step: Step) -> None:
        process = step.process
        if process is not None:
            if not process.is_running:
                return
            if process.is_frozen:
                process.held.append(step)
                return
        try:
            step._context.run(step._callback, *step._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"Exception in callback {step}", "exception": error})

    def close(self) -> None:
        self._due.clear()
        self._later.clear()
        super().close()

    # Steps

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Step:
        step = Step(self._now, callback, args, context)
        self._due.append(step)
        return step

    call_soon_threadsafe = call_soon  # there are no threads

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Step:
        step = Step(when, callback, args, context)
        heappush(self._later, (when, next(self._numbers), step))
        return step

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Step:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def thaw(self, process: Process) -> None:
        """What a frozen process should have done meanwhile it does now, in its order."""
        process.is_frozen = False
        self._due.extend(process.held)
        process.held.clear()

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
        self._unhashed: list[tuple[float, tuple[object, ...]]] = []
        self.count = 0
        self.lines: list[str] | None = None

    def note(self, *words: object) -> None:
        self.count += 1
        self._unhashed.append((self._loop.time(), words))
        if len(self._unhashed) == HASHED_TOGETHER:
            self._hash_all()
        if self.lines is not None:
            self.lines.append(f"{self._loop.time():.9f} {' '.join(map(str, words))}")

    @property
    def digest(self) -> str:
        self._hash_all()
        return self._hash.hexdigest()

    def _hash_all(self) -> None:
        self._hash.update(repr(self._unhashed).encode())
        self._unhashed.clear()


def _keep_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception")
    # A task that a crash interrupted is not a mistake; an ordinary exception that reached the loop is one.
    if isinstance(error, Exception):
        loop.errors.append(f"{context.get('message')}: {error!r}")
