"""Partitions that other brokers lead: this one says so, and leads its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from clarion.broker.config import Durability
from clarion.cluster import BrokerRegistration, Endpoint, PartitionState
from clarion.cluster.coordination import Put
from clarion.cluster.schema import broker_key, partition_key, write_broker, write_partition
from clarion.groups.placement import partition_for
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC
from clarion.wire.messages.groups import HeartbeatRequest
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from clarion.wire.messages.offsets import OffsetFetchRequest
from tests.broker.harness import Node, running
from tests.broker.talk import batch

QUICK = {"durability": Durability.PAGE_CACHE, "offsets_partitions": 2}
OURS, THEIRS, NOBODYS = ("t", 0), ("t", 1), ("t", 2)
NEIGHBOUR = BrokerRegistration(2, 1, (Endpoint("other.example", 9092),), "rack-2")


@pytest.fixture
async def node(tmp_path) -> AsyncIterator[Node]:
    """Broker 1 of two: the other one leads `t-1` and one half of the groups. `t-2` has lost its leader."""
    async with contextlib.AsyncExitStack() as stack:
        async with running(tmp_path, **QUICK) as node:
            await node.topic("t", 3)
            await node.client.produce({OURS: batch(b"v")})
            await node.broker.groups.runtime.ensure_topic()
            topic, offsets = node.broker.image.topics["t"], node.broker.image.topics[OFFSETS_TOPIC]
            theirs = write_partition(PartitionState(2, 4, (2, 1), (2,), 1))
            nobodys = write_partition(PartitionState(3, 4, (3,), (3,), 1))
            changes = [
                Put(partition_key(topic.id, 1), theirs),
                Put(partition_key(topic.id, 2), nobodys),
                Put(partition_key(offsets.id, 1), theirs),
                Put(broker_key(2), write_broker(NEIGHBOUR)),
            ]
            await node.server.store.transact((), changes)
        yield await stack.enter_async_context(running(tmp_path, **QUICK))


def group_of(index: int) -> str:
    return next(name for name in map("g{}".format, range(100)) if partition_for(name, 2) == index)


async def test_messages_for_a_partition_of_another_broker_are_turned_away(node: Node):
    produced = await node.client.produce({OURS: batch(b"v"), THEIRS: batch(b"v"), ("t", 7): batch(b"v")})
    assert [produced[one].error_code for one in (OURS, THEIRS, ("t", 7))] == [
        0,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    fetched = await node.client.fetch({OURS: 0, THEIRS: 0})
    assert fetched.values(*OURS) == [b"v", b"v"]
    assert fetched.errors()[THEIRS] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1, current_leader_epoch=-1) for index in (0, 1)]
    found = await node.ask(
        ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=tuple(asked)),)), 5
    )
    assert [one.error_code for one in found.topics[0].partitions] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_clients_are_told_who_leads_and_where(node: Node):
    reply = await node.ask(MetadataRequest(topics=None), 9)
    assert {one.node_id: (one.host, one.port, one.rack) for one in reply.brokers} == {
        1: (*node.server.addresses[0], None),
        2: ("other.example", 9092, "rack-2"),
    }
    (topic,) = [one for one in reply.topics if one.name == "t"]
    assert [(one.error_code, one.leader_id, one.leader_epoch) for one in topic.partitions] == [
        (0, 1, 1),
        (0, 2, 4),
        (ErrorCode.LEADER_NOT_AVAILABLE, -1, 4),
    ]
    assert [(one.replica_nodes, one.isr_nodes) for one in topic.partitions] == [
        ((1,), (1,)),
        ((2, 1), (2,)),
        ((3,), (3,)),
    ]
    assert topic.partitions[2].offline_replicas == (3,)
    described = await node.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
    assert [(one.broker_id, one.host, one.rack) for one in described.brokers if one.broker_id == 2] == [
        (2, "other.example", "rack-2")
    ]
    page = await node.ask(DescribeTopicPartitionsRequest(topics=(), response_partition_limit=10, cursor=None), 0)
    (topic,) = [one for one in page.topics if one.name == "t"]
    assert [(one.leader_id, one.leader_epoch, one.isr_nodes) for one in topic.partitions][:2] == [
        (1, 1, (1,)),
        (2, 4, (2,)),
    ]


async def answer_once_loaded(node: Node, group: str) -> int:
    asked = OffsetFetchRequest(group_id=group, topics=None)
    while (code := (await node.ask(asked, 5)).error_code) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await asyncio.sleep(0.01)
    return code


async def test_a_group_is_coordinated_by_whoever_leads_its_partition(node: Node):
    ours, theirs = group_of(0), group_of(1)
    found = await node.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=(ours, theirs)), 4)
    assert [(one.error_code, one.node_id, one.host) for one in found.coordinators] == [
        (0, 1, node.server.addresses[0].host),
        (0, 2, "other.example"),
    ]
    assert [await answer_once_loaded(node, one) for one in (ours, theirs)] == [0, ErrorCode.NOT_COORDINATOR]
    heartbeat = HeartbeatRequest(group_id=theirs, generation_id=1, member_id="m")
    assert (await node.ask(heartbeat, 3)).error_code == ErrorCode.NOT_COORDINATOR


async def test_a_restart_leaves_what_others_lead_as_it_is(node: Node):
    first, second, third = node.broker.image.topics["t"].partitions
    assert (first.leader_epoch, second.leader_epoch, third.leader_epoch) == (1, 4, 4)
    assert [one.tp for one in node.broker.partitions if one.tp.topic == "t"] == [OURS]
