"""Three brokers in one loop: what is acknowledged by all is on all, and stays when its leader goes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.replication import Partition
from tests.broker.harness import until
from tests.broker.talk import batch, fetch_frame, read_fetched
from tests.broker.test_cluster import Cluster, cluster_of

PLACE = ("t", 0)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(tmp_path, 3) as cluster:
        yield cluster


def state(cluster: Cluster, broker: int, topic: str = "t"):
    return cluster[broker].broker.image.topics[topic].partitions[0]


def replica(cluster: Cluster, broker: int, topic: str = "t") -> Partition:
    one = cluster[broker].broker
    found = one.partitions.find(one.image.topics[topic].id, 0)
    assert found is not None
    return found


async def make_topic(cluster: Cluster, **settings: str) -> int:
    """Returns its leader, when all replicas are in sync and everybody knows."""
    await cluster[1].topic("t", **settings)
    brokers = sorted(cluster.nodes)
    await until(lambda: all("t" in cluster[one].broker.image.topics for one in brokers))
    await until(lambda: all(len(state(cluster, one).in_sync) == 3 for one in brokers))
    leader = state(cluster, 1).leader
    await until(lambda: replica(cluster, leader).is_leader)
    return leader


async def produce(cluster: Cluster, *values: bytes) -> int:
    """To the leader, whoever that is by now; returns who it was."""

    def leads() -> bool:
        now = state(cluster, min(cluster.nodes)).leader
        return now in cluster.nodes and replica(cluster, now).takes_all

    while True:
        await until(leads)
        leader = state(cluster, min(cluster.nodes)).leader
        produced = await cluster[leader].client.produce({PLACE: batch(*values)}, acks=-1)
        if produced[PLACE].error_code == 0:
            return leader
        assert produced[PLACE].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_all_have_acknowledged_is_on_all_and_survives_its_leader(three: Cluster) -> None:
    leader = await make_topic(three)
    for number in range(20):
        await produce(three, b"%d" % number)
    await until(lambda: all(replica(three, one).high_watermark.offset == 20 for one in (1, 2, 3)))
    logs = [b"".join(replica(three, one).batches()) for one in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2]
    await three.stop(leader)
    others = sorted(three.nodes)
    await until(lambda: state(three, others[0]).leader in others)
    successor = await produce(three, b"more")
    found = await three[successor].client.fetch({PLACE: 0}, max_bytes=1 << 20)
    assert found.values() == [b"%d" % number for number in range(20)] + [b"more"]
    await three.start(leader)
    await until(lambda: all(len(state(three, one).in_sync) == 3 for one in (1, 2, 3)))
    await produce(three, b"again")  # perhaps twice: when the preferred leader takes over in its middle it is sent again
    await until(lambda: replica(three, leader).high_watermark.offset == replica(three, successor).next_offset)
    assert b"".join(replica(three, leader).batches()) == b"".join(replica(three, successor).batches())
    assert replica(three, leader).next_offset >= 22


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.PAGE_CACHE])
async def test_messages_reach_all_replicas_whatever_the_durability(three: Cluster, durability: Durability) -> None:
    await make_topic(three, clarion_durability=durability.value)
    for number in range(5):
        await produce(three, b"%d" % number)
    for one in (1, 2, 3):
        assert replica(three, one).next_offset == 5
        assert durability is Durability.PAGE_CACHE or replica(three, one).is_flushed_to(5)


async def test_a_client_that_calls_itself_a_replica_is_refused(three: Cluster) -> None:
    leader = await make_topic(three)
    follower = next(one for one in (1, 2, 3) if one != leader)
    for version in (12, 17):
        place = PLACE if version < 13 else (three[1].broker.image.topics["t"].id, 0)
        three[leader].client.post(fetch_frame({place: 0}, version=version, replica_id=follower))
        answered = read_fetched(await three[leader].client.next_frame(), version)
        assert answered.error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [10, 12, 13])
async def test_who_asks_the_wrong_broker_hears_which_one_leads(three: Cluster, version: int) -> None:
    leader = await make_topic(three)
    other = next(one for one in (1, 2, 3) if one != leader)
    place = PLACE if version < 13 else (three[1].broker.image.topics["t"].id, 0)
    epoch = state(three, 1).leader_epoch
    produced = await three[other].client.produce({place: batch(b"v")}, version=version)
    assert produced[place].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (produced[place].current_leader.leader_id, produced[place].current_leader.leader_epoch) == (leader, epoch)
    if version < 13:
        return  # Fetch has no room for where the leader is before v16, which knows topics by id
    fetched = await three[other].client.fetch({place: 0}, version=16)
    told = fetched.partitions[place]
    assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (leader, epoch)


async def test_who_waits_for_files_does_not_wait_for_revisions_in_which_nothing_concerns_files(three):
    """The store's revision grows with everything in it, such as the events of the cluster manager."""
    node = three[1].server.node
    replicas = node._replicas

    def come_to_know_of_something_else() -> None:
        later = node._registry.image.revision + 1_000_000
        replicas.on_image(dataclasses.replace(replicas._image, revision=later))

    async with asyncio.timeout(20):  # less than whoever makes a topic waits at most
        await replicas.settled()
        come_to_know_of_something_else()
        await replicas.settled()
        making = asyncio.create_task(three[1].topic("t"))
        await until(lambda: "t" in replicas._image.topics)
        come_to_know_of_something_else()
        await replicas.settled()
        await making
