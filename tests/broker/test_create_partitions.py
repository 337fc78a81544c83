import pytest

from clarion.broker.limits import Limits
from clarion.model.errors import ErrorCode
from clarion.wire.messages.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.broker.harness import Node, running, versions_of


def more(name: str, count: int, assigned: list[tuple[int, ...]] | None = None) -> CreatePartitionsTopic:
    assignments = None if assigned is None else tuple(CreatePartitionsAssignment(broker_ids=ids) for ids in assigned)
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


async def grow(node: Node, *topics: CreatePartitionsTopic, version: int = 3, validate_only: bool = False):
    request = CreatePartitionsRequest(topics=topics, timeout=1000, validate_only=validate_only)
    return (await node.ask(request, version)).results


@pytest.mark.parametrize("version", versions_of("CreatePartitions"))
async def test_every_version_adds_partitions_and_answers_per_topic(tmp_path, version):
    """Trap 10: the answer is an array of topics."""
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        await node.topic("u", 1)
        results = await grow(node, more("t", 4), more("u", 2), version=version)
        assert [(one.name, one.error_code, one.error_message) for one in results] == [("t", 0, None), ("u", 0, None)]
        assert node.broker.image.topics["t"].partition_count == 4
        await node.write("t", [1_700_000_000_000], partition=3)
        assert node.partition("t", 3).next_offset == 1


async def test_validate_only_changes_nothing(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        good, bad = await grow(node, more("t", 3), more("nowhere", 3), validate_only=True)
        assert (good.error_code, bad.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert node.broker.image.topics["t"].partition_count == 2


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (more("t", 2), ErrorCode.INVALID_PARTITIONS),
        (more("t", 1), ErrorCode.INVALID_PARTITIONS),
        (more("t", -1), ErrorCode.INVALID_PARTITIONS),
        (more("t", 2_000_000), ErrorCode.POLICY_VIOLATION),
        (more("t", 4, [(1,)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("t", 3, [(2,)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("t", 3, [()]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more("nowhere", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_what_cannot_be_is_refused_with_a_reason(tmp_path, asked, code):
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        (result,) = await grow(node, asked)
        assert result.error_code == code
        assert result.error_message
        assert node.broker.image.topics["t"].partition_count == 2


async def test_assignments_may_name_this_node(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t", 1)
        (result,) = await grow(node, more("t", 3, [(1,), (1,)]))
        assert result.error_code == 0


async def test_the_internal_topic_keeps_its_number_of_partitions(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("__consumer_offsets", cleanup_policy="compact")
        (result,) = await grow(node, more("__consumer_offsets", 9), validate_only=True)
        assert result.error_code == ErrorCode.INVALID_PARTITIONS


async def test_a_topic_that_is_named_twice_is_refused_once(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t", 1)
        (result,) = await grow(node, more("t", 2), more("t", 3))
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert node.broker.image.topics["t"].partition_count == 1


async def test_one_request_adds_so_many_partitions_and_a_topic_has_so_many(tmp_path):
    limits = Limits(request_partitions_max=10, topic_partitions_max=8, partitions_max=20)
    async with running(tmp_path, limits=limits, auto_create_topics=False) as node:
        await node.topic("t", 1)
        await node.topic("u", 1)
        too_many = await grow(node, more("t", 7), more("u", 6))
        assert {one.error_code for one in too_many} == {ErrorCode.POLICY_VIOLATION}
        (too_large,) = await grow(node, more("t", 9))
        assert too_large.error_code == ErrorCode.INVALID_PARTITIONS
        assert node.broker.image.partition_total == 2
        assert [one.error_code for one in await grow(node, more("t", 6), more("u", 6))] == [0, 0]
        await node.topic("v", 8)
        (full,) = await grow(node, more("u", 7))
        assert full.error_code == ErrorCode.INVALID_PARTITIONS
        assert "20 partitions exist" in full.error_message
