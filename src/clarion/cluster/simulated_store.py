"""A coordination store in memory whose answers may be late or lost: for simulations, and for tests without a disk.

`SimulatedService` is the store itself: it outlives the processes that use it, and what it has applied stays.
`SimulatedStore` is one process's way to it. A process that dies on the way there has changed nothing; one that dies
on the way back has, and never heard of it. All chance comes from the generator that is given, all time from the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from clarion.cluster.coordination import (
    Change,
    Compare,
    Delete,
    Entry,
    LeaseId,
    LeaseNotFoundError,
    Operation,
    OutcomeUnknownError,
    Put,
    Range,
    Revision,
    StoreError,
    StoreFailedError,
    TransactionResult,
    check_size,
    decide,
)
from clarion.cluster.history import History
from clarion.cluster.leases import LeaseClock
from clarion.world.tasks import start_task

Result = TypeVar("Result")

_LOOK_SECONDS: Final = 0.05  # at whether a way that carried nothing is open again


class Chance(Protocol):
    """What this needs of `random.Random`; with a seed, the same things happen again."""

    def random(self) -> float: ...

    def uniform(self, a: float, b: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Weather:
    """What the way to the store is like."""

    delay_seconds: tuple[float, float] = (0.0, 0.0)  # each way
    lost_requests: float = 0.0  # as a share of all
    lost_replies: float = 0.0
    late_requests: float = 0.0  # of those that seemed lost: they arrive after all, when nobody waits for the answer
    timeout_seconds: float = 1.0  # after which a caller gives up


class SimulatedService:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.revision = Revision(0)
        self._next_lease = 1
        self._ttls: dict[LeaseId, float] = {}
        self._leases: LeaseClock | None = None
        self._history: History | None = None

    @property
    def history(self) -> History:
        """Made in the loop that uses it first."""
        if self._history is None:
            self._history = History(self.revision)
        return self._history

    @property
    def leases(self) -> LeaseClock:
        if self._leases is None:
            self._leases = LeaseClock(self._expired)
        return self._leases

    def copy(self) -> SimulatedService:
        """Another one that holds the same now."""
        other = SimulatedService()
        other.entries, other.revision = dict(self.entries), self.revision
        other._next_lease, other._ttls = self._next_lease, dict(self._ttls)
        return other

    def restart(self) -> None:
        """As the machine that runs it does: contents stay, the history is compacted, leases begin anew."""
        self._history = self._leases = None
        for lease, ttl_seconds in self._ttls.items():
            self.leases.start(lease, ttl_seconds)

    def range(self, prefix: str) -> Range:
        keys = sorted((key for key in self.entries if key.startswith(prefix)), key=str.encode)
        return Range(tuple(self.entries[key] for key in keys), self.revision)

    def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        check_size(compares, operations)
        change = decide(compares, operations, self.entries.get, self.revision)
        if change is None or not change.events:
            return TransactionResult(change is not None, self.revision)
        for operation in operations:
            if isinstance(operation, Put) and operation.lease is not None and operation.lease not in self._ttls:
                raise LeaseNotFoundError(f"lease {operation.lease} is over")
        self._apply(change)
        return TransactionResult(True, self.revision)

    def grant_lease(self, ttl_seconds: float) -> LeaseId:
        lease = LeaseId(self._next_lease)
        self._next_lease += 1
        self._ttls[lease] = ttl_seconds
        self.leases.start(lease, ttl_seconds)
        return lease

    def end_lease(self, lease: LeaseId) -> None:
        """Now, whoever still counts on it."""
        self.leases.forget(lease)
        if self._ttls.pop(lease, None) is None:
            return
        bound = [entry.key for entry in self.range("").entries if entry.lease == lease]
        if bound:
            change = decide((), [Delete(key) for key in bound], self.entries.get, self.revision)
            assert change is not None
            self._apply(change)

    async def _expired(self, lease: LeaseId) -> None:
        self.end_lease(lease)

    def _apply(self, change: Change) -> None:
        history = self.history  # which begins before this change
        for event in change.events:
            if event.entry is None:
                del self.entries[event.key]
            else:
                self.entries[event.key] = event.entry
        self.revision = change.revision
        history.add(change)


class SimulatedStore:
    def __init__(
        self,
        service: SimulatedService,
        chance: Chance,
        weather: Weather | None = None,
        *,
        before_change: Callable[[], None] = lambda: None,
        after_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_change` and `after_change` stand around every change where it is applied, and may raise."""
        self.weather = weather or Weather()
        self._service = service
        self._chance = chance
        self._before_change = before_change
        self._after_change = after_change
        self._is_closed = False
        self._late: dict[asyncio.Task[None], None] = {}

    async def get(self, key: str) -> Entry | None:
        return await self._ask(lambda: self._service.entries.get(key))

    async def range(self, prefix: str) -> Range:
        return await self._ask(lambda: self._service.range(prefix))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        check_size(compares, operations)
        return await self._ask(lambda: self._change(lambda: self._service.transact(compares, operations)))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        """Where nothing comes through it is silent, and tells everything later, in its order."""
        async with aclosing(self._service.history.watch(prefix, from_revision)) as changes:
            async for change in changes:
                await self._travel()
                while self.weather.lost_replies >= 1:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
                yield change

    async def compact(self, revision: int) -> None:
        await self._ask(lambda: self._service.history.compact(revision))

    async def grant_lease(self, ttl_seconds: float) -> LeaseId:
        return await self._ask(lambda: self._change(lambda: self._service.grant_lease(ttl_seconds)))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._ask(lambda: self._service.leases.restart(lease))

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._ask(lambda: self._change(lambda: self._service.end_lease(lease)))

    async def close(self) -> None:
        self._is_closed = True
        for task in list(self._late):
            task.cancel()
        if self._late:
            await asyncio.wait(self._late)

    async def _ask(self, serve: Callable[[], Result]) -> Result:
        if self._is_closed:
            raise StoreFailedError("the store was closed")
        await self._travel()
        if self._chance.random() < self.weather.lost_requests:
            if self._chance.random() < self.weather.late_requests:
                self._later(serve)
            raise await self._lost()
        answer = serve()
        await self._travel()
        if self._chance.random() < self.weather.lost_replies:
            raise await self._lost()
        return answer

    def _change(self, change: Callable[[], Result]) -> Result:
        self._before_change()
        done = change()
        self._after_change()
        return done

    async def _travel(self) -> None:
        await asyncio.sleep(self._chance.uniform(*self.weather.delay_seconds))

    async def _lost(self) -> OutcomeUnknownError:
        await asyncio.sleep(self.weather.timeout_seconds)
        return OutcomeUnknownError("no answer came in time")

    def _later(self, serve: Callable[[], object]) -> None:
        seconds = self._chance.uniform(0, 3 * self.weather.timeout_seconds)
        task = start_task(_after(seconds, serve), "a late answer")
        self._late[task] = None
        task.add_done_callback(self._late.pop)


async def _after(seconds: float, serve: Callable[[], object]) -> None:
    await asyncio.sleep(seconds)
    try:
        serve()
    except StoreError:
        pass  # nobody is left to hear of it
