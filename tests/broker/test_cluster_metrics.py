"""What three brokers say of their replication, in calm and when brokers go and come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clarion.broker.cluster_metrics import OF_THE_CLUSTER, REPLICATION_LAG, Counted, cluster_samples, count
from clarion.broker.metrics import not_ready_because
from tests.broker.harness import running, until
from tests.broker.test_cluster import Cluster, cluster_of
from tests.broker.test_cluster_replication import make_topic, produce


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(tmp_path, 3) as cluster:
        yield cluster


def counted(cluster: Cluster, broker: int) -> Counted:
    return count(cluster[broker].broker)


def controllers(cluster: Cluster) -> list[int]:
    return [one for one in cluster.nodes if counted(cluster, one).is_controller]


async def test_the_numbers_of_a_calm_cluster(three: Cluster) -> None:
    leader = await make_topic(three)
    for number in range(5):
        await produce(three, b"%d" % number)
    others = [one for one in (1, 2, 3) if one != leader]
    await until(lambda: counted(three, leader).lags == dict.fromkeys(others, 0))
    assert len(controllers(three)) == 1
    for one in (1, 2, 3):
        found = counted(three, one)
        assert (found.brokers, found.under_replicated, found.under_min_in_sync, found.without_leader) == (3, 0, 0, 0)
    assert sum(counted(three, one).led for one in (1, 2, 3)) == three[1].broker.image.partition_total
    told = [name for name, _, _ in cluster_samples(three[leader].broker)]
    assert told == [*(metric.name for metric, _ in OF_THE_CLUSTER), REPLICATION_LAG.name, REPLICATION_LAG.name]


async def test_a_broker_whose_lease_is_over_is_not_ready(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await until(lambda: not_ready_because(three[1].server) is None)
    node = three[1].broker.node
    assert node is not None
    with monkeypatch.context() as patched:
        patched.setattr(node.membership, "lease_is_valid", lambda: False)
        assert "lease is over" in (not_ready_because(three[1].server) or "")
    assert not_ready_because(three[1].server) is None


async def test_bytes_of_replication_are_told_apart_from_those_of_clients(three: Cluster) -> None:
    leader = await make_topic(three)
    await produce(three, b"x" * 1000)

    def totals(broker: int) -> tuple[int, int, int, int]:
        one = three[broker].broker
        partition = one.partitions.find(one.image.topics["t"].id, 0)
        assert partition is not None
        return (
            partition.bytes_in_total,
            partition.bytes_out_total,
            partition.replicated_in_total,
            partition.replicated_out_total,
        )

    size = totals(leader)[0]
    assert size > 1000
    assert totals(leader)[1:3] == (0, 0)
    assert totals(leader)[3] >= 2 * size, "two followers; what is under way may be asked for once more"
    for one in (1, 2, 3):
        assert one == leader or totals(one) == (0, 0, size, 0)


async def test_a_follower_that_is_gone_is_missed_and_welcomed_back(three: Cluster) -> None:
    leader = await make_topic(three)
    gone = next(one for one in (2, 3) if one != leader)  # not 1, whose process holds the store
    await three.stop(gone)
    await until(lambda: counted(three, leader).under_replicated == 1)
    assert counted(three, leader).in_sync_shrinks >= 1
    before = counted(three, leader).in_sync_expands
    for number in range(7):
        await produce(three, b"%d" % number)
    assert counted(three, leader).lags[gone] >= 7
    await three.start(gone)
    await until(lambda: counted(three, leader).under_replicated == 0)
    assert counted(three, leader).in_sync_expands > before
    await until(lambda: counted(three, leader).lags[gone] == 0)


async def test_the_controller_counts_elections_and_their_time_and_what_nobody_leads(three: Cluster) -> None:
    await make_topic(three)
    await until(lambda: len(controllers(three)) == 1)
    (controller,) = controllers(three)
    gone = next(one for one in (3, 2) if one != controller)
    await three[controller].broker.create_topic("alone", 1, {}, 1, [(gone,)])
    await until(lambda: "alone" in three[gone].broker.image.topics)
    assert counted(three, controller).without_leader == 0
    await three.stop(gone)
    await until(lambda: counted(three, controller).without_leader >= 1)
    await three.start(gone)
    await until(lambda: counted(three, controller).without_leader == 0)
    found = counted(three, controller)
    assert found.elections >= 1
    assert found.election_seconds >= 0, "a store on the same machine may answer within the loop's millisecond"
    assert all(counted(three, one).without_leader == 0 for one in (1, 2, 3) if one != controller)


async def test_a_broker_without_a_cluster_says_when_too_few_are_in_sync_for_a_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.topic("t", min_insync_replicas="2")
        found = count(node.broker)
        assert (found.brokers, found.is_controller, found.under_min_in_sync, found.lags) == (1, True, 1, {})
