"""What a tool hears that wants to elect, move or vote: there is one node, and everything is where it should be."""

import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.controller import DescribeQuorumRequest, PartitionAsked, TopicAsked
from clarion.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ElectionTopic,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.broker.harness import Node, running, versions_of

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# AlterReplicaLogDirs


async def move(node: Node, path: str, topics: dict[str, tuple[int, ...]], version: int = 2) -> dict:
    asked = tuple(AlterReplicaLogDirTopic(name=name, partitions=indexes) for name, indexes in topics.items())
    request = AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(path=path, topics=asked),))
    results = (await node.ask(request, version)).results
    return {(topic.topic_name, one.partition_index): one.error_code for topic in results for one in topic.partitions}


@pytest.mark.parametrize("version", versions_of("AlterReplicaLogDirs"))
async def test_a_partition_may_stay_in_its_directory_and_there_is_no_other(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        here = str(tmp_path)
        codes = await move(node, here, {"t": (0, 1, 2), "nowhere": (0,)}, version)
        assert codes == {("t", 0): 0, ("t", 1): 0, ("t", 2): UNKNOWN, ("nowhere", 0): UNKNOWN}
        assert await move(node, f"{here}/elsewhere", {"t": (0,)}, version) == {("t", 0): ErrorCode.LOG_DIR_NOT_FOUND}


# ElectLeaders


@pytest.mark.parametrize("version", versions_of("ElectLeaders"))
@pytest.mark.parametrize("kind", [0, 1])
async def test_no_election_is_ever_needed(tmp_path, version, kind):
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        asked = (ElectionTopic(topic="t", partitions=(0, 2)), ElectionTopic(topic="nowhere", partitions=(0,)))
        reply = await node.ask(
            ElectLeadersRequest(election_type=kind if version else 0, topic_partitions=asked), version
        )
        codes = {
            (topic.topic, one.partition_id): one.error_code
            for topic in reply.replica_election_results
            for one in topic.partition_result
        }
        assert codes == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED, ("t", 2): UNKNOWN, ("nowhere", 0): UNKNOWN}
        everywhere = await node.ask(ElectLeadersRequest(election_type=kind if version else 0), version)
        assert (everywhere.error_code, everywhere.replica_election_results) == (0, ())


async def test_an_election_of_an_unknown_kind_is_refused(tmp_path):
    async with running(tmp_path) as node:
        assert (await node.ask(ElectLeadersRequest(election_type=7), 2)).error_code == ErrorCode.INVALID_REQUEST


# Reassignments


async def reassign(node: Node, *wanted: tuple[str, int, tuple[int, ...] | None], version: int = 1, may_resize=True):
    request = AlterPartitionReassignmentsRequest(
        topics=tuple(
            ReassignableTopic(name=topic, partitions=(ReassignablePartition(partition_index=index, replicas=replicas),))
            for topic, index, replicas in wanted
        ),
        allow_replication_factor_change=may_resize,
    )
    reply = await node.ask(request, version)
    assert reply.error_code == 0
    return [topic.partitions[0].error_code for topic in reply.responses]


@pytest.mark.parametrize("version", versions_of("AlterPartitionReassignments"))
async def test_a_partition_may_be_placed_where_it_is_and_nowhere_else(tmp_path, version):
    async with running(tmp_path, node_id=7) as node:
        await node.topic("t")
        refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await reassign(node, ("t", 0, (7,)), version=version) == [0]
        places = [("t", 0, (8,)), ("t", 0, (7, 8)), ("t", 0, (7, 7)), ("t", 0, ())]
        assert await reassign(node, *places, version=version) == [refused] * 4
        assert await reassign(node, ("t", 1, (7,)), ("nowhere", 0, None), version=version) == [UNKNOWN] * 2
        assert await reassign(node, ("t", 0, None), version=version) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]


@pytest.mark.parametrize("may_resize", [False, True])
async def test_the_number_of_replicas_stays_one(tmp_path, may_resize):
    async with running(tmp_path) as node:
        await node.topic("t")
        refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await reassign(node, ("t", 0, (1, 2)), ("t", 0, ()), may_resize=may_resize) == [refused] * 2
        assert await reassign(node, ("t", 0, (1,)), may_resize=may_resize) == [0]


@pytest.mark.parametrize("topics", [None, (), (ListPartitionReassignmentsTopics(name="t", partition_indexes=(0,)),)])
async def test_no_partition_is_on_the_way(tmp_path, topics):
    async with running(tmp_path) as node:
        await node.topic("t")
        reply = await node.ask(ListPartitionReassignmentsRequest(topics=topics), 0)
        assert (reply.error_code, reply.topics) == (0, ())


# DescribeQuorum


def about(*asked: tuple[str, int]) -> DescribeQuorumRequest:
    topics = tuple(
        TopicAsked(topic_name=name, partitions=(PartitionAsked(partition_index=one),)) for name, one in asked
    )
    return DescribeQuorumRequest(topics=topics)


@pytest.mark.parametrize("version", versions_of("DescribeQuorum"))
async def test_the_one_node_leads_and_votes_alone(tmp_path, version):
    async with running(tmp_path, node_id=4) as node:
        reply = await node.ask(about(("__cluster_metadata", 0)), version)
        (quorum,) = reply.topics[0].partitions
        assert (reply.error_code, quorum.error_code) == (0, 0)
        assert (quorum.leader_id, quorum.leader_epoch) == (4, node.broker.registry.broker_epoch)
        assert [voter.replica_id for voter in quorum.current_voters] == [4]
        assert quorum.observers == ()
        assert quorum.current_voters[0].log_end_offset == quorum.high_watermark > 0
        await node.topic("one-more")
        (later,) = (await node.ask(about(("__cluster_metadata", 0)), version)).topics[0].partitions
        assert later.high_watermark > quorum.high_watermark
        if version >= 2:
            (known,) = reply.nodes
            assert [(one.host, one.port) for one in known.listeners] == list(node.server.addresses)


@pytest.mark.parametrize("asked", [[("t", 0)], [("__cluster_metadata", 1)], [("__cluster_metadata", 0), ("t", 0)]])
async def test_nothing_else_has_a_quorum(tmp_path, asked):
    async with running(tmp_path) as node:
        await node.topic("t")
        reply = await node.ask(about(*asked), 2)
        assert [topic.partitions[0].error_code for topic in reply.topics] == [UNKNOWN] * len(asked)
