"""Clients go where an answer sends them: none names a broker that it, or the image it comes from, does not list."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.apis.k03_metadata import handle
from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.broker import RequestContext
from clarion.broker.config import Durability
from clarion.cluster import BrokerRegistration, ClusterImage, Endpoint, PartitionState, Topic
from clarion.cluster.coordination import Put
from clarion.cluster.schema import CONTROLLER, NO_LEADER, partition_key, write_partition
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC
from clarion.wire.apis import FETCH, METADATA, PRODUCE
from clarion.wire.bridge import decode
from clarion.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.broker.harness import Node, running, until, versions_of
from tests.broker.talk import batch, fetch_frame, produce_frame, read_answer
from tests.broker.test_cluster import cluster_of

QUICK = {"durability": Durability.PAGE_CACHE, "offsets_partitions": 8}
CONTEXT = RequestContext(12, "tests", "peer", 0, ANONYMOUS)
US = 1
OTHERS = (2, 3, 4)
PARTITIONS = 8
IMAGES = 30
FIRST_FETCH_WITH_LEADERS = 16
FIRST_PRODUCE_WITH_LEADERS = 10


def registration(broker: int) -> BrokerRegistration:
    return BrokerRegistration(broker, 1, (Endpoint(f"host-{broker}", 9000 + broker),), f"rack-{broker}")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Broker 1, which leads the first partition of every topic. The others are somebody else's."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", PARTITIONS)
        await node.broker.groups.runtime.ensure_topic()
        theirs = write_partition(PartitionState(2, 4, OTHERS, OTHERS, 1))
        topics = [node.broker.image.topics[name] for name in ("t", OFFSETS_TOPIC)]
        puts = [Put(partition_key(topic.id, at), theirs) for topic in topics for at in range(1, PARTITIONS)]
        await node.server.store.transact((), puts)
    async with running(tmp_path, **QUICK) as node:
        yield node


def at_random(image: ClusterImage, choose: random.Random) -> ClusterImage:
    """Other brokers are there or not, and lead what is not ours, whether they are there or not."""
    here = {US: image.brokers[US]} | {one: registration(one) for one in OTHERS if choose.random() < 0.5}

    def led_by_somebody(topic: Topic) -> Topic:
        states = [
            state if state.leader == US else state._replace(leader=choose.choice((NO_LEADER, *OTHERS)))
            for state in topic.partitions
        ]
        return replace(topic, partitions=tuple(states))

    topics = {name: led_by_somebody(topic) for name, topic in image.topics.items()}
    return replace(image, brokers=here, topics=topics, topics_by_id={one.id: one for one in topics.values()})


async def test_no_answer_names_a_broker_that_the_image_does_not_list(node: Node):
    image = node.broker.image
    named = 0
    for seed in range(IMAGES):
        choose = random.Random(seed)
        node.broker.registry.image = now = at_random(image, choose)
        named += await metadata(node, now, choose.choice(versions_of("Metadata")))
        named += await topic_partitions(node, now)
        named += await coordinators(node, now)
        named += await refused_produces(node, now, choose.choice(versions_of("Produce")[3:]))
        named += await refused_fetches(node, now, choose.choice(versions_of("Fetch")))
    assert named > 10 * IMAGES


def leaders_of(image: ClusterImage, name: str) -> list[int]:
    states = image.topics[name].partitions
    return [state.leader if state.leader in image.brokers else NO_LEADER for state in states]


async def metadata(node: Node, image: ClusterImage, version: int) -> int:
    told = await node.ask(MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), version)
    assert {one.node_id for one in told.brokers} == set(image.brokers)
    assert version < 1 or told.controller_id in image.brokers
    (topic,) = told.topics
    assert [one.leader_id for one in topic.partitions] == leaders_of(image, "t")
    for one in topic.partitions:
        assert one.error_code == (ErrorCode.LEADER_NOT_AVAILABLE if one.leader_id == NO_LEADER else ErrorCode.NONE)
    return sum(one.leader_id != NO_LEADER for one in topic.partitions)


async def topic_partitions(node: Node, image: ClusterImage) -> int:
    page = await node.ask(DescribeTopicPartitionsRequest(topics=(), response_partition_limit=100, cursor=None), 0)
    (topic,) = [one for one in page.topics if one.name == "t"]
    assert [one.leader_id for one in topic.partitions] == leaders_of(image, "t")
    return len(topic.partitions)


async def coordinators(node: Node, image: ClusterImage) -> int:
    groups = tuple(map(str, range(20)))
    found = await node.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=groups), 4)
    for one in found.coordinators:
        if one.error_code == ErrorCode.NONE:
            assert (one.host, one.port) == image.brokers[one.node_id].endpoint(0)
        else:
            assert (one.error_code, one.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    return sum(one.error_code == ErrorCode.NONE for one in found.coordinators)


async def refused_produces(node: Node, image: ClusterImage, version: int) -> int:
    name = image.topics["t"].id if version >= 13 else "t"
    node.client.post(produce_frame({(name, at): batch(b"v") for at in range(1, PARTITIONS)}, version=version))
    answer = read_answer(PRODUCE, version, await node.client.next_frame())
    told = [one for topic in answer.responses for one in topic.partition_responses]
    return check_leaders(image, answer, told, is_told=version >= FIRST_PRODUCE_WITH_LEADERS)


async def refused_fetches(node: Node, image: ClusterImage, version: int) -> int:
    name = image.topics["t"].id if version >= 13 else "t"
    node.client.post(fetch_frame({(name, at): 0 for at in range(1, PARTITIONS)}, version=version))
    answer = read_answer(FETCH, version, await node.client.next_frame())
    told = [one for topic in answer.responses for one in topic.partitions]
    return check_leaders(image, answer, told, is_told=version >= FIRST_FETCH_WITH_LEADERS)


def check_leaders(image: ClusterImage, answer: Any, partitions: list[Any], *, is_told: bool) -> int:
    """Who leads is told together with where it is, or not at all."""
    assert {one.error_code for one in partitions} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    hints = {one.current_leader.leader_id for one in partitions if hasattr(one, "current_leader")} - {NO_LEADER}
    where = {one.node_id: (one.host, one.port, one.rack) for one in getattr(answer, "node_endpoints", ())}
    assert hints == set(where)
    assert where == {one: (*image.brokers[one].endpoint(0), image.brokers[one].rack) for one in hints}
    assert hints == (set(leaders_of(image, "t")) - {US, NO_LEADER} if is_told else set())
    return len(hints)


async def test_a_broker_that_leaves_while_metadata_is_gathered_is_not_a_leader_without_an_address(node: Node):
    image = node.broker.image
    node.broker.registry.image = replace(image, brokers={**image.brokers, 2: registration(2)})
    asked = (MetadataRequestTopic(name="t"), MetadataRequestTopic(name="new"))
    async with node.broker.changing:  # so that the second one has to wait, after the first one is told of
        answer = asyncio.ensure_future(handle(node.broker, MetadataRequest(topics=asked), CONTEXT))
        for _ in range(10):
            await asyncio.sleep(0)
        node.broker.registry.image = replace(node.broker.image, brokers=image.brokers)
    told = decode(MetadataResponse, METADATA, CONTEXT.version, "response", await answer)
    assert [one.error_code for one in told.topics] == [ErrorCode.NONE, ErrorCode.NONE]
    listed = {one.node_id for one in told.brokers}
    assert {one.leader_id for topic in told.topics for one in topic.partitions} - {NO_LEADER} <= listed


async def test_a_controller_that_is_gone_is_named_by_nobody(tmp_path: Path):
    async with cluster_of(tmp_path, 1) as cluster:
        broker = cluster[1].broker
        await until(lambda: broker.image.controller == 1)
        await cluster[1].server.store.transact((), [Put(CONTROLLER, b"9")])
        await until(lambda: broker.image.controller == 9)
        told = await cluster[1].ask(MetadataRequest(topics=()), 12)
        described = await cluster[1].ask(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
        assert (told.controller_id, described.controller_id) == (NO_LEADER, NO_LEADER)
