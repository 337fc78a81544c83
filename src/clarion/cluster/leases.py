"""When leases end: the deadlines of those that are held, on the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context

from clarion.cluster.coordination import LeaseId, LeaseNotFoundError, StoreFailedError
from clarion.world.tasks import start_task


class LeaseClock:
    def __init__(self, end: Callable[[LeaseId], Awaitable[None]]) -> None:
        """`end` is awaited when a lease's time is over, on behalf of whoever made this clock."""
        self._end = end
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._ttls: dict[LeaseId, float] = {}
        self._timers: dict[LeaseId, asyncio.TimerHandle] = {}
        self._ending: dict[asyncio.Task[None], None] = {}

    def __contains__(self, lease: LeaseId) -> bool:
        return lease in self._ttls

    def start(self, lease: LeaseId, ttl_seconds: float) -> None:
        self._ttls[lease] = ttl_seconds
        self._timers[lease] = self._loop.call_later(ttl_seconds, self._expire, lease, context=self._context)

    def restart(self, lease: LeaseId) -> None:
        self.check(lease)
        self._timers.pop(lease).cancel()
        self.start(lease, self._ttls[lease])

    def check(self, lease: LeaseId) -> None:
        if lease not in self._ttls:
            raise LeaseNotFoundError(f"lease {lease} is over")

    def forget(self, lease: LeaseId) -> None:
        """From here on it counts as over, whenever its keys go."""
        if self._ttls.pop(lease, None) is not None:
            self._timers.pop(lease).cancel()

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ttls.clear()
        for task in list(self._ending):
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _expire(self, lease: LeaseId) -> None:
        self.forget(lease)
        task = start_task(self._run(lease), "end of a lease")
        self._ending[task] = None
        task.add_done_callback(self._ending.pop)

    async def _run(self, lease: LeaseId) -> None:
        try:
            await self._end(lease)
        except StoreFailedError:
            pass  # told to everybody already; the process ends
