"""Three brokers over a real etcd: the same cluster as over the store of one machine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests import etcd as etcd_server
from tests.broker.harness import until
from tests.broker.test_cluster import Cluster
from tests.broker.test_cluster_replication import make_topic, produce, replica, state


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_server.EtcdProcess]:
    if not etcd_server.is_installed():
        pytest.skip(etcd_server.MISSING)
    (server,) = etcd_server.etcd_cluster(tmp_path_factory.mktemp("etcd"), 1)
    yield server
    server.kill()


@pytest.fixture
async def three(tmp_path: Path, etcd: etcd_server.EtcdProcess) -> AsyncIterator[Cluster]:
    host, port = etcd.endpoint
    cluster = Cluster(tmp_path, f"etcd://{host}:{port}/{uuid.uuid4()}")
    try:
        for number in (1, 2, 3):
            await cluster.start(number)
        await cluster.everybody_knows(1, 2, 3)
        yield cluster
    finally:
        await cluster.close()


async def test_messages_survive_their_leader_and_it_comes_back(three: Cluster):
    leader = await make_topic(three)
    for number in range(10):
        await produce(three, b"%d" % number)
    await three.stop(leader)
    successor = await produce(three, b"more")
    assert successor != leader
    await three.start(leader)
    await until(lambda: all(len(state(three, one).in_sync) == 3 for one in (1, 2, 3)))
    await until(lambda: replica(three, leader).high_watermark.offset == 11)


async def test_a_lease_that_ends_in_etcd_fences_the_broker_which_joins_again(three: Cluster):
    leader = await make_topic(three)
    await produce(three, b"before")
    node = three[leader].broker.node
    assert node is not None
    assert node.membership is not None
    epoch, lease = node.membership.epoch, node.membership.lease
    assert lease is not None
    await three[leader].server.store.revoke_lease(lease)
    await until(lambda: node.membership.epoch > epoch)
    await produce(three, b"after")
    await until(lambda: all(len(state(three, one).in_sync) == 3 for one in (1, 2, 3)))
    logs = [b"".join(replica(three, one).batches()) for one in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2]
