"""One simulated life of a broker, given by a seed: clients, a nemesis with moods of its own, then calm, then judgement.

Every seed draws which faults there are, how often, and how fast disk and network are (a swarm): a nemesis that does
everything a little finds much less than one that does few things a lot.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from clarion.broker.config import BrokerConfig, Durability, ListenerConfig
from clarion.broker.limits import Limits
from clarion.cluster.coordination import OutcomeUnknownError
from clarion.groups.config import GroupConfig
from tests.history import Send, anomalies
from tests.sim.clients import Committer, Consumer, Producer, Violation, World, make_topic
from tests.sim.group_members import classic_group, consumer_group
from tests.sim.inspector import Inspector
from tests.sim.link import Link
from tests.sim.listening import Listening
from tests.sim.loop import SimLoop
from tests.sim.machine import Machine
from tests.sim.network import Network
from tests.sim.queue_members import LOCK_MS, Queue, queue_members
from tests.sim.topic_owner import TopicOwner

CHAOS_SECONDS = 20.0
CALM_SECONDS = 60.0  # virtual: far more than anybody needs to finish
QUEUE_LEFT = "not everything in the queue was worked off in the end"
FAULTS = (
    "kill",
    "power",
    "crash_at_write",
    "power_at_write",
    "eio",
    "eio_anywhere",
    "read_error",
    "rot",
    "full",
    "clock",
    "reset",
    "hold",
    "freeze",
    "disk_speed",
    "stop",
)
NOT_FOR_PAGE_CACHE = ("power", "power_at_write", "eio", "eio_anywhere")
# What can be made anew from the log: a bit that flips in it must cost nothing but time.
REPLACEABLE = (".index", ".timeindex", "leader-epoch-checkpoint")


PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, ImportError)


S = TypeVar("S", bound="Swarm")


class DoesNotStart(Exception):
    """By a mistake in the program, be it the broker's or that of a rule's replacement in a test."""


@dataclass(frozen=True)
class Swarm:
    """The mood of one seed."""

    faults: tuple[str, ...]
    gap_seconds: tuple[float, float]
    down_seconds: tuple[float, float]
    latency_seconds: tuple[float, float]
    thread_seconds: tuple[float, float]
    durability: Durability
    segment_bytes: int
    producers: int
    window: int
    send_seconds: tuple[float, float]
    checkpoint_seconds: float
    owners: int = 0
    owner_seconds: tuple[float, float] = (0.0, 0.1)
    classic_members: int = 0
    consumer_members: int = 0
    store_losses: float = 0.0
    queue_members: int = 0
    deliveries_max: int = 5

    @classmethod
    def draw(cls, chance: random.Random) -> Swarm:
        durability = chance.choice((Durability.FSYNC, Durability.FSYNC, Durability.PAGE_CACHE))
        return cls(
            faults=_faults(chance, durability),
            gap_seconds=chance.choice(((0.05, 0.5), (0.3, 3.0), (2.0, 6.0))),
            down_seconds=chance.choice(((0.01, 0.1), (0.2, 2.0))),
            latency_seconds=chance.choice(((0.0001, 0.001), (0.001, 0.02), (0.01, 0.2))),
            thread_seconds=chance.choice(((0.0001, 0.002), (0.002, 0.05), (0.05, 0.4))),
            durability=durability,
            segment_bytes=chance.choice((1500, 6000, 1 << 20)),
            producers=chance.randrange(1, 4),
            window=chance.randrange(1, 6),
            send_seconds=chance.choice(((0.0, 0.02), (0.0, 0.1), (0.0, 0.5))),
            checkpoint_seconds=chance.choice((0.5, 3.0, 30.0)),
            owners=chance.choice((0, 1, 2)),
            owner_seconds=chance.choice(((0.0, 0.02), (0.0, 0.3))),
            classic_members=chance.choice((0, 0, 1, 3)),
            consumer_members=chance.choice((0, 0, 1, 3)),
            store_losses=chance.choice((0.0, 0.0, 0.02, 0.1)),
        )

    @property
    def odd_times(self) -> tuple[int, ...]:
        """What some clients put in the place of a time: none, what others make of none, one from 1970.

        The last is kept only for the grace period, which is over where the clock jumps.
        """
        return (-1, 0) if "clock" in self.faults else (-1, 0, 1000)


def with_queue(swarm: S, seed: int) -> S:
    """Every fourth has a queue. Drawn apart: what else a seed draws is as it was before there were queues."""
    chance = random.Random(f"queue of {seed}")
    return replace(swarm, queue_members=chance.choice((0, 0, 0, 3)), deliveries_max=chance.choice((5, 50)))


def _faults(chance: random.Random, durability: Durability) -> tuple[str, ...]:
    possible = list(FAULTS)
    if durability is Durability.PAGE_CACHE:
        # It promises nothing about power; and what a failed sync dropped from the page cache it has acknowledged.
        possible = [one for one in possible if one not in NOT_FOR_PAGE_CACHE]
    return tuple(chance.sample(possible, chance.randrange(1, 5)))


@dataclass
class Report:
    seed: int
    swarm: Swarm
    digest: str = ""
    events: int = 0
    virtual_seconds: float = 0.0
    faults: int = 0
    boots: int = 0
    acked: int = 0
    violations: list[str] = field(default_factory=list)  # promises that were broken
    errors: list[str] = field(
        default_factory=list
    )  # exceptions that nobody expected: a mistake, but nobody was lied to
    lines: list[str] | None = None

    @property
    def is_clean(self) -> bool:
        return not self.violations and not self.errors

    def __str__(self) -> str:
        shown = "\n  ".join([*self.violations[:10], *self.errors[:10]])
        return (
            f"seed {self.seed}, {self.boots} boots, {self.faults} faults, {self.acked} acked\n{self.swarm}\n  {shown}"
        )


def run(seed: int, *, keep_lines: bool = False, swarm: Swarm | None = None) -> Report:
    """Live it once."""
    return live(lambda: Life(seed, swarm, keep_lines))


def live(begin: Callable[[], Life]) -> Report:
    gc.disable()  # collecting a dead process's coroutines would run their `finally`s in the middle of the life
    gc.freeze()  # what was there before it, which is most, need not be looked at when it is over
    try:
        return _lived(begin())
    finally:
        _collect_the_dead()
        gc.unfreeze()
        gc.enable()


def _lived(life: Life) -> Report:
    with Listening(life.loop):
        try:
            return life.run()
        finally:
            life.bury()


def _collect_the_dead() -> None:
    """What dead processes were doing ends now, and may complain that its loop is gone."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
        gc.collect()  # what a `finally` had still referred to
    finally:
        sys.unraisablehook = hook


class Life:
    def __init__(self, seed: int, swarm: Swarm | None, keep_lines: bool) -> None:
        self.swarm = swarm or with_queue(self.draw(random.Random(seed)), seed)
        self.loop = SimLoop(seed, thread_seconds=self.swarm.thread_seconds)
        self.network = Network(self.loop, self.swarm.latency_seconds)
        self.report = Report(seed, self.swarm)
        if keep_lines:
            self.loop.trace.lines = self.report.lines = []
        self._settle()

    @staticmethod
    def draw(chance: random.Random) -> Swarm:
        return Swarm.draw(chance)

    def _settle(self) -> None:
        """Who lives here."""
        self.machine = Machine(self.loop, config_for(self.swarm))
        self.machines = [self.machine]
        self.world = World(self.loop, "t", partitions=2)
        self.nemesis = Nemesis(self)

    def run(self) -> Report:
        report, loop = self.report, self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live())
        except Violation as violation:
            report.violations.append(str(violation))
        except DoesNotStart as error:
            report.errors.append(str(error))
        report.violations += [str(one) for one in anomalies(self.world.history)]
        # An assertion is a promise that the code made to itself; whoever breaks it is found out by it.
        report.violations += [one for one in loop.errors if "AssertionError" in one]
        report.errors += [one for one in loop.errors if "AssertionError" not in one]
        report.digest, report.events = loop.trace.digest, loop.trace.count
        report.virtual_seconds, report.boots = loop.time(), sum(one.boots for one in self.machines)
        report.acked = sum(isinstance(one, Send) and one.offset is not None for one in self.world.history)
        return report

    def bury(self) -> None:
        for machine in self.machines:
            machine.drive.is_off = True
        self.loop.set_exception_handler(lambda loop, context: None)
        asyncio.set_event_loop(None)
        self.loop.close()

    async def _live(self) -> None:
        world, swarm = self.world, self.swarm
        await self.machine.boot()
        self.machine.store_losses = swarm.store_losses
        settings = {"segment_bytes": str(swarm.segment_bytes), "index_interval_bytes": "200"}
        chaos = self._task(self.nemesis.rage())
        producers = [
            Producer(world, f"p{number}", swarm.window, swarm.send_seconds) for number in range(swarm.producers)
        ]
        busy = [self._task(make_topic(world, **settings)), *(self._task(one.run()) for one in producers)]
        owners = [
            TopicOwner(world, f"owned{number}", swarm.owner_seconds, swarm.odd_times) for number in range(swarm.owners)
        ]
        busy += [self._task(one.run()) for one in owners]
        members = classic_group(world, "classic", swarm.classic_members)
        members += consumer_group(world, "consumers", swarm.consumer_members)
        busy += [self._task(one.run()) for one in members]
        others = [
            self._task(Inspector(self.machine).watch()),
            self._task(Consumer(world, "follower").follow()),
            self._task(Committer(world, "g").run()),
        ]
        queue = Queue(world, "queue", swarm.deliveries_max, leader=lambda _: Link.open())
        others += [self._task(one.run()) for one in queue_members(queue, swarm.queue_members)]
        await asyncio.sleep(CHAOS_SECONDS)
        chaos.cancel()
        raise_first([chaos])
        await self.nemesis.calm_down()
        world.is_calm = True
        await self._or_violation(asyncio.gather(*busy), CALM_SECONDS, "not every message was acknowledged in the end")
        if swarm.queue_members:
            working_off = self._task(queue.worked_off())
            await asyncio.wait([working_off, *others], timeout=CALM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            raise_first(others)
            await self._or_violation(working_off, 0.1, QUEUE_LEFT)
        for one in others:
            one.cancel()
        raise_first(others)
        await self._or_violation(
            self._task(Consumer(world, "final").read_to_end()), CALM_SECONDS, "the log cannot be read to its end"
        )

    def _task(self, work) -> asyncio.Task:
        return self.loop.create_task(work)

    @staticmethod
    async def _or_violation(work: asyncio.Future, seconds: float, what: str) -> None:
        try:
            await asyncio.wait_for(work, seconds)
        except TimeoutError:
            raise Violation(what) from None


def config_for(swarm: Swarm) -> BrokerConfig:
    return BrokerConfig(
        data_dir="/data",
        listeners=(ListenerConfig(host="broker", port=9092),),
        durability=swarm.durability,
        offsets_partitions=2,
        share_state_partitions=2,
        share_updates_per_snapshot=7,
        checkpoint_seconds=swarm.checkpoint_seconds,
        retention_check_seconds=1.0,
        compaction_check_seconds=0.5,
        groups=GroupConfig(
            initial_rebalance_delay_ms=50,
            share_auto_offset_reset="earliest",
            share_record_lock_duration_ms=LOCK_MS,
            share_delivery_count_limit=swarm.deliveries_max,
        ),
        limits=Limits(open_files_max=64),
    )


class Nemesis:
    """Does harm as the swarm says, and in the end puts everything right again."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._loop = life.loop
        self._machine = life.machine
        self._swarm = life.swarm

    async def rage(self) -> None:
        while True:
            await self._pause(self._swarm.gap_seconds)
            fault = self._loop.random.choice(self._swarm.faults)
            self._loop.trace.note("fault", fault)
            self._life.report.faults += 1
            await getattr(self, f"_{fault}")()

    async def calm_down(self) -> None:
        """Room on the disk, fast wires, and a broker that runs and has lost no partition to a disk error."""
        self._machine.drive.heal()
        self._life.network.latency_seconds = (0.0001, 0.001)
        self._loop.thread_seconds = (0.0001, 0.002)
        self._machine.store_losses = 0.0  # behind that: the store's answers take as long as threads do when it is set
        if self._machine.is_up and not self._machine.is_serving:
            self._machine.kill()  # the time was over in the middle of a start, or of a stop
        if self._machine.is_up and any(one.log.failed for one in self._machine.server.broker.partitions):
            self._end_after_failed_log()
        if not self._machine.is_up:
            await self.restart()

    def _end_after_failed_log(self) -> None:
        """After a failed sync the page cache cannot be trusted, so the machine goes too, unless all is in it alone."""
        if self._swarm.durability is Durability.FSYNC:
            self._machine.cut_power()
        else:
            self._machine.kill()

    async def _kill(self) -> None:
        if self._machine.is_up:
            self._machine.kill()
        await self.restart()

    async def _power(self) -> None:
        if self._machine.is_up:
            self._machine.cut_power()
        await self.restart()

    async def _crash_at_write(self) -> None:
        await self._crash_at(self._machine.kill)

    async def _power_at_write(self) -> None:
        await self._crash_at(self._machine.cut_power)

    async def _crash_at(self, how: Callable[[], None]) -> None:
        """Die before one of the next operations, and perhaps again while recovering from that."""
        if self._machine.is_up:
            self._machine.crash_at_operation(self._loop.random.randrange(1, 40), how)
            await asyncio.sleep(self._loop.random.uniform(0.05, 1.0))
        await self.restart(crash_again=how if self._loop.random.random() < 0.3 else None)

    async def _eio(self) -> None:
        """A sync fails, which takes a partition offline; later the broker, or the whole machine, starts anew."""
        if self._machine.is_up:
            self._machine.drive.fail_when(lambda what: what.kind == "sync" and what.path.endswith(".log"), errno.EIO)
            await asyncio.sleep(self._loop.random.uniform(0.1, 1.0))
        if self._machine.is_up:
            self._loop.random.choice((self._machine.kill, self._machine.cut_power))()
        await self.restart()

    async def _eio_anywhere(self) -> None:
        """Something that is written, synced or renamed fails; then the broker, or the whole machine, starts anew."""
        if self._machine.is_up:
            kind = self._loop.random.choice(("write", "sync", "sync_folder", "rename", "create", "truncate", "remove"))
            self._machine.drive.fail_when(lambda what: what.kind == kind, errno.EIO)
            await asyncio.sleep(self._loop.random.uniform(0.1, 1.0))
        if self._machine.is_up:
            self._loop.random.choice((self._machine.kill, self._machine.cut_power))()
        await self.restart()

    async def _read_error(self) -> None:
        suffix = self._loop.random.choice((".log", ".index", ".timeindex"))
        self._machine.drive.fail_read_when(lambda path: path.endswith(suffix))

    async def _rot(self) -> None:
        """While the broker is down a bit flips in a file that can be made anew."""
        if self._machine.is_up:
            self._machine.kill()
        drive = self._machine.drive
        files = [path for path in drive.files() if path.endswith(REPLACEABLE) and drive.size(path)]
        if files:
            path = self._loop.random.choice(files)
            drive.flip_bit(path, self._loop.random.randrange(8 * drive.size(path)))
            self._loop.trace.note("rot", path)
        await self.restart()

    async def _hold(self) -> None:
        self._life.network.hold(self._loop.random.randrange(1 << 20), self._loop.random.uniform(0.1, 8.0))

    async def _freeze(self) -> None:
        if self._machine.is_up:
            await self._machine.freeze(self._loop.random.choice((0.05, 1.0, 5.0)))

    async def _disk_speed(self) -> None:
        self._loop.thread_seconds = self._loop.random.choice(((0.0001, 0.002), (0.01, 0.1), (0.1, 1.0)))

    async def _full(self) -> None:
        self._machine.drive.is_full = True
        await asyncio.sleep(self._loop.random.uniform(0.05, 2.0))
        self._machine.drive.is_full = False

    async def _clock(self) -> None:
        self._machine.clock.skew_ms = self._loop.random.choice((-86_400_000, -1000, 0, 500, 1_800_000))

    async def _reset(self) -> None:
        self._life.network.reset_connections()

    async def _stop(self) -> None:
        """A clean stop, and a start that trusts it."""
        if self._machine.is_up:
            await self._machine.stop()
        await self.restart()

    async def restart(self, crash_again: Callable[[], None] | None = None) -> None:
        await self._pause(self._swarm.down_seconds)
        while not self._machine.is_up:
            starting = self._machine.boot()
            if crash_again is not None:
                self._machine.crash_at_operation(self._loop.random.randrange(1, 60), crash_again)
                crash_again = None
            await self._started(starting)

    async def _started(self, starting: asyncio.Future) -> None:
        """Wait until it serves or has died; refusing to start is right with a full disk or a silent store."""
        while self._machine.is_up and not starting.done():
            await asyncio.sleep(0.01)
        if not starting.done() or starting.cancelled():
            return
        error = starting.exception()
        if error is None or not self._machine.is_up:
            return
        if isinstance(error, PROGRAMMING_ERRORS):
            raise DoesNotStart(f"the broker does not start: {error!r}") from error
        if not isinstance(error, OSError | OutcomeUnknownError):
            raise Violation(f"the broker does not start: {error!r}")
        self._machine.kill()
        self._machine.drive.is_full = False
        await self._pause(self._swarm.down_seconds)

    async def _pause(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._loop.random.uniform(*seconds))


def raise_first(tasks: list[asyncio.Task]) -> None:
    for one in tasks:
        if one.done() and not one.cancelled() and one.exception() is not None:
            raise one.exception()
