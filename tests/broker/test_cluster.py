"""Three brokers in one loop, over the store of one machine: what they agree on, and what each of them does about it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.cluster_node import ClusterNode
from clarion.broker.config import Durability
from clarion.broker.replicas import Replicas
from clarion.cluster.controller import Controller
from clarion.cluster.membership import DuplicateBrokerError
from clarion.log.data_directory import WrongFolderError
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC
from clarion.replication import Partition
from clarion.wire.messages.metadata import DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest
from clarion.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tests.broker.harness import Node, running, until
from tests.broker.talk import batch
from tests.broker.test_dynamic_settings import BROKER, GROUP, SET, alter, heartbeat

QUICK = {
    "durability": Durability.PAGE_CACHE,
    "offsets_partitions": 3,
    "session_seconds": 5.0,
    "keeps_events": False,
}


class Cluster:
    """Brokers by id; `stop` and `start` them one by one."""

    def __init__(self, folder: Path, store: str | None = None) -> None:
        self.folder = folder
        self.store = store or f"file:{folder / 'store'}"
        self.nodes: dict[int, Node] = {}
        self._lives: dict[int, AsyncExitStack] = {}

    async def start(self, number: int, **settings: Any) -> Node:
        stack = AsyncExitStack()
        how = {**QUICK, "node_id": number, "cluster": self.store, **settings}
        self.nodes[number] = await stack.enter_async_context(running(self.folder / f"broker-{number}", **how))
        self._lives[number] = stack
        return self.nodes[number]

    async def stop(self, number: int) -> None:
        del self.nodes[number]
        await self._lives.pop(number).aclose()

    async def close(self) -> None:
        for number in sorted(self.nodes, reverse=True):
            await self.stop(number)

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    async def everybody_knows(self, *brokers: int) -> None:
        await until(lambda: all(set(one.broker.image.brokers) == set(brokers) for one in self.nodes.values()))


@asynccontextmanager
async def cluster_of(folder: Path, count: int, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder)
    try:
        for number in range(1, count + 1):
            await cluster.start(number, **settings)
        await cluster.everybody_knows(*range(1, count + 1))
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(tmp_path, 3) as cluster:
        yield cluster


async def test_every_broker_tells_of_all_and_who_decides(three: Cluster):
    await until(lambda: three[1].broker.controller_id > 0)
    told = [await node.ask(MetadataRequest(topics=()), 9) for node in three.nodes.values()]
    places = {number: node.server.addresses[0].port for number, node in three.nodes.items()}
    assert all({one.node_id: one.port for one in each.brokers} == places for each in told)
    assert {each.controller_id for each in told} == {1}
    assert len({each.cluster_id for each in told}) == 1
    described = await three[3].ask(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
    assert described.controller_id == 1
    assert {one.broker_id for one in described.brokers} == {1, 2, 3}


async def test_another_broker_decides_when_the_controller_stops(three: Cluster):
    await until(lambda: three[2].broker.controller_id == 1)
    await three.stop(1)
    await three.everybody_knows(2, 3)
    await until(lambda: three[2].broker.controller_id in (2, 3))


async def test_another_broker_decides_when_the_controller_fails_by_a_mistake_of_ours(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
):
    await until(lambda: three[2].broker.controller_id == 1)
    failed: list[Controller] = []

    async def mistaken(controller: Controller) -> None:
        failed.append(controller)
        monkeypatch.undo()
        raise KeyError("nobody has thought of this")

    monkeypatch.setattr(Controller, "_decide", mistaken)
    await three.stop(3)
    await until(lambda: three[2].broker.controller_id == 2)
    assert len(failed) == 1
    assert not failed[0].is_active
    assert await create(three[1], topic("t", 1, 2)) == [(0, 2)]
    await three.stop(2)
    await until(lambda: three[1].broker.controller_id == 1)
    await until(lambda: three[1].broker.image.topics["t"].partitions[0].in_sync == (1,))


async def create(node: Node, *topics: CreatableTopic) -> list[tuple[int, int]]:
    reply = await node.ask(CreateTopicsRequest(topics=topics, validate_only=False), 5)
    return [(one.error_code, one.replication_factor) for one in reply.topics]


def topic(name: str, partitions: int = -1, factor: int = -1, assignments: tuple[tuple[int, ...], ...] = ()) -> Any:
    assigned = tuple(
        CreatableReplicaAssignment(partition_index=at, broker_ids=each) for at, each in enumerate(assignments)
    )
    return CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=assigned, configs=()
    )


async def test_partitions_with_one_replica_are_led_where_they_were_placed(three: Cluster):
    assert await create(three[2], topic("t", 3, 1)) == [(0, 1)]
    await until(lambda: all("t" in node.broker.image.topics for node in three.nodes.values()))
    leaders = [state.leader for state in three[1].broker.image.topics["t"].partitions]
    assert sorted(leaders) == [1, 2, 3]
    for index, leader in enumerate(leaders):
        await until(lambda index=index, leader=leader: _leads(three[leader], "t", index))
        for number, node in three.nodes.items():
            produced = await node.client.produce({("t", index): batch(b"from %d" % number)})
            code = produced["t", index].error_code
            assert code == (ErrorCode.NONE if number == leader else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert (await three[leader].client.fetch({("t", index): 0})).values("t", index) == [b"from %d" % leader]


def _leads(node: Node, name: str, index: int) -> bool:
    partition = node.broker.partitions.find(node.broker.image.topics[name].id, index)
    return partition is not None and partition.is_leader


async def test_replication_factors_and_assignments_are_honoured_or_refused(three: Cluster):
    asked = [topic("a"), topic("b", 1, 2), topic("c", 1, 4), topic("d", assignments=((3, 1), (2, 3)))]
    wrong = [
        topic("e", assignments=((1, 9),)),
        topic("f", assignments=((1, 1),)),
        topic("g", assignments=((1,), (2, 3))),
    ]
    assert await create(three[1], *asked, *wrong) == [
        (0, 3),
        (0, 2),
        (ErrorCode.INVALID_REPLICATION_FACTOR, -1),
        (0, 2),
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, -1),
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, -1),
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, -1),
    ]
    topics = three[1].broker.image.topics
    assert sorted(topics["a"].partitions[0].replicas) == [1, 2, 3]
    assert [one.replicas for one in topics["d"].partitions] == [(3, 1), (2, 3)]


async def test_a_deleted_topic_leaves_no_files_on_any_broker_also_on_one_that_was_away(three: Cluster):
    await create(three[1], topic("t", assignments=((1,), (2,), (3,))))
    folders = [three.folder / f"broker-{number}" / f"t-{number - 1}" for number in (1, 2, 3)]
    await until(lambda: all(each.exists() for each in folders))
    await three.stop(3)
    await three[2].broker.delete_topic("t")
    await until(lambda: not folders[0].exists() and not folders[1].exists())
    assert folders[2].exists()
    assert three[1].broker.image.deleting
    await three.start(3)
    await until(lambda: not folders[2].exists())
    await until(lambda: not any(node.broker.image.deleting for node in three.nodes.values()))
    assert not three[1].broker.image.unclaimed
    assert not three[1].broker.image.removed


async def test_a_topic_that_is_deleted_while_a_broker_starts_leaves_nothing_there(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """Its partitions are open by then. Nobody took them out of service, and a new topic found the folder taken."""
    await create(three[1], topic("t", assignments=((1, 3),)))
    before = three[1].broker.image.topics["t"].id
    await until(lambda: (three.folder / "broker-3" / "t-0").exists())
    await three.stop(3)
    join = ClusterNode.join

    async def join_late(self: ClusterNode, *how: Any) -> None:
        await three[1].broker.delete_topic("t")
        await join(self, *how)

    monkeypatch.setattr(ClusterNode, "join", join_late)
    await three.start(3)
    await until(lambda: not any(node.broker.image.deleting for node in three.nodes.values()))
    assert three[3].broker.partitions.find(before, 0) is None
    assert not (three.folder / "broker-3" / "t-0").exists()
    await create(three[1], topic("t", assignments=((3, 1),)))
    await until(lambda: _leads(three[3], "t", 0))


async def test_a_topic_that_is_deleted_while_files_of_another_go_is_not_made_again(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """Its files would go twice, and the second time a new topic of its name has its own in that place."""
    for name in ("first", "second"):
        await create(three[1], topic(name, assignments=((1, 3),)))
    await until(lambda: (three.folder / "broker-3" / "second-0").exists())
    await three.stop(3)
    join, remove = ClusterNode.join, Replicas._remove

    async def join_late(self: ClusterNode, *how: Any) -> None:
        await three[1].broker.delete_topic("first")
        await join(self, *how)

    async def remove_late(self: Replicas, retired: list[Partition]) -> bool:
        if self._broker.node_id == 3:
            monkeypatch.setattr(Replicas, "_remove", remove)
            await three[1].broker.delete_topic("second")
            await until(lambda: "second" not in self._broker.image.topics)
        return await remove(self, retired)

    with monkeypatch.context() as starting:
        starting.setattr(ClusterNode, "join", join_late)
        monkeypatch.setattr(Replicas, "_remove", remove_late)
        await three.start(3)
    await until(lambda: not any(node.broker.image.deleting for node in three.nodes.values()))
    for name in ("second", "third"):  # with every topic that is made it would be tried anew
        await create(three[1], topic(name, assignments=((3, 1),)))
        await until(lambda name=name: _leads(three[3], name, 0))
        await three[3].broker.node.settled()
    written = await three[3].client.produce({("second", 0): batch(b"here")})
    assert written["second", 0].error_code == ErrorCode.NONE
    assert list((three.folder / "broker-3" / "second-0").glob("*.log"))


async def test_a_broker_starts_with_older_files_of_a_topic_that_was_deleted_and_made_again(three: Cluster):
    await create(three[1], topic("t", assignments=((3, 1),)))
    folder, older = three.folder / "broker-3" / "t-0", three.folder / "older"
    await until(lambda: folder.exists())
    await three.stop(3)
    shutil.copytree(folder, older)
    await three.start(3)
    await three[1].broker.delete_topic("t")
    await until(lambda: not folder.exists() and not three[1].broker.image.deleting)
    await create(three[1], topic("t", assignments=((1, 3),)))
    await until(lambda: folder.exists())
    await three.stop(3)
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    await three.start(3)
    made = three[1].broker.image.topics["t"]
    await until(lambda: three[3].broker.partitions.of_topic(made))


async def test_settings_of_a_topic_and_of_brokers_reach_all(three: Cluster):
    await create(three[1], topic("t", assignments=((2,),)))
    await until(lambda: "t" in three[2].broker.image.topics and _leads(three[2], "t", 0))
    await three[1].broker.configure_topic("t", lambda _: {"max.message.bytes": "1234"})
    await until(lambda: three[2].partition("t").settings.max_message_bytes == 1234)
    await three[1].broker.settings.change("group", "g", lambda _: {"consumer.session.timeout.ms": "50000"})
    await until(lambda: three[3].broker.settings.get("group", "g"))


async def test_settings_of_brokers_and_groups_hold_on_all_whoever_was_asked_to_change_them(three: Cluster):
    nodes = list(three.nodes.values())
    await create(three[1], topic("t", assignments=((1, 2, 3),)))
    made = three[1].broker.image.topics["t"]
    await until(lambda: all(one.broker.partitions.of_topic(made) for one in nodes))
    assert await alter(three[1], BROKER, "", ("message.max.bytes", SET, "2000")) == (0, None)
    assert await alter(three[2], BROKER, "", ("log.cleaner.backoff.ms", SET, "77000")) == (0, None)
    held = [one.broker.partitions.of_topic(made)[0] for one in nodes]
    await until(lambda: all(one.settings.max_message_bytes == 2000 for one in held))
    await until(lambda: all(one.broker.config.compaction_check_seconds == 77 for one in nodes))
    found = await three[1].ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), 4)
    coordinator = three[found.coordinators[0].node_id]
    other = next(one for one in nodes if one is not coordinator)
    assert await alter(other, GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "6000")) == (0, None)
    answers: list[Any] = []

    async def hears_the_new_time() -> bool:
        epoch = answers[-1].member_epoch if answers and answers[-1].error_code == 0 else 0
        answers.append(await heartbeat(coordinator, epoch=epoch))
        return answers[-1].heartbeat_interval == 6000

    async with asyncio.timeout(20):
        while not await hears_the_new_time():
            await asyncio.sleep(0.02)


async def test_a_restarted_broker_leads_again_in_a_new_epoch_with_all_it_had(three: Cluster):
    await create(three[1], topic("t", assignments=((2,),)))
    await until(lambda: _leads(three[2], "t", 0))
    await three[2].client.produce({("t", 0): batch(b"kept")})
    before = three[1].broker.image.topics["t"].partitions[0].leader_epoch
    await three.stop(2)
    await three.everybody_knows(1, 3)
    reply = await three[1].ask(MetadataRequest(topics=None), 9)
    (told,) = [one for one in reply.topics if one.name == "t"]
    assert (told.partitions[0].leader_id, told.partitions[0].offline_replicas) == (-1, (2,))
    await three.start(2)
    await until(lambda: _leads(three[2], "t", 0))
    assert three[2].partition("t").leader_epoch > before
    assert (await three[2].client.fetch({("t", 0): 0})).values("t", 0) == [b"kept"]


async def test_all_stop_and_come_back(tmp_path: Path):
    async with cluster_of(tmp_path, 3) as cluster:
        await create(cluster[1], topic("t", 3, 1))
        cluster_id = cluster[1].broker.image.cluster_id
    async with cluster_of(tmp_path, 3) as cluster:
        assert cluster[2].broker.image.cluster_id == cluster_id
        leaders = [one.leader for one in cluster[2].broker.image.topics["t"].partitions]
        for index, leader in enumerate(leaders):
            await until(lambda index=index, leader=leader: _leads(cluster[leader], "t", index))


async def test_groups_are_found_at_the_leader_of_their_partition(three: Cluster):
    found = await three[1].ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), 4)
    await until(lambda: all(OFFSETS_TOPIC in node.broker.image.topics for node in three.nodes.values()))
    answers = {
        (await node.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), 4)).coordinators[0].node_id
        for node in three.nodes.values()
    }
    assert answers == {found.coordinators[0].node_id} <= {1, 2, 3}


async def test_the_folder_of_a_member_is_no_single_brokers_and_the_other_way_round(tmp_path: Path):
    async with running(tmp_path / "alone", **QUICK):
        pass
    cluster = Cluster(tmp_path)
    await cluster.start(1)
    with pytest.raises(WrongFolderError, match="clarion cluster adopt"):
        async with running(tmp_path / "alone", **QUICK, cluster=f"file:{tmp_path / 'store'}"):
            pass
    await cluster.close()
    with pytest.raises(WrongFolderError, match="belongs to a broker of a cluster"):
        async with running(tmp_path / "broker-1", **QUICK):
            pass


async def test_a_second_broker_with_the_same_id_is_refused(three: Cluster):
    with pytest.raises(DuplicateBrokerError, match="broker 2 of this cluster is running already"):
        async with running(
            three.folder / "impostor",
            **{**QUICK, "session_seconds": 1.0},
            node_id=2,
            cluster=f"file:{three.folder / 'store'}",
        ):
            pass
