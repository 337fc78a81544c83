"""Reading from followers (KIP-392): who is sent where, what a follower serves, and that watermarks do not fall."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.apis import read_replicas
from clarion.broker.fetch_sessions import ToldWatermarks
from clarion.model.errors import ErrorCode
from tests.broker.harness import Client, until
from tests.broker.test_cluster import Cluster
from tests.broker.test_cluster_replication import PLACE, make_topic, produce, replica, state

RACKS = {1: "a", 2: "b", 3: "c"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
NOBODY = -1


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        for number, rack in RACKS.items():
            await cluster.start(number, rack=rack, replica_selector_class=SELECTOR)
        await cluster.everybody_knows(*RACKS)
        yield cluster
    finally:
        await cluster.close()


def heard(cluster: Cluster, leader: int, follower: int) -> int:
    """The watermark of which the leader is sure that the follower knows it."""
    broker = cluster[leader].broker
    followed = broker.sessions._followers[follower].partitions.get((broker.image.topics["t"].id, 0))
    return -1 if followed is None else broker.sessions.heard_watermark(follower, followed)


async def filled(cluster: Cluster, count: int = 5) -> tuple[int, int]:
    """A leader, and a follower of which it is sure that it knows all messages."""
    leader = await make_topic(cluster)
    for number in range(count):
        await produce(cluster, b"%d" % number)
    follower = next(one for one in (2, 3, 1) if one != leader)
    await until(lambda: heard(cluster, leader, follower) >= count)
    return leader, follower


async def fetch(client: Client, offset: int, rack: str, version: int = 12, **how: Any) -> Any:
    return (await client.fetch({PLACE: offset}, version=version, rack=rack, **how)).partitions[PLACE]


@pytest.mark.parametrize("version", [11, 12])
async def test_a_consumer_is_sent_to_the_replica_in_its_rack_and_reads_there(three: Cluster, version: int) -> None:
    leader, follower = await filled(three)
    sent = await fetch(three[leader].client, 0, RACKS[follower], version)
    assert (sent.error_code, sent.preferred_read_replica, sent.records or b"") == (0, follower, b"")
    assert sent.high_watermark == 5
    three[follower].client.post_fetch({PLACE: 0}, version=version, rack=RACKS[follower])
    served = await three[follower].client.fetched()
    assert served.values() == [b"%d" % number for number in range(5)]
    assert served.partitions[PLACE].preferred_read_replica == NOBODY
    assert served.partitions[PLACE].high_watermark == 5


async def test_who_says_no_rack_or_that_of_the_leader_or_one_without_a_replica_reads_from_the_leader(
    three: Cluster,
) -> None:
    leader, follower = await filled(three)
    for rack in ("", RACKS[leader], "elsewhere"):
        answer = await fetch(three[leader].client, 0, rack)
        assert answer.preferred_read_replica == NOBODY
        assert answer.records
    assert (await fetch(three[follower].client, 0, "")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetch(three[leader].client, 0, RACKS[follower], 10)).records, "racks came with version 11"


async def test_a_consumer_waits_at_a_follower_and_gets_what_is_committed_then(three: Cluster) -> None:
    _, follower = await filled(three)
    client = three[follower].client
    client.post_fetch({PLACE: 5}, rack=RACKS[follower], max_wait=60_000)
    await produce(three, b"more")
    assert (await client.fetched()).values() == [b"more"]


async def test_a_follower_never_serves_beyond_the_watermark_that_it_knows(three: Cluster) -> None:
    _, follower = await filled(three)
    client, partition, rack = three[follower].client, replica(three, follower), RACKS[follower]
    known = partition.high_watermark
    partition.high_watermark = partition.log.position_of(3)  # as after a restart
    served = await client.fetch({PLACE: 0}, rack=rack)
    assert served.values() == [b"0", b"1", b"2"]
    assert (await fetch(client, 4, rack)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    partition.high_watermark = known
    assert (await fetch(client, 6, rack)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_that_is_not_in_sync_sends_consumers_to_the_leader(three: Cluster) -> None:
    _, follower = await filled(three)
    partition, now = replica(three, follower), state(three, follower)
    others = tuple(one for one in now.in_sync if one != follower)
    partition.follow(now._replace(in_sync=others, partition_epoch=now.partition_epoch + 1))
    answer = await fetch(three[follower].client, 0, RACKS[follower])
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_nobody_is_sent_to_a_broker_that_is_gone(three: Cluster) -> None:
    leader, follower = await filled(three)
    if follower == 1:
        pytest.skip("its process holds the store")
    await three.stop(follower)
    await until(lambda: follower not in state(three, leader).in_sync)
    assert (await fetch(three[leader].client, 0, RACKS[follower])).records


@pytest.mark.uncompiled
async def test_who_comes_back_is_served_for_a_minute_and_then_sent_away_again(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await filled(three)
    client, rack = three[leader].client, RACKS[follower]
    assert (await fetch(client, 0, rack)).preferred_read_replica == follower
    assert (await fetch(client, 0, rack)).records
    monkeypatch.setattr(read_replicas, "REFERRED_AGAIN_SECONDS", 0.0)
    assert (await fetch(client, 0, rack)).preferred_read_replica == follower


@pytest.mark.uncompiled
async def test_the_watermark_does_not_fall_for_who_is_sent_away(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told only what the follower knows; and who was told more stays until the follower knows that too."""
    leader, follower = await filled(three)
    client, rack, broker = three[leader].client, RACKS[follower], three[leader].broker
    knows = heard(three, leader, follower)
    monkeypatch.setattr(broker.sessions, "heard_watermark", lambda one, followed: knows)
    await produce(three, b"not heard of by the follower")
    told = await fetch(client, 6, rack)
    assert (told.preferred_read_replica, told.high_watermark) == (NOBODY, 6), "it has read more than the follower knows"
    told = await fetch(client, 0, rack)
    assert told.preferred_read_replica == NOBODY, "it was told more than the follower knows"
    async with three[leader].another() as another:
        told = await fetch(another, 0, rack)
        assert (told.preferred_read_replica, told.high_watermark) == (follower, knows)
    monkeypatch.undo()
    await until(lambda: heard(three, leader, follower) >= 6)
    told = await fetch(client, 0, rack)
    assert (told.preferred_read_replica, told.high_watermark) == (follower, 6)


def test_a_watermark_is_heard_when_two_more_requests_have_come() -> None:
    told = ToldWatermarks()
    assert told.heard(1) == -1
    told.note(1, 10)
    assert [told.heard(request) for request in (1, 2, 3, 9)] == [-1, -1, 10, 10]
    for request in range(2, 8):
        told.note(request, request * 10)
        assert told.heard(request) == (request - 2) * 10 if request > 2 else -1
        assert told.heard(request + 1) == (request - 1) * 10
    told.note(7, 71)  # the first of two was answered when the second came
    assert told.heard(8) == 50, "that 60 was heard too is not certain from what is noted"
    assert told.heard(9) == 71
