"""Share groups of a cluster: the leader of a partition, its share coordinator, and the group's on different brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from clarion.model.errors import ErrorCode
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.queues.acknowledgements import Acknowledgement
from clarion.queues.state_records import ShareKey
from clarion.wire.messages.groups import DeleteGroupsRequest
from clarion.wire.messages.metadata import FindCoordinatorRequest
from clarion.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from clarion.wire.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStatePartition,
    ReadStateTopic,
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)
from tests.broker.harness import Node, until
from tests.broker.queue_words import content, texts
from tests.broker.share_words import ACCEPT, REJECT, RELEASE, ShareConsumer, produce
from tests.broker.test_cluster import Cluster, _leads, cluster_of, create, topic
from tests.broker.test_dynamic_settings import GROUP, SET, alter

# Leaders stay where they are once they are there: what is delivered while they move may be delivered once more.
FEW = {"share_state_partitions": 3, "session_seconds": 20.0, "rebalances_leaders": False}


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(tmp_path, 3, **FEW) as cluster:
        await cluster[1].broker.shares.states.runtime.ensure_topic()
        await until(lambda: all(SHARE_STATE_TOPIC in node.broker.image.topics for node in cluster.nodes.values()))
        yield cluster


class Queue:
    """A topic of one partition, and a group whose state of it is coordinated by another broker than its leader."""

    def __init__(self, cluster: Cluster, leader: int, coordinator: int) -> None:
        self.cluster = cluster
        self.leader = leader
        self.coordinator = coordinator
        self.group = ""

    @property
    def node(self) -> Node:
        return self.cluster[self.leader]

    @property
    def key(self) -> ShareKey:
        return ShareKey(self.group, self.node.broker.image.topics["t"].id, 0)

    async def open(self) -> Queue:
        replicas = (self.leader, *(one for one in (1, 2, 3) if one != self.leader))
        await create(self.cluster[1], topic("t", assignments=(replicas,)))
        nodes = self.cluster.nodes.values()
        await until(lambda: all("t" in node.broker.image.topics for node in nodes) and _leads(self.node, "t", 0))
        self.group = next(name for number in range(1000) if self._is_coordinated(name := f"g{number}"))
        assert await alter(self.node, GROUP, self.group, ("share.auto.offset.reset", SET, "earliest")) == (0, None)
        await until(
            lambda: all(one.broker.groups.config_of(self.group).share_auto_offset_reset == "earliest" for one in nodes)
        )
        return self

    def _is_coordinated(self, group: str) -> bool:
        key = str(ShareKey(group, self.node.broker.image.topics["t"].id, 0))
        return self.node.broker.shares.states.runtime.leader_of(key) == self.coordinator

    async def at_group_coordinator(self) -> Node:
        for _ in range(3_000):
            node = next(iter(self.cluster.nodes.values()))
            found = await node.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=(self.group,)), 4)
            if found.coordinators[0].node_id in self.cluster.nodes:
                return self.cluster[found.coordinators[0].node_id]
            await asyncio.sleep(0.02)
        raise AssertionError("nobody coordinates the group")

    async def join(self, member: str = "m") -> None:
        """Until the member has its partition."""
        consumer = ShareConsumer(await self.at_group_coordinator(), self.node, member, self.group)
        for _ in range(3_000):
            if (await consumer.beat()).error_code == ErrorCode.NONE and consumer.partitions:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the member gets nothing")

    async def leave(self, member: str = "m") -> None:
        consumer = ShareConsumer(await self.at_group_coordinator(), self.node, member, self.group)
        assert (await consumer.beat(-1)).error_code == ErrorCode.NONE

    def reader(self, member: str = "m") -> ShareConsumer:
        consumer = ShareConsumer(self.node, self.node, member, self.group)
        consumer.partitions = (0,)
        return consumer

    async def fetched(self, member: str = "m") -> dict[int, int]:
        """What a member gets in a session of its own, as soon as it gets something."""
        for _ in range(3_000):
            reader = self.reader(member)
            if given := await reader.fetch(max_wait=200):
                return given
            await asyncio.sleep(0.02)
        raise AssertionError("nothing comes")


async def summary(queue: Queue) -> Any:
    return await queue.node.broker.shares.states.summary(queue.key)


async def test_state_is_kept_at_another_broker_than_the_one_that_leads(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await produce(queue.node, b"one", b"two", b"three")
    await queue.join()
    reader = queue.reader()
    assert await reader.fetch(max_wait=60_000) == {0: 1, 1: 1, 2: 1}
    assert await reader.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE)) is ErrorCode.NONE
    (held,) = [one for one in three[2].broker.shares.states.runtime.shards if queue.key in one.coordinator.known_keys()]
    assert held.partition.is_leader
    told = await summary(queue)
    assert (told.start_offset, told.version) == (1, queue.node.broker.shares.leaders.known(*queue.key).state_version)
    assert await reader.fetch(max_wait=60_000) == {1: 2}


async def test_delivery_counts_are_right_after_the_leader_has_changed(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await produce(queue.node, b"one", b"two", b"three")
    await queue.join()
    reader = queue.reader()
    assert await reader.fetch(max_wait=60_000) == {0: 1, 1: 1, 2: 1}
    assert await reader.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE)) is ErrorCode.NONE
    await three.stop(1)
    await until(lambda: any(_leads(node, "t", 0) for node in three.nodes.values()))
    queue.leader = next(number for number, node in three.nodes.items() if _leads(node, "t", 0))
    assert await queue.fetched("other") == {1: 2, 2: 2}


async def test_delivery_counts_are_right_after_all_brokers_were_restarted(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3, **FEW) as cluster:
        await cluster[1].broker.shares.states.runtime.ensure_topic()
        nodes = cluster.nodes.values()
        await until(lambda: all(SHARE_STATE_TOPIC in node.broker.image.topics for node in nodes))
        queue = await Queue(cluster, leader=1, coordinator=2).open()
        await produce(queue.node, b"one", b"two", b"three")
        await queue.join()
        reader = queue.reader()
        await reader.fetch(max_wait=60_000)
        assert await reader.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE)) is ErrorCode.NONE
        assert await reader.fetch(max_wait=60_000) == {1: 2}
    async with cluster_of(tmp_path, 3, **FEW) as cluster:
        await until(lambda: any(_leads(node, "t", 0) for node in cluster.nodes.values()))
        queue.cluster = cluster
        queue.leader = next(number for number, node in cluster.nodes.items() if _leads(node, "t", 0))
        assert await queue.fetched("other") == {1: 3, 2: 2}


async def test_acknowledgements_go_on_when_another_broker_coordinates_their_state(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await produce(queue.node, b"one", b"two", b"three")
    await queue.join()
    reader = queue.reader()
    assert await reader.fetch(max_wait=60_000) == {0: 1, 1: 1, 2: 1}
    stopping = asyncio.create_task(three.stop(2))
    assert await reader.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    await stopping
    assert await reader.acknowledge((1, 1, ACCEPT)) is ErrorCode.NONE
    assert (await summary(queue)).start_offset == 2
    assert queue.node.broker.shares.states.runtime.leader_of(str(queue.key)) in (1, 3)


async def test_a_group_that_is_put_back_reads_again_although_its_leader_is_elsewhere(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await produce(queue.node, b"one", b"two")
    await queue.join()
    reader = queue.reader()
    await reader.fetch(max_wait=60_000)
    assert await reader.acknowledge((0, 1, ACCEPT)) is ErrorCode.NONE
    await reader.ask(epoch=-1)
    await queue.leave()
    place = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topics = (AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=(place,)),)
    told = await (await queue.at_group_coordinator()).ask(
        AlterShareGroupOffsetsRequest(group_id=queue.group, topics=topics), 0
    )
    assert [one.error_code for one in told.responses[0].partitions] == [0]
    await queue.join()
    assert await queue.fetched() == {0: 1, 1: 1}


async def test_a_group_that_is_deleted_and_comes_again_begins_anew(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await produce(queue.node, b"one")
    await queue.join()
    reader = queue.reader()
    await reader.fetch(max_wait=60_000)
    assert await reader.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
    await reader.ask(epoch=-1)
    await queue.leave()
    coordinator = await queue.at_group_coordinator()
    deleted = await coordinator.ask(DeleteGroupsRequest(groups_names=(queue.group,)), 2)
    assert [one.error_code for one in deleted.results] == [0]
    assert not (await summary(queue)).is_known
    await queue.join()
    assert await queue.fetched() == {0: 1}


async def test_a_group_whose_state_is_gone_hears_of_it_from_who_leads_and_begins_anew(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    groups = queue.node.broker.groups.runtime
    await groups.ensure_topic()
    names = (f"h{number}" for number in range(1000))
    queue.group = next(name for name in names if queue._is_coordinated(name) and groups.leader_of(name) == 3)
    await queue.join()
    await queue.node.broker.shares.states.delete(queue.key)
    async with asyncio.timeout(60):
        while not (await summary(queue)).is_known:
            await queue.reader().ask()
            await queue.join()  # what it says again and again
    assert await queue.reader().fetch() == {}


async def test_of_a_deleted_topic_no_state_is_left_at_any_broker(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await produce(queue.node, b"one")
    await queue.join()
    await queue.fetched()
    key = queue.key
    await three[3].broker.delete_topic("t")
    shards = [shard for node in three.nodes.values() for shard in node.broker.shares.states.runtime.shards]
    await until(lambda: not any(key in shard.coordinator.known_keys() for shard in shards))


async def test_of_a_topic_that_was_deleted_while_its_coordinator_was_away_no_state_is_left(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await produce(queue.node, b"one")
    await queue.join()
    await queue.fetched()
    key, states = queue.key, three[2].broker.shares.states
    states.forget_later = lambda keys: None  # type: ignore[method-assign]  # it is about to stop
    await three[3].broker.delete_topic("t")
    await until(lambda: "t" not in three[2].broker.image.topics)
    assert key in [one for shard in states.runtime.shards for one in shard.coordinator.known_keys()]
    await three.stop(2)
    shards = [shard for node in three.nodes.values() for shard in node.broker.shares.states.runtime.shards]
    await until(lambda: not any(key in shard.coordinator.known_keys() for shard in shards))


PLACE = UUID(int=5)
ASKED = (
    InitializeShareGroupStateRequest(
        group_id="g",
        topics=(InitializeStateTopic(topic_id=PLACE, partitions=(InitializeStatePartition(partition=0),)),),
    ),
    ReadShareGroupStateRequest(
        group_id="g", topics=(ReadStateTopic(topic_id=PLACE, partitions=(ReadStatePartition(partition=0),)),)
    ),
    WriteShareGroupStateRequest(
        group_id="g", topics=(WriteStateTopic(topic_id=PLACE, partitions=(WriteStatePartition(partition=0),)),)
    ),
    DeleteShareGroupStateRequest(
        group_id="g", topics=(DeleteStateTopic(topic_id=PLACE, partitions=(DeleteStatePartition(partition=0),)),)
    ),
    ReadShareGroupStateSummaryRequest(
        group_id="g", topics=(ReadStateTopic(topic_id=PLACE, partitions=(ReadStatePartition(partition=0),)),)
    ),
)


async def test_who_is_no_broker_of_the_cluster_is_refused(three: Cluster) -> None:
    epoch = three[1].broker.image.brokers[1].epoch
    for request in ASKED:
        for guess in (
            {},
            *({"broker_id": 1, "broker_epoch": epoch, "secret": one} for one in ("guessed", "gu\u00e9ss")),
        ):
            (told,) = (await three[2].ask(type(request)(**_fields(request), **guess), 0)).results
            assert [one.error_code for one in told.partitions] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def _fields(request: Any) -> dict[str, Any]:
    return {"group_id": request.group_id, "topics": request.topics}


async def test_a_hundred_consumers_share_three_partitions_and_killing_fifty_loses_nothing(three: Cluster) -> None:
    await create(three[1], topic("t", assignments=((1, 2, 3), (2, 3, 1), (3, 1, 2))))
    await until(lambda: all(_leads(three[index + 1], "t", index) for index in range(3)))
    for node in three.nodes.values():
        how = {"share_auto_offset_reset": "earliest", "share_record_lock_duration_ms": 2_000}
        node.broker.groups.configure_group("g", **how, share_delivery_count_limit=1_000)
    for index in range(3):
        for _ in range(50):
            await produce(three[index + 1], *(b"message" for _ in range(10)), partition=index)
    crowd = Crowd(three)
    await crowd.join(100)
    assert sorted({index for _, index in crowd.members}) == [0, 1, 2]
    working = [asyncio.create_task(crowd.work(number)) for number in range(100)]
    async with asyncio.timeout(120):
        await asyncio.gather(*working)
    assert sorted(crowd.accepted) == [(index, offset) for index in range(3) for offset in range(500)]
    assert crowd.taken_away, "those that were killed held something"
    assert all(crowd.deliveries[one] >= 2 for one in crowd.taken_away)
    for index in range(3):
        await until(lambda index=index: three[index + 1].broker.shares.leaders.known("g", crowd.topic_id, index))
        told = await three[index + 1].broker.shares.states.summary(ShareKey("g", crowd.topic_id, index))
        assert told.start_offset == 500


class Crowd:
    """Many members, each with a connection of its own; those with odd numbers vanish with the first they get."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.topic_id = cluster[1].broker.image.topics["t"].id
        self.members: list[tuple[str, int]] = []
        self.accepted: list[tuple[int, int]] = []
        self.deliveries: dict[tuple[int, int], int] = {}  # how often, as the last one heard
        self.taken_away: set[tuple[int, int]] = set()

    async def join(self, count: int) -> None:
        queue = Queue(self._cluster, 1, 1)
        queue.group = "g"
        coordinator = await queue.at_group_coordinator()
        joined = [ShareConsumer(coordinator, coordinator, f"m{number}") for number in range(count)]
        for one in joined:
            while (await one.beat(0)).error_code:  # it may have yet to hear that it coordinates the group
                await asyncio.sleep(0.02)
        for one in joined:  # each has its own when all are there
            while (await one.beat()).error_code or not one.partitions:
                await asyncio.sleep(0.02)
        self.members = [(one.member, one.partitions[0]) for one in joined]

    async def work(self, number: int) -> None:
        member, index = self.members[number]
        node = self._cluster[index + 1]
        async with node.another() as client:
            one = ShareConsumer(client, node, member)
            one.partitions = (index,)
            while sum(at == index for at, _ in self.accepted) < 500:
                given = await one.fetch(max_records=7, max_wait=200, share_acquire_mode=1)
                self.deliveries |= {(index, offset): count for offset, count in given.items()}
                if given and number % 2:
                    self.taken_away |= {(index, offset) for offset in given}
                    return
                for offset in given:
                    if await one.acknowledge((offset, offset, ACCEPT), index=index) is ErrorCode.NONE:
                        self.accepted.append((index, offset))


async def test_dead_letters_go_to_a_topic_that_another_broker_leads(three: Cluster) -> None:
    queue = await Queue(three, leader=1, coordinator=2).open()
    await create(three[1], topic("graves", assignments=((2, 3),)))
    await until(lambda: "graves" in queue.node.broker.image.topics and _leads(three[2], "graves", 0))
    await produce(queue.node, b"one")
    await queue.join()
    assert await queue.reader().fetch(max_wait=60_000) == {0: 1}
    leader = queue.node.broker.shares.leaders.known(*queue.key)
    assert leader is not None
    kafkas = leader.rules
    rules = kafkas._replace(limits=kafkas.limits._replace(has_dead_letters=True), dead_letter_topic="graves")
    leader.acknowledge("m", rules, [Acknowledgement(0, 0, (REJECT,), reason="broken")])
    await until(lambda: leader.share.start_offset == 1)
    (letter,) = await content(three[2], "graves")
    assert (letter.value, texts(letter.headers)["clarion-dead-letter-reason"]) == (b"one", "broken")
