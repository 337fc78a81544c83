"""A computer that runs one broker. Its process may be killed; its power may be cut; its disk and its clock may fail it.

After `kill` the page cache is still there; after `cut_power` only what was synced, and any part of the rest.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable

from clarion.broker.config import BrokerConfig
from clarion.broker.server import BrokerServer, OnFailure
from clarion.cluster import CoordinationStore
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore, Weather
from clarion.replication import LoopThreads
from tests.sim.disk import PowerLoss, SimDisk
from tests.sim.loop import PROCESS, SimLoop, Step

EPOCH_MS = 1_800_000_000_000
REGISTRY = "/data/registry.db"


class Process:
    """One life of the broker. All its callbacks know it, and do nothing once it is dead."""

    def __init__(self, host: str = "broker") -> None:
        self.host = host
        self.is_running = True
        self.is_frozen = False
        self.held: list[Step] = []  # what was due while it was frozen
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)


class Machine:
    def __init__(
        self, loop: SimLoop, config: BrokerConfig, *, name: str = "broker", registry: SimulatedService | None = None
    ) -> None:
        """`registry`: the store that several machines share."""
        self._loop = loop
        self._config = config
        self.name = name
        self.clock = SimClock(loop)
        self.drive = Drive(loop)
        self.registry = registry or SimulatedService()  # what it applied stays, whatever happens to the machine
        self._store: SimulatedStore | None = None
        self._store_losses = 0.0
        self.process: Process | None = None
        self.server: BrokerServer | None = None
        self.boots = 0
        self.is_stopping = False
        self._starting: asyncio.Future[None] | None = None
        self._next_crash: Callable[[], None] = self.kill
        self._graves: list[object] = []  # a dead process's objects must not be collected: that would run its `finally`s

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def is_serving(self) -> bool:
        """It has started, and was not told to stop."""
        starting = self._starting
        has_started = starting is not None and starting.done() and not starting.cancelled() and not starting.exception()
        return self.is_up and has_started and not self.is_stopping

    def boot(self) -> Awaitable[None]:
        """Start a broker on what the disk holds. The awaitable ends when it serves, or raises why it does not."""
        assert not self.is_up, "it runs already"
        self.boots += 1
        self.is_stopping = False
        self._loop.trace.note("boot", self.boots)
        self.drive = self.drive.reopened()
        self.drive.on_crash = lambda: self._next_crash()
        self.process = Process(self.name)
        randomness = SimRandomness(self._loop.random.randrange(1 << 62))
        self.server = BrokerServer(
            self._config,
            disk=self.drive,
            clock=self.clock,
            elapsed=self._loop.time,
            randomness=randomness,
            flush_threads=LoopThreads(),
            open_store=self._open_store,
        )
        starting = self._starting = self._loop.create_task(self.server.start(), context=self.process.context)
        self._graves.append((self.server, self.process, starting))
        return starting

    async def _open_store(self, on_failure: OnFailure) -> CoordinationStore:
        """As far away as a thread is; a crash may come before a commit, and between it and its answer."""
        drive = self.drive
        self._store = SimulatedStore(
            self.registry,
            self._loop.random,
            self._weather(),
            before_change=lambda: self._happen_to_store(drive, "write"),
            after_change=lambda: self._happen_to_store(drive, "commit"),
        )
        return self._store

    def _happen_to_store(self, drive: Drive, kind: str) -> None:
        try:
            drive.happen(kind, REGISTRY)
        except OSError:
            if not self._store_losses:
                raise  # else it is a store elsewhere, with a disk of its own

    @property
    def store(self) -> SimulatedStore:
        """This life's way to it."""
        assert self._store is not None
        return self._store

    @property
    def store_losses(self) -> float:
        """The share of requests to the store, and of its answers, that get lost."""
        return self._store_losses

    @store_losses.setter
    def store_losses(self, share: float) -> None:
        self._store_losses = share
        if self._store is not None:
            self._store.weather = self._weather()

    def _weather(self) -> Weather:
        """No request is late: a creation that arrives when the topic was made by another attempt, and deleted, would
        make it again. A broker's own store cannot do that, and one over a network needs a fence against it."""
        share = self._store_losses
        return Weather(delay_seconds=self._loop.thread_seconds, lost_requests=share, lost_replies=share)

    def kill(self) -> None:
        """SIGKILL: the page cache survives."""
        self._die("kill")

    def cut_power(self, *, is_worst: bool = False) -> None:
        """Of what was not synced any part may be left, in any order; in the worst case nothing."""
        self._die("power")
        self.drive = self.drive.after_power_loss(None if is_worst else self._loop.random)

    async def stop(self) -> None:
        """As SIGTERM does; it may be killed in the middle of it."""
        assert self.process is not None
        assert self.server is not None
        self._loop.trace.note("stop")
        self.is_stopping = True
        process = self.process
        stopping = self._loop.create_task(self.server.stop(drain_seconds=0.1), context=process.context)
        self._graves.append(stopping)
        while process.is_running and not stopping.done():
            await asyncio.sleep(0.01)
        if process.is_running:
            self._die("stopped")

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP and SIGCONT: what should have happened meanwhile happens afterwards, in its order."""
        process = self.process
        assert process is not None
        self._loop.trace.note("freeze", seconds)
        process.is_frozen = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._loop.thaw(process)

    def crash_at_operation(self, number: int, how: Callable[[], None]) -> None:
        """Die like that before the disk's so many-th operation from now."""
        self._next_crash = how
        self.drive.crash_at = len(self.drive.operations) + number

    def _die(self, how: str) -> None:
        assert self.process is not None
        self._loop.trace.note(how)
        self.process.is_running = False
        self.drive.is_off = True
        self._loop.network.forget(self.process, sends_on=how != "power")


class Drive(SimDisk):
    """The machine's disk: it notes what happens to it, tells when its crash point is reached, and is off after that."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop
        self.on_crash: Callable[[], None] = lambda: None
        self.is_off = False

    def happen(self, kind: str, path: str) -> None:
        if self.is_off:
            raise PowerLoss
        if kind != "read":
            self._loop.trace.note("disk", kind, path)
        try:
            super().happen(kind, path)
        except PowerLoss:
            self.on_crash()
            raise

    def reopened(self) -> Drive:
        """The same content for another process; the old one can do nothing to it any more."""
        self.is_off = True
        return self._with(self)

    def after_power_loss(self, chance: random.Random | None) -> Drive:
        self.is_off = True
        return self._with(self.power_loss(chance))

    def _with(self, content: SimDisk) -> Drive:
        drive = Drive(self._loop)
        drive.root = content.root
        drive.is_full = self.is_full
        return drive


class SimClock:
    """Wall time: what the loop says, and whatever the nemesis adds to it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms


class SimRandomness:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)
