"""What tools ask of any broker, answered for a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import METADATA_TOPIC
from clarion.wire.messages.controller import DescribeQuorumRequest, PartitionAsked, TopicAsked
from clarion.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.broker.harness import Node, until
from tests.broker.test_cluster import cluster_of


async def test_all_brokers_vote_and_the_controller_leads(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await until(lambda: all(node.broker.controller_id > 0 for node in cluster.nodes.values()))
        asked = TopicAsked(topic_name=METADATA_TOPIC, partitions=(PartitionAsked(partition_index=0),))
        for node in cluster.nodes.values():
            reply = await node.ask(DescribeQuorumRequest(topics=(asked,)), 2)
            (partition,) = reply.topics[0].partitions
            assert partition.leader_id == node.broker.controller_id
            assert [one.replica_id for one in partition.current_voters] == [1, 2, 3]
            assert [one.node_id for one in reply.nodes] == [1, 2, 3]


async def test_a_replica_is_asked_for_where_it_is_whoever_leads(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await cluster[1].broker.create_topic("t", 1, {}, 2, [(1, 2)])
        await until(lambda: all("t" in node.broker.image.topics for node in cluster.nodes.values()))
        await until(lambda: _has(cluster[2]))
        assert [await _moved(cluster[number]) for number in (1, 2, 3)] == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.REPLICA_NOT_AVAILABLE,
        ]


def _has(node: Node) -> bool:
    return node.broker.partitions.find(node.broker.image.topics["t"].id, 0) is not None


async def _moved(node: Node) -> int:
    topic = AlterReplicaLogDirTopic(name="t", partitions=(0,))
    asked = AlterReplicaLogDir(path=node.broker.config.data_dir, topics=(topic,))
    reply = await node.ask(AlterReplicaLogDirsRequest(dirs=(asked,)), 2)
    return int(reply.results[0].partitions[0].error_code)


async def test_partitions_move_also_while_others_change_them(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        count = 8
        await cluster[1].broker.create_topic("t", count, {}, 2, [(1, 2)] * count)
        await until(lambda: all("t" in node.broker.image.topics for node in cluster.nodes.values()))
        asked = tuple(ReassignablePartition(partition_index=index, replicas=(1, 2, 3)) for index in range(count))
        request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name="t", partitions=asked),))
        replies = await asyncio.gather(*(node.ask(request, 0) for node in cluster.nodes.values()))
        assert [one.error_code for reply in replies for one in reply.responses[0].partitions] == [0] * 3 * count
        states = cluster[1].broker.image.topics["t"].partitions
        await until(lambda: all(len(one.in_sync) == 3 for one in cluster[1].broker.image.topics["t"].partitions))
        assert all(one.replicas == (1, 2, 3) for one in states)


async def test_who_needs_groups_for_the_first_time_at_several_brokers_at_once_hears_of_no_topic(tmp_path: Path) -> None:
    """Each of them makes the topic of their offsets, and one is the first."""
    async with cluster_of(tmp_path, 3) as cluster:

        async def asked(node: Node) -> ErrorCode:
            try:
                await node.server.groups.runtime.get("g")
            except KafkaError as error:
                return error.code
            return ErrorCode.NONE

        codes = await asyncio.gather(*map(asked, cluster.nodes.values()))
        assert {*codes} <= {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR}
