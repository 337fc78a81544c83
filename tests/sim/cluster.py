"""One simulated life of a whole cluster, given by a seed: brokers on one store, links that fail, clients, judgement.

Every machine has a nemesis of its own, which does to it what can be done to a single broker, and besides cuts it off
from the others, from its clients or from the store, or lets it stand still for longer than its lease lasts.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from functools import partial

from clarion.broker.config import BrokerConfig, Durability, ListenerConfig
from clarion.cluster.schema import PARTITIONS, broker_key, read_partition
from clarion.cluster.simulated_store import SimulatedService
from clarion.log.checkpoints import CLEAN_SHUTDOWN
from clarion.wire.batch import read_header
from tests.sim.clients import Committer, Consumer, Producer, Violation, World, make_topic
from tests.sim.cluster_clients import Asker, Routes, TopicThatComesAndGoes
from tests.sim.cluster_inspector import ClusterInspector
from tests.sim.disk import SimDisk
from tests.sim.group_members import Member, classic_group, consumer_group
from tests.sim.link import PORT
from tests.sim.machine import Drive, Machine
from tests.sim.queue_members import Queue, queue_members
from tests.sim.scenario import QUEUE_LEFT, Life, Nemesis, Report, Swarm, config_for, live, raise_first

CHAOS_SECONDS = 40.0
CALM_SECONDS = 120.0
LEASE_SECONDS = 6.0
REPLICAS = 3
MESSAGES_MAX = 200  # of one producer to one partition
FAULTS = (
    "kill",
    "power",
    "crash_at_write",
    "power_at_write",
    "eio",
    "full",
    "clock",
    "reset",
    "hold",
    "freeze",
    "disk_speed",
    "stop",
)
CLUSTER_FAULTS = ("isolate", "cut_one_way", "cut_from_clients", "store_away", "long_freeze", "freeze_to_the_edge")
# What others make up for, as long as they have everything: it happens to one broker of a cluster, and to no other.
LOSSES = ("damage", "older_copy", "new_disk")
NOT_FOR_PAGE_CACHE = ("power", "power_at_write", "eio")


@dataclass(frozen=True)
class ClusterSwarm(Swarm):
    """The mood of one seed."""

    brokers: int = 3
    partitions: int = 2
    victim: int = 0  # the broker that loses what it has, in the ways of `LOSSES`; 0: none does

    @classmethod
    def draw(cls, chance: random.Random) -> ClusterSwarm:
        base = Swarm.draw(chance)
        possible = [*FAULTS, *CLUSTER_FAULTS]
        if base.durability is Durability.PAGE_CACHE:
            possible = [one for one in possible if one not in NOT_FOR_PAGE_CACHE]
        swarm = cls(**{**base.__dict__, "faults": tuple(chance.sample(possible, chance.randrange(1, 5)))})
        return replace(
            swarm,
            gap_seconds=chance.choice(((0.3, 3.0), (2.0, 10.0), (5.0, 20.0))),
            down_seconds=chance.choice(((0.1, 1.0), (1.0, 10.0))),
            latency_seconds=chance.choice(((0.0001, 0.001), (0.001, 0.02))),
            thread_seconds=chance.choice(((0.0001, 0.002), (0.002, 0.05))),
            store_losses=chance.choice((0.0, 0.0, 0.02)),
            send_seconds=chance.choice(((0.0, 0.05), (0.0, 0.2), (0.0, 0.5))),
            brokers=chance.choice((3, 3, 3, 5)),
            partitions=chance.choice((1, 2, 4)),
            owners=chance.choice((0, 0, 1, 2)),
            victim=chance.choice((0, 0, 1, 2, 3)),
        )


def run_cluster(seed: int, *, keep_lines: bool = False, swarm: ClusterSwarm | None = None) -> Report:
    """Live it once."""
    return live(lambda: ClusterLife(seed, swarm, keep_lines))


class ClusterLife(Life):
    swarm: ClusterSwarm

    def _settle(self) -> None:
        swarm = self.swarm
        self.registry = SimulatedService()
        self.hosts = [Host(self, number) for number in range(1, swarm.brokers + 1)]
        self.machines = [host.machine for host in self.hosts]
        self.world = World(self.loop, "t", partitions=swarm.partitions)
        self.routes = Routes(self.world, [host.port for host in self.hosts])

    @staticmethod
    def draw(chance: random.Random) -> ClusterSwarm:
        return ClusterSwarm.draw(chance)

    async def _boot(self) -> None:
        assert self.registry.leases is not None  # made here: the store outlives every broker
        await asyncio.gather(*(host.machine.boot() for host in self.hosts))

    async def _live(self) -> None:
        world, swarm, routes = self.world, self.swarm, self.routes
        await self._boot()
        settings = {"segment_bytes": str(swarm.segment_bytes), "index_interval_bytes": "200"}
        await self._or_violation(
            self._task(make_topic(world, connect=routes.anybody, replication_factor=REPLICAS, **settings)),
            CALM_SECONDS,
            "no topic can be made",
        )
        for host in self.hosts:
            host.machine.store_losses = swarm.store_losses
        chaos = [self._task(host.nemesis.rage()) for host in self.hosts]
        busy = [
            self._task(self._producer(f"p{number}-{index}", index).run())
            for number in range(swarm.producers)
            for index in range(swarm.partitions)
        ]
        busy += [self._task(one.run()) for one in self._members()]
        busy += [
            self._task(TopicThatComesAndGoes(world, routes, f"owned{number}", REPLICAS).run())
            for number in range(swarm.owners)
        ]
        others = [
            *(self._task(self._consumer("follower", index).follow()) for index in range(swarm.partitions)),
            self._task(Committer(world, "g", alone=partial(routes.coordinator_alone, "g")).run()),
            self._task(Asker(world, routes, "g").run()),
            self._task(ClusterInspector(self.registry, {one.node_id: one.machine for one in self.hosts}).watch()),
        ]
        queue = Queue(
            world,
            "queue",
            swarm.deliveries_max,
            leader=routes.leader,
            alone=partial(routes.coordinator_alone, "queue"),
            anybody=routes.anybody,
        )
        others += [self._task(one.run()) for one in queue_members(queue, swarm.queue_members)]
        await asyncio.sleep(CHAOS_SECONDS)
        for one in chaos:
            one.cancel()
        raise_first(chaos)
        await self._calm_down()
        await self._or_violation(asyncio.gather(*busy), CALM_SECONDS, "not every message was acknowledged in the end")
        if swarm.queue_members:
            working_off = self._task(queue.worked_off())
            await asyncio.wait([working_off, *others], timeout=CALM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            raise_first(others)
            await self._or_violation(working_off, 0.1, QUEUE_LEFT)
        for one in others:
            one.cancel()
        raise_first(others)
        await self._judge()

    async def _calm_down(self) -> None:
        self.network.mend()
        await asyncio.gather(*(host.nemesis.calm_down() for host in self.hosts))
        self.world.is_calm = True

    async def _judge(self) -> None:
        """What is in the logs in the end, and that it is everywhere."""
        swarm = self.swarm
        final = [self._task(self._consumer("final", index).read_to_end()) for index in range(swarm.partitions)]
        await self._or_violation(asyncio.gather(*final), CALM_SECONDS, "the log cannot be read to its end")
        await self._or_violation(
            self._task(self._until_replicated()), CALM_SECONDS, "the replicas are not in sync in the end"
        )
        self._compare_replicas()

    def _members(self) -> list[Member]:
        world, swarm, alone = self.world, self.swarm, self.routes.coordinator_alone
        return [
            *classic_group(world, "classic", swarm.classic_members, partial(alone, "classic")),
            *consumer_group(world, "consumers", swarm.consumer_members, partial(alone, "consumers")),
        ]

    def _producer(self, name: str, index: int) -> Producer:
        swarm = self.swarm
        return Producer(
            self.world,
            name,
            swarm.window,
            swarm.send_seconds,
            connect=partial(self.routes.leader, index),
            partitions=[index],
            messages_max=MESSAGES_MAX,
        )

    def _consumer(self, name: str, index: int) -> Consumer:
        return Consumer(self.world, f"{name}-{index}", connect=partial(self.routes.leader, index), partitions=[index])

    # In the end

    async def _until_replicated(self) -> None:
        while not await self._is_replicated():
            await self.world.pause(0.1, 0.5)

    async def _is_replicated(self) -> bool:
        try:
            topic = (await self.routes.metadata()).topics[0]
        except ConnectionError:
            return False
        return all(len(one.isr_nodes) == len(one.replica_nodes) == REPLICAS for one in topic.partitions)

    def _compare_replicas(self) -> None:
        """Byte for byte: all is committed, and all is everywhere."""
        for index in range(self.swarm.partitions):
            contents = [content for host in self.hosts if (content := host.content("t", index))]
            if len(contents) not in (0, REPLICAS) or len(set(contents)) > 1:
                lengths = [len(one) for one in contents]
                raise Violation(f"the replicas of t-{index} differ; they have {lengths} bytes")


class Host:
    """One machine of the cluster with what is done to it."""

    def __init__(self, life: ClusterLife, node_id: int) -> None:
        self.loop, self.network, self.report = life.loop, life.network, life.report
        self.registry = life.registry
        self.node_id = node_id
        self.swarm = life.swarm
        if node_id == life.swarm.victim:
            self.swarm = replace(life.swarm, faults=(*life.swarm.faults, *LOSSES))
        self.port = PORT + node_id
        self.name = f"broker-{node_id}"
        self.others = [f"broker-{one}" for one in range(1, life.swarm.brokers + 1) if one != node_id]
        self.machine = Machine(life.loop, self._config(), name=self.name, registry=life.registry)
        self.nemesis = ClusterNemesis(self)

    def _config(self) -> BrokerConfig:
        return replace(
            config_for(self.swarm),
            node_id=self.node_id,
            cluster="simulated",
            session_seconds=LEASE_SECONDS,
            keeps_events=False,
            listeners=(ListenerConfig(host=self.name, port=self.port),),
        )

    def content(self, topic: str, index: int) -> bytes:
        """All that it has of a partition. Where one file ends and the next begins is every broker's own matter."""
        drive, folder = self.machine.drive, f"/data/{topic}-{index}/"
        files = sorted(path for path in drive.files() if path.startswith(folder) and path.endswith(".log"))
        return b"".join(drive.content(path) for path in files)


class ClusterNemesis(Nemesis):
    _life: Host

    def __init__(self, host: Host) -> None:
        super().__init__(host)  # type: ignore[arg-type]  # of a life it needs what a host has
        self._copy: SimDisk | None = None  # of the disk, from an earlier stop

    async def _isolate(self) -> None:
        """From the other brokers, not from its clients: a leader that does not know that it is one no longer."""
        await self._cut([(self._life.name, one) for one in self._life.others])

    async def _cut_one_way(self) -> None:
        """Its requests leave, and no answer comes; or the other way round."""
        links = [(one, self._life.name) for one in self._life.others]
        if self._loop.random.random() < 0.5:
            links = [(target, source) for source, target in links]
        await self._cut(links, both_ways=False)

    async def _cut_from_clients(self) -> None:
        await self._cut([(self._life.name, "client")])

    async def _cut(self, links: list[tuple[str, str]], *, both_ways: bool = True) -> None:
        network = self._life.network
        for source, target in links:
            network.cut(source, target)
            if both_ways:
                network.cut(target, source)
        await asyncio.sleep(self._loop.random.uniform(0.2, 2.5 * LEASE_SECONDS))
        network.mend()

    async def _store_away(self) -> None:
        before, self._machine.store_losses = self._machine.store_losses, 1.0
        try:
            await asyncio.sleep(self._loop.random.uniform(0.2, 2.5 * LEASE_SECONDS))
        finally:
            self._machine.store_losses = before

    async def _long_freeze(self) -> None:
        if self._machine.is_up:
            await self._machine.freeze(self._loop.random.uniform(0.5, 2.5) * LEASE_SECONDS)

    async def _freeze_to_the_edge(self) -> None:
        """For about as long as its lease lasts: it wakes up when others may lead, or are about to."""
        if self._machine.is_up:
            await self._machine.freeze(self._loop.random.uniform(0.8, 1.1) * LEASE_SECONDS)

    # Losses

    async def _damage(self) -> None:
        """A bit flips in the last file of a log. The start notices: it does not believe that the stop was clean."""
        await self._stopped()
        drive = self._machine.drive = self._machine.drive.reopened()
        last = {path.rpartition("/")[0]: path for path in drive.files() if path.endswith(".log")}  # names are sorted
        # Behind one that was sealed at the very end there is an empty one, and the start looks at that alone.
        written = [path for path in last.values() if drive.size(path)]
        if self._others_have_everything() and written:
            path = self._loop.random.choice(written)
            bit = self._covered_bit(drive.content(path))
            drive.flip_bit(path, bit)
            self._loop.trace.note("damage", path, bit)
            mark = f"/data/{CLEAN_SHUTDOWN}"
            if drive.exists(mark):
                drive.remove(mark)
        await self.restart()

    def _covered_bit(self, content: bytes) -> int:
        """One of which a checksum, or the next batch, tells that it is wrong: base offset and epoch have none."""
        chance, batches, at = self._loop.random, [], 0
        while at < len(content):
            batches.append((at, size := read_header(content, at).size_bytes))
            at += size
        begin, size = chance.choice(batches)
        return 8 * (begin + chance.choice((8, 9, 10, 11, *range(16, size)))) + chance.randrange(8)

    async def _older_copy(self) -> None:
        """What was in its folder at an earlier stop is put back, as if it were what it has now."""
        await self._stopped()
        before, self._copy = self._copy, self._machine.drive.power_loss()
        if before is not None and self._others_have_everything():
            self._loop.trace.note("older copy")
            self._put_in(before)
        await self.restart()

    async def _new_disk(self) -> None:
        await self._stopped()
        if self._others_have_everything():
            self._loop.trace.note("new disk")
            self._copy = None
            self._put_in(SimDisk())
        await self.restart()

    async def _stopped(self) -> None:
        if self._machine.is_up:
            await self._machine.stop()

    def _others_have_everything(self) -> bool:
        """Of every partition of which it has a replica: else what is lost here is lost. And nobody believes that this
        one lives: whoever of the others restarts meanwhile would no longer be needed for what it has."""
        node_id, registry = self._life.node_id, self._life.registry
        if registry.range(broker_key(node_id)).entries:
            return False
        states = [read_partition(one.value, one.mod_revision) for one in registry.range(PARTITIONS).entries]
        return all(set(one.in_sync) - {node_id} for one in states if node_id in one.replicas)

    def _put_in(self, content: SimDisk) -> None:
        drive = Drive(self._loop)
        drive.root = content.root
        self._machine.drive = drive
