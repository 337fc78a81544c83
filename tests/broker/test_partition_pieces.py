"""Thousands of partitions become requests of hundreds, and the answers one answer."""

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.broker.apis.partition_pieces import PARTITIONS_PER_PIECE, joined, pieces
from clarion.broker.config import Durability
from clarion.wire.messages.metadata import FindCoordinatorRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from tests.broker.harness import running
from tests.loop_turns import watched_turns


def topic(number: int, count: int) -> OffsetCommitRequestTopic:
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index) for index in range(count)
    )
    return OffsetCommitRequestTopic(name=f"t{number}", partitions=partitions)


def answer(asked: OffsetCommitRequestTopic) -> OffsetCommitResponseTopic:
    told = tuple(OffsetCommitResponsePartition(partition_index=one.partition_index) for one in asked.partitions)
    return OffsetCommitResponseTopic(name=asked.name, partitions=told)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3 * PARTITIONS_PER_PIECE), max_size=6))
def test_every_partition_is_asked_once_and_answered_in_its_place(counts):
    topics = [topic(number, count) for number, count in enumerate(counts)]
    cut = list(pieces(topics, "partitions"))
    assert cut
    assert all(sum(len(one.partitions) for one in piece) <= PARTITIONS_PER_PIECE for piece in cut)
    assert joined(answer(one) for piece in cut for one in piece) == tuple(map(answer, topics))


async def test_a_commit_of_ten_thousand_offsets_leaves_the_others_their_turns(tmp_path):
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        await node.topic("t0", partitions=1_000)
        await node.topic("t1", partitions=1_000)
        await node.ask(FindCoordinatorRequest(key="g"), 2)
        request = OffsetCommitRequest(group_id="g", topics=(topic(0, 1_000), topic(1, 1_000)) * 5)
        async with watched_turns("a large commit"):
            reply = await node.ask(request, 8)
        assert {one.error_code for told in reply.topics for one in told.partitions} == {0}
        asked = OffsetFetchRequestTopic(name="t1", partition_indexes=(0, 7, 999))
        found = await node.ask(OffsetFetchRequest(group_id="g", topics=(asked,)), 7)
        assert [one.committed_offset for one in found.topics[0].partitions] == [0, 7, 999]
