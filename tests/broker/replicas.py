"""A leader on a real socket, and a follower's partition that fetches from it: a cluster of two, agreed on in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clarion.log.config import LogConfig
from clarion.log.log import Log
from clarion.net.channel import ChannelSettings, LastingChannel
from clarion.replication import GroupCommit, LoopThreads, Membership, Partition, ProducerStates, Term
from clarion.replication.catch_up import CatchUp
from clarion.replication.fetchers import ReplicaFetchers
from clarion.replication.membership import Identity
from clarion.world import RealDisk, SystemRandomness, boot_seconds
from tests.broker.harness import Node, running
from tests.replication.bench import HeldExecutor

NOW_MS = 1_700_000_000_000
SECRET = b"a secret of this session"
FOLLOWER, LIFE = 2, 77


class Agreement:
    """What the cluster has agreed on of one partition: compare and set."""

    def __init__(self) -> None:
        self.states: list[Term] = []
        self.seen: list[Mapping[int, int]] = []
        self.has_lease = True

    def ask(self, partition: Partition, followers: Mapping[int, int]) -> None:
        self.seen.append(followers)
        now = self.states[-1]
        in_sync = tuple(one for one in now.replicas if one == now.leader or one in followers)
        self.states.append(now._replace(in_sync=in_sync, partition_epoch=now.partition_epoch + 1))
        asyncio.get_running_loop().call_soon(partition.lead, self.states[-1], NOW_MS)


class Pair:
    def __init__(
        self, node: Node, folder: Path, leader: Partition, agreement: Agreement, held: bool, disk: RealDisk | None
    ) -> None:
        self.node = node
        self.leader = leader
        self.agreement = agreement
        self.executor = HeldExecutor()
        self.commits = GroupCommit(LoopThreads(self.executor) if held else None)
        self.folder = folder
        self.life = LIFE
        self.fetchers = ReplicaFetchers(
            lambda: Identity(FOLLOWER, self.life, SECRET),
            self._channel,
            lambda: NOW_MS,
            CatchUp(lambda: 0.2, boot_seconds),
        )
        self.follower = self.open_follower(leader, disk)

    def open_follower(self, of: Partition | None = None, disk: RealDisk | None = None) -> Partition:
        one, disk = of or self.leader, disk or RealDisk()
        log = Log.open(
            disk,
            str(self.folder / str(one.tp)),
            LogConfig.of(one.settings),
            now_ms=NOW_MS,
            clean=True,
            topic_id=one.topic_id,
        )
        made = Partition(one.tp, one.topic_id, log, one.settings, 0, self.commits, disk, ProducerStates())

        def save_start() -> None:
            asyncio.get_running_loop().call_soon(made.note_start_saved, made.start_offset)

        made.membership = Membership(lambda: True, self.agreement, save_start)
        return made

    def follow(self) -> None:
        """From the leader as it is now."""
        self.follower.follow(self.agreement.states[-1])
        self.fetchers.follow(self.follower, self.agreement.states[-1].leader, self.agreement.states[-1].leader_epoch)

    async def follow_another(self) -> Partition:
        """A partition beside it, in the same conversation."""
        follower = await self.add_replica("another", in_sync=(1, FOLLOWER))
        self.follow_with(follower)
        return follower

    async def add_replica(self, name: str, in_sync: tuple[int, ...] = (1,)) -> Partition:
        """Of a partition beside it; it knows its leader, and does not fetch yet."""
        await self.node.topic(name)
        leader = self.node.partition(name)
        leader.membership = self.leader.membership
        term = Term(1, leader.leader_epoch + 1, (1, FOLLOWER), in_sync, 1)
        leader.lead(term, NOW_MS)
        follower = self.open_follower(leader)
        follower.follow(term)
        return follower

    def follow_with(self, follower: Partition) -> None:
        self.fetchers.follow(follower, follower.leader, follower.leader_epoch)

    def begin_term(self, **changes: Any) -> None:
        before = self.agreement.states[-1]
        epochs = {"leader_epoch": before.leader_epoch + 1, "partition_epoch": before.partition_epoch + 1}
        self.agreement.states.append(before._replace(**{**epochs, **changes}))
        self.leader.lead(self.agreement.states[-1], NOW_MS)

    def _channel(self, broker_id: int) -> LastingChannel:
        host, port = self.node.server.addresses[0]
        return LastingChannel(ChannelSettings(host, port, "follower"), SystemRandomness())

    def bytes_of(self, partition: Partition) -> bytes:
        return b"".join(partition.batches())


@asynccontextmanager
async def two_replicas(
    folder: Path,
    *,
    held: bool = False,
    in_sync: tuple[int, ...] = (1,),
    disk: RealDisk | None = None,
    **settings: str,
) -> AsyncIterator[Pair]:
    """`held`: the follower's flushes happen when the test says so. `disk`: the follower's."""
    async with running(folder / "leader") as node:
        await node.topic("t", **settings)
        leader, agreement = node.partition("t"), Agreement()
        leader.membership = Membership(lambda: agreement.has_lease, agreement, lambda: None)
        node.broker.is_broker = lambda who, life, secret: who == FOLLOWER and life >= LIFE and secret == SECRET.decode()
        agreement.states.append(Term(1, leader.leader_epoch + 1, (1, FOLLOWER), in_sync, 1))
        leader.lead(agreement.states[-1], NOW_MS)
        (folder / "follower").mkdir()
        pair = Pair(node, folder / "follower", leader, agreement, held, disk)
        try:
            yield pair
        finally:
            await pair.fetchers.close()
