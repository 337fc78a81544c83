"""One simulated life of a whole cluster, given by a seed: brokers on one store, links that fail, clients, judgement.

Every machine has a nemesis of its own, which does to it what can be done to a single broker, and besides cuts it off
from the others, from its clients or from the store, or lets it stand still for longer than its lease lasts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from clarion.broker.config import BrokerConfig, Durability, ListenerConfig
from clarion.cluster.simulated_store import SimulatedService
from clarion.model.errors import ErrorCode
from clarion.wire.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.sim.clients import Committer, Consumer, Producer, Violation, World, make_topic
from tests.sim.link import PATIENCE_SECONDS, PORT, Link
from tests.sim.machine import Machine
from tests.sim.scenario import Life, Nemesis, Report, Swarm, collect_the_dead, config_for, live, raise_first

CHAOS_SECONDS = 40.0
CALM_SECONDS = 120.0
LEASE_SECONDS = 6.0
REPLICAS = 3
MESSAGES_MAX = 200  # of one producer to one partition
# What ends with a broker that serves as before. A failed disk ends it for good, and is the single broker's story.
FAULTS = ("kill", "power", "crash_at_write", "power_at_write", "clock", "reset", "hold", "freeze", "disk_speed", "stop")
CLUSTER_FAULTS = ("isolate", "cut_one_way", "cut_from_clients", "store_away", "long_freeze")
NOT_FOR_PAGE_CACHE = ("power", "power_at_write")


@dataclass(frozen=True)
class ClusterSwarm(Swarm):
    """The mood of one seed."""

    brokers: int = 3
    partitions: int = 2

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
        )


def run_cluster(seed: int, *, keep_lines: bool = False, swarm: ClusterSwarm | None = None) -> Report:
    """Live it once."""
    report = live(ClusterLife(seed, swarm, keep_lines))
    collect_the_dead()
    return report


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

    async def _live(self) -> None:
        world, swarm, routes = self.world, self.swarm, self.routes
        assert self.registry.leases is not None  # made here: the store outlives every broker
        await asyncio.gather(*(host.machine.boot() for host in self.hosts))
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
        others = [
            *(self._task(self._consumer("follower", index).follow()) for index in range(swarm.partitions)),
            self._task(Committer(world, "g", alone=partial(routes.coordinator_alone, "g")).run()),
        ]
        await asyncio.sleep(CHAOS_SECONDS)
        for one in chaos:
            one.cancel()
        raise_first(chaos)
        self.network.mend()
        await asyncio.gather(*(host.nemesis.calm_down() for host in self.hosts))
        world.is_calm = True
        await self._or_violation(asyncio.gather(*busy), CALM_SECONDS, "not every message was acknowledged in the end")
        for one in others:
            one.cancel()
        raise_first(others)
        final = [self._task(self._consumer("final", index).read_to_end()) for index in range(swarm.partitions)]
        await self._or_violation(asyncio.gather(*final), CALM_SECONDS, "the log cannot be read to its end")
        await self._or_violation(
            self._task(self._until_replicated()), CALM_SECONDS, "the replicas are not in sync in the end"
        )
        self._compare_replicas()

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
        self.swarm = life.swarm
        self.node_id = node_id
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


class Routes:
    """How clients find who leads and who coordinates: by what a broker, any broker, tells them."""

    def __init__(self, world: World, ports: list[int]) -> None:
        self._world = world
        self._ports = ports

    async def anybody(self) -> Link:
        return await self._open(self._world.loop.random.choice(self._ports))

    async def metadata(self) -> MetadataResponse:
        link = await self.anybody()
        try:
            topics = (MetadataRequestTopic(name=self._world.topic),)
            return await link.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 7)
        finally:
            link.close()

    async def leader(self, index: int) -> Link:
        answer = await self.metadata()
        ports = {one.node_id: one.port for one in answer.brokers}
        leaders = {one.partition_index: one.leader_id for one in answer.topics[0].partitions}
        if (port := ports.get(leaders.get(index, -1))) is None:
            raise ConnectionError(f"nobody leads {index}")
        return await self._open(port)

    @asynccontextmanager
    async def coordinator_alone(self, group: str) -> AsyncIterator[Link]:
        link = await self.anybody()
        try:
            answer = await link.ask(FindCoordinatorRequest(key=group, key_type=0), 1)
        finally:
            link.close()
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionError("there is no coordinator")
        async with Link.alone(answer.port) as found:
            yield found

    async def _open(self, port: int) -> Link:
        return await asyncio.wait_for(Link.open(port), PATIENCE_SECONDS)
