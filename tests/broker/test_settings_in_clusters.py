"""What topics are to be like, altered while a broker starts or makes their files: it hears of it all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clarion.broker import replicas
from clarion.broker.threads import in_thread
from clarion.cluster.membership import BrokerMembership
from clarion.model.errors import ErrorCode
from clarion.wire.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from tests.broker.harness import Node, until
from tests.broker.moves import in_sync, make, replica, state
from tests.broker.talk import batch
from tests.broker.test_cluster import cluster_of, create, topic
from tests.broker.test_dynamic_settings import ALL, BROKER, SET, TOPIC, alter

MINIMUM = ("min.insync.replicas", SET, "2")


async def test_settings_that_were_altered_while_a_broker_started_hold_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has opened its files, and its former life is not over yet, say: so long it is no member of the cluster."""
    async with cluster_of(tmp_path, 2) as cluster:
        await make(cluster, 2, 1, retention_ms="1000000")
        await cluster.stop(2)
        join, is_opened, may_join = BrokerMembership.join, asyncio.Event(), asyncio.Event()

        async def late(membership: BrokerMembership, *how: Any) -> None:
            is_opened.set()
            await may_join.wait()
            await join(membership, *how)

        monkeypatch.setattr(BrokerMembership, "join", late)
        starting = asyncio.create_task(cluster.start(2))
        await is_opened.wait()
        assert await alter(cluster[1], TOPIC, "t", MINIMUM) == (0, None)
        may_join.set()
        await starting
        await in_sync(cluster, 1, 2)
        assert replica(cluster, 2).settings.min_insync_replicas == 2
        await until(lambda: state(cluster, 2).leader == 2)
        await cluster.stop(1)
        await in_sync(cluster, 2, seen_by=2)
        answer = await cluster[2].client.produce({("t", 0): batch(b"alone")}, acks=-1)
        assert answer["t", 0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("kind", [TOPIC, BROKER])
async def test_settings_that_were_altered_while_a_broker_made_files_hold_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """Of the topic itself, and of all brokers' defaults."""
    is_made, may_go_on = asyncio.Event(), asyncio.Event()

    async def slowly(work: Callable[[], Any]) -> Any:
        done = await in_thread(work)
        if isinstance(done, list) and done and "broker-2" in done[0].log.folder:
            is_made.set()
            await may_go_on.wait()
        return done

    monkeypatch.setattr(replicas, "in_thread", slowly)
    async with cluster_of(tmp_path, 2) as cluster:
        try:
            assert await create(cluster[1], topic("t", assignments=((1, 2),))) == [(0, 2)]
            await is_made.wait()
            assert await alter(cluster[1], kind, "t" if kind == TOPIC else ALL, MINIMUM) == (0, None)
            await until(lambda: replica(cluster, 1).settings.min_insync_replicas == 2)
            broker = cluster[2].broker
            await until(
                lambda: (
                    broker.image.topics["t"].overrides
                    if kind == TOPIC
                    else broker.partitions.defaults.min_insync_replicas == 2
                )
            )
        finally:
            may_go_on.set()
        await in_sync(cluster, 1, 2)
        await until(lambda: broker.partitions.find(broker.image.topics["t"].id, 0))
        assert replica(cluster, 2).settings.min_insync_replicas == 2


async def test_of_changes_by_several_brokers_at_once_none_is_lost_or_refused(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await make(cluster, 1)
        for number in range(1, 6):
            value = str(number * 1_000_000)
            answers = await asyncio.gather(
                alter(cluster[1], TOPIC, "t", ("retention.ms", SET, value)),
                alter(cluster[2], TOPIC, "t", ("flush.messages", SET, value)),
                _grow(cluster[3], number + 1),
            )
            assert answers == [(0, None), (0, None), 0]

        def are_known() -> bool:
            known = [one.broker.image.topics["t"] for one in cluster.nodes.values()]
            wanted = {"retention.ms": "5000000", "flush.messages": "5000000"}
            return all(one.partition_count == 6 and wanted.items() <= one.overrides.items() for one in known)

        await until(are_known)


async def _grow(node: Node, count: int) -> int:
    asked = CreatePartitionsTopic(name="t", count=count, assignments=None)
    (told,) = (await node.ask(CreatePartitionsRequest(topics=(asked,), timeout=10_000, validate_only=False), 3)).results
    return told.error_code
