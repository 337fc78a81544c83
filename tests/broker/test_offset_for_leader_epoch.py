import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.logs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.harness import Node, running, versions_of

T = 1_700_000_000_000
UNKNOWN = (-1, -1)


async def ask(node: Node, epoch: int, version: int = 4, *, current: int = -1, topic: str = "t", partition: int = 0):
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic=topic, partitions=(asked,)),))
    (answer,) = (await node.ask(request, version)).topics[0].partitions
    assert answer.partition == partition
    return answer


async def end_of(node: Node, epoch: int) -> tuple[int, int]:
    answer = await ask(node, epoch)
    assert answer.error_code == 0
    return answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", versions_of("OffsetForLeaderEpoch"))
async def test_every_version_tells_where_the_present_term_ends(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T])
        epoch = node.partition("t", 0).leader_epoch
        answer = await ask(node, epoch, version)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, epoch, 2)


async def test_a_term_ends_where_the_next_one_began_to_write(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T])
        first = node.partition("t", 0).leader_epoch
    async with running(tmp_path) as node:
        await node.write("t", [T])
        assert await end_of(node, first) == (first, 2)
        assert await end_of(node, first + 1) == (first + 1, 3)
        assert await end_of(node, first + 2) == UNKNOWN
        assert await end_of(node, -1) == UNKNOWN


async def test_a_term_in_which_nothing_was_written_is_no_sign_of_a_cut(tmp_path):
    """A consumer that heard of such a term from Metadata would otherwise start again from the beginning."""
    async with running(tmp_path) as node:
        await node.topic()
        await node.topic("empty")
        await node.write("t", [T, T])
        first = node.partition("t", 0).leader_epoch
    async with running(tmp_path):
        pass
    async with running(tmp_path) as node:
        assert await end_of(node, first + 1) == (first, 2)
        assert await end_of(node, first + 2) == (first + 2, 2)
        await node.write("t", [T])
        assert await end_of(node, first + 1) == (first, 2)
        answer = await ask(node, first + 1, topic="empty")
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, first + 1, 0)


async def test_clients_of_another_term_and_unknown_partitions_get_errors(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
    async with running(tmp_path) as node:
        now = node.partition("t", 0).leader_epoch
        assert (await ask(node, now, current=now)).error_code == 0
        assert (await ask(node, now, current=now - 1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await ask(node, now, current=now + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await ask(node, now, partition=9)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
