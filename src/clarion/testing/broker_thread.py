"""One life of a broker: a thread with a loop of its own, from start to stop or to a sudden death.

The broker runs beside the test, not inside its loop, so that clients which block work as well as those that do not.
Everything that touches the broker is called on its loop (`call`, `run`, `soon`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

import uvloop

from clarion.broker.config import BrokerConfig
from clarion.broker.server import BrokerServer
from clarion.gateway.director import Director
from clarion.gateway.door import Gateway
from clarion.net import Service
from clarion.testing.clock import ShiftedClock
from clarion.testing.disk import DiskFaults, FaultyDisk
from clarion.testing.errors import BrokerDownError
from clarion.testing.fault import Fault
from clarion.testing.interception import Interceptor, RequestFault
from clarion.testing.journal import Journal

__tracebackhide__: Final = True  # by pytest, as in embedded_broker

START_SECONDS_MAX: Final = 60.0  # recovery of a large data directory; a fresh one takes milliseconds
STOP_SECONDS_MAX: Final = 10.0
KILL_SECONDS_MAX: Final = 0.5
CALL_SECONDS_MAX: Final = 30.0  # longer than any freeze with an end that a test has the patience for
_LOOK_SECONDS: Final = 0.1  # how often somebody who waits makes sure that the broker is still there

Result = TypeVar("Result")


class BrokerThread:
    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        clock: ShiftedClock,
        disk_faults: DiskFaults,
        faults: list[RequestFault],
        journal: Journal,
    ) -> None:
        self._name = name
        self._config = config
        self._clock = clock
        self._disk = FaultyDisk(disk_faults)
        self._faults = faults
        self._journal = journal
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started: Future[None] = Future()
        self._is_over = threading.Event()
        self.server: BrokerServer
        self._interceptor: Interceptor
        self._loop: asyncio.AbstractEventLoop
        self._ending: asyncio.Future[bool]  # True: cleanly

    # From outside

    def start(self) -> None:
        """Returns when clients can connect; raises what kept the broker from starting."""
        self._thread.start()
        self._started.result(START_SECONDS_MAX)

    def stop(self) -> None:
        """Cleanly: everything flushed, files closed. Requests that wait for something get no reply."""
        self._end(is_clean=True)

    def kill(self) -> None:
        """As kill -9 does: what the kernel has it keeps, all else is gone."""
        self.begin_kill()
        self._end(is_clean=False)

    def begin_kill(self) -> None:
        """No request is taken any more, not even by a broker that comes out of a freeze only to die."""
        self._interceptor.is_dead = True

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def soon(self, callback: Callable[[], object]) -> bool:
        """On the loop, without waiting for it; False if the broker is down."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def call(self, function: Callable[[BrokerThread], Result]) -> Result:
        async def call() -> Result:
            return function(self)

        return self.run(call)

    def run(self, function: Callable[[], Awaitable[Result]]) -> Result:
        """Await something on the loop, and return or raise what comes of it."""
        done: Future[Result] = Future()
        deadline = time.monotonic() + CALL_SECONDS_MAX
        self.soon(lambda: self._loop.create_task(_settle(function, done)))  # which lets no error out
        while not wait([done], _LOOK_SECONDS).done:
            if self.is_over:
                raise BrokerDownError("the broker is down")
            if time.monotonic() > deadline:
                raise BrokerDownError(f"the broker does not answer within {CALL_SECONDS_MAX:.0f} s{self._where()}")
        return done.result()

    def _end(self, *, is_clean: bool) -> None:
        self.soon(lambda: self._finish(is_clean))
        self._thread.join(STOP_SECONDS_MAX if is_clean else KILL_SECONDS_MAX)
        if self._thread.is_alive():
            self._disk.cut_off()  # ends what waits for a slow disk
            self._thread.join(KILL_SECONDS_MAX if is_clean else STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise BrokerDownError(f"the broker does not end within {STOP_SECONDS_MAX:.0f} s{self._where()}")

    def _finish(self, is_clean: bool) -> None:
        if not self._ending.done():
            self._ending.set_result(is_clean)

    def _where(self) -> str:
        """Where the broker's thread is, for whoever has to find out why it hangs."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "; its thread is here:\n" + "".join(traceback.format_stack(frame))

    # In the thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._loop = runner.get_loop()
                self._loop.set_exception_handler(self._on_exception)
                self._loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix=f"{self._name}-work"))
                runner.run(self._live())
        except BaseException as error:  # a thread must not die in silence: the test is told
            if self._started.done():
                self._journal.note_failure(error)
            else:
                self._started.set_exception(error)
        finally:
            self._is_over.set()

    async def _live(self) -> None:
        self._ending = self._loop.create_future()
        self.server = BrokerServer(
            self._config,
            disk=self._disk,
            clock=self._clock,
            on_failure=self._on_failure,
            intercept=self._intercept,
            gateway=Gateway,
        )
        await self.server.start()
        self._director = Director(self.server.broker)
        self._director.start()
        self.server.on_stop(self._director.stop)
        self.trust_clock()
        self._started.set_result(None)
        if await self._ending:
            await self.server.stop(drain_seconds=0)
        else:
            await self._die()

    def _intercept(self, service: Service) -> Service:
        self._interceptor = Interceptor(service, lambda: self.server.broker, self._faults)
        return self._interceptor

    async def _die(self) -> None:
        """Nothing reaches the disk any more; then the rest goes, as with a process."""
        self._disk.cut_off()
        self._director.abandon()
        await self.server.kill()

    def _on_failure(self) -> None:
        assert self.server.failure is not None
        self._journal.note_failure(self.server.failure)
        self._finish(is_clean=True)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        if not self._ending.done():
            self._journal.note_failure(error)

    # On the loop

    def drop_connections(self, client_id: str | None) -> int:
        cut = [one for one in self.server.net.connections if client_id in (None, one.client_id)]
        for connection in cut:
            connection.abort()
        return len(cut)

    def release(self, fault: Fault) -> None:
        self._interceptor.release(fault)

    def trust_clock(self) -> None:
        """The broker does not delete by a clock that has jumped. This one jumps because a test wants it to."""
        self.server.broker.clock_trust.trust()

    def stop_listening(self) -> None:
        self.server.net.stop_listening()

    async def _listen(self) -> None:
        for address in self.server.addresses:
            await self.server.net.listen(address.host, address.port)

    def listen_again(self) -> None:
        if not self.is_over:
            self.run(self._listen)


async def _settle(function: Callable[[], Awaitable[Result]], done: Future[Result]) -> None:
    try:
        done.set_result(await function())
    except asyncio.CancelledError:
        done.set_exception(BrokerDownError("the broker ended in the middle of this"))
    except BaseException as error:  # it belongs to whoever waits in another thread
        done.set_exception(error)
