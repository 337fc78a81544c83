"""A broker of a cluster that stops: what it says of its files holds, whatever happens while it does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clarion.broker.cluster_node import ClusterNode
from tests.broker.harness import until
from tests.broker.talk import batch
from tests.broker.test_cluster import cluster_of, create, topic


def logs_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("t-0/*.log")}


async def test_nothing_is_fetched_behind_the_flush_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The next start takes all that it finds for flushed: a power cut after that would leave a hole."""
    leave, found = ClusterNode.close, []

    async def hear_more_and_leave(node: ClusterNode) -> None:
        if node is stopping.server.node:
            found.append(logs_in(tmp_path / "broker-2"))
            await cluster[1].broker.node.membership.be_drained(True)  # another leader: whoever follows, asks anew
            await until(lambda: stopping.broker.image.topics["t"].partitions[0].leader == 3)
            await until(lambda: cluster[3].partition("t").is_leader)
            await cluster[3].client.produce({("t", 0): batch(b"later")}, acks=1)
            await asyncio.sleep(0.3)
            found.append(logs_in(tmp_path / "broker-2"))
        await leave(node)

    monkeypatch.setattr(ClusterNode, "close", hear_more_and_leave)
    async with cluster_of(tmp_path, 3) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 3, 2),)))
        stopping = cluster[2]
        await until(lambda: stopping.broker.image.topics["t"].partitions[0].leader == 1)
        await cluster[1].client.produce({("t", 0): batch(b"flushed")})
        await until(lambda: logs_in(tmp_path / "broker-2") == logs_in(tmp_path / "broker-1"))
        await cluster.stop(2)
        assert found[0] == found[1]
        assert sum(found[0].values()) > 0
