"""The driver of the coordinators: replies leave when they are safe, and nobody is told "no offset" by mistake."""

import asyncio
import errno
import time

import pytest

from clarion.broker import turns, waiting
from clarion.broker.apis import k09_offset_fetch
from clarion.broker.turns import PIECE_MS
from clarion.cluster.coordination import OutcomeUnknownError
from clarion.groups.records import decode_offset
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC
from clarion.wire.apis import CONSUMER_GROUP_HEARTBEAT, OFFSET_COMMIT
from clarion.wire.bridge import decode, encode
from clarion.wire.frames import parse_response_header, request_frame
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from clarion.wire.messages.metadata import FindCoordinatorRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from clarion.wire.records import decode_batch
from tests.broker.disks import StoryDisk
from tests.broker.group_words import NO_ROOM, QUICK, commit, committed, find
from tests.broker.harness import BY_NAME, Client, running, until
from tests.loop_turns import watched_turns


async def test_the_internal_topic_is_made_when_the_first_group_appears(tmp_path):
    async with running(tmp_path, offsets_partitions=3) as node, node.another() as other:
        assert node.broker.image.topic(OFFSETS_TOPIC) is None
        assert (await node.ask(ListGroupsRequest(), 3)).groups == ()
        found = await asyncio.gather(find(node), find(other))
        assert [one.error_code for one in found] == [0, 0]
        assert node.broker.image.topic(OFFSETS_TOPIC).partition_count == 3
        assert len(node.server.groups.shards) == 3


async def test_offsets_come_back_and_outlive_a_restart(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        assert await committed(node) == -1
        for offset in (3, 5):
            assert await commit(node, offset) == 0
        assert await committed(node) == 5
    async with running(tmp_path) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == 5


async def test_a_group_with_many_offsets_is_deleted_in_short_turns_in_which_nobody_else_touches_it(tmp_path):
    count = 1_200
    partitions = tuple(OffsetCommitRequestPartition(partition_index=one, committed_offset=5) for one in range(count))
    asked = OffsetCommitRequest(group_id="g", topics=(OffsetCommitRequestTopic(name="t", partitions=partitions),))
    async with running(tmp_path, offsets_partitions=1, **QUICK) as node, node.another() as other:
        await node.topic("t", count)
        await node.ask(asked, 5)
        first = node.partition(OFFSETS_TOPIC).next_offset
        deleting = asyncio.create_task(node.ask(DeleteGroupsRequest(groups_names=("g",)), 2))
        await until(lambda: node.partition(OFFSETS_TOPIC).next_offset > first)
        told = await commit(other, 1)
        assert [one.error_code for one in (await deleting).results] == [0]
        assert told == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or await committed(other) == 1
        batches = [decode_batch(one) for one in node.partition(OFFSETS_TOPIC).log.batches(first)]
        assert len(batches) >= 3
        assert max(len(one) for one in batches) <= 501, "and the group itself"
        assert await committed(node, "g") in (-1, 1)


async def test_commits_of_one_connection_are_taken_in_the_order_in_which_they_came(tmp_path):
    """However long the line of others who wait for their turns."""
    async with running(tmp_path, offsets_partitions=1, **QUICK) as node, node.another() as other:
        await node.topic()
        assert (await find(node)).error_code == 0

        async def keep_busy() -> None:
            async for _ in node.broker.turns.each(range(30)):
                time.sleep(2 * PIECE_MS / 1000)  # noqa: ASYNC251  # to hold the loop is the point

        for _ in range(4):
            node.broker.turns.start(keep_busy(), lambda: None)
        for offset in range(30):
            asked = OffsetCommitRequestTopic(
                name="t", partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=offset),)
            )
            body = encode(OffsetCommitRequest(group_id="g", topics=(asked,)), OFFSET_COMMIT, 8, "request")
            other.post(request_frame(OFFSET_COMMIT, 8, offset, "tests", body))
            await asyncio.sleep(PIECE_MS / 1000)
        for _ in range(30):
            await other.next_frame()
        batches = node.partition(OFFSETS_TOPIC).log.batches(0)
        noted = [decode_offset(record.value).offset for one in batches for record in decode_batch(one)]
        assert noted == list(range(30))


async def test_a_commit_is_answered_when_it_is_on_disk_and_so_is_who_asks_meanwhile(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, offsets_partitions=1) as node, node.another() as other:
        await node.topic()
        assert await commit(node, 1) == 0
        disk.hold_flushes()
        committing = asyncio.ensure_future(commit(node, 2))
        await until(lambda: disk.held)
        asking = asyncio.ensure_future(committed(other))
        await asyncio.sleep(0.02)
        assert not committing.done()
        assert not asking.done(), "2 is not safe yet, and 1 is no longer true"
        disk.let_flushes_go()
        assert (await committing, await asking) == (0, 2)


async def test_what_cannot_be_written_has_not_happened(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, offsets_partitions=1, **QUICK) as node:
        await node.topic()
        assert await commit(node, 1) == 0
        disk.on_write = lambda path: NO_ROOM if OFFSETS_TOPIC in path else None
        assert await commit(node, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await committed(node) == 1
        disk.on_write = lambda path: None
        assert await commit(node, 3) == 0
        assert await committed(node) == 3


async def test_a_flush_that_fails_is_told_to_everybody_who_asks_later(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, offsets_partitions=1) as node:
        await node.topic()
        assert await commit(node, 1) == 0
        disk.on_sync = lambda path: OSError(errno.EIO, "bad") if OFFSETS_TOPIC in path else None
        assert await commit(node, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await committed(node) is ErrorCode.COORDINATOR_NOT_AVAILABLE, "what is known may not be on disk"
        assert await commit(node, 3) == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", [2, 4])
async def test_without_room_for_the_internal_topic_there_is_no_coordinator_yet(tmp_path, version):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        disk.on_open = lambda path: NO_ROOM if OFFSETS_TOPIC in path else None
        request = FindCoordinatorRequest(key="g", coordinator_keys=("g",), key_type=0)
        reply = await node.ask(request, version)
        found = reply.coordinators[0] if version >= 4 else reply
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.on_open = lambda path: None
        reply = await node.ask(request, version)
        found = reply.coordinators[0] if version >= 4 else reply
        assert (found.error_code, found.port) == (0, node.server.addresses[0].port)


@pytest.mark.uncompiled
async def test_while_the_store_does_not_answer_there_is_no_coordinator_yet(tmp_path, monkeypatch):
    async def unanswered(*_: object) -> None:
        raise OutcomeUnknownError("no answer")

    async with running(tmp_path, **QUICK) as node:
        with monkeypatch.context() as patched:
            patched.setattr(node.broker.registry, "add", unanswered)
            assert (await find(node)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await find(node)).error_code == 0


async def test_clients_that_ask_again_and_again_on_a_full_disk_do_not_fill_the_log(tmp_path, caplog):
    caplog.set_level("INFO", "clarion.log")
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        disk.on_open = lambda path: NO_ROOM if f"{OFFSETS_TOPIC}-7" in path else None  # when six are there already
        for _ in range(5):
            assert (await find(node)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [line.getMessage() for line in caplog.records].count("internal_topic_not_made") == 1
        assert "leftover_removed" not in caplog.text
        disk.on_open = lambda path: None
        assert (await find(node)).error_code == 0
        disk.on_write = lambda path: NO_ROOM if OFFSETS_TOPIC in path and path.endswith(".log") else None
        await node.topic()
        for offset in range(5):
            assert await commit(node, offset) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [line.getMessage() for line in caplog.records].count("coordinator_append_failed") == 1


@pytest.mark.uncompiled
async def test_a_flush_that_does_not_end_holds_no_commit_for_ever(tmp_path, monkeypatch):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic("t")
        assert await commit(node, 1) == 0
        disk.hold_flushes()
        with monkeypatch.context() as impatient:  # a flush that is not held may take longer on a busy machine
            impatient.setattr(waiting, "COMMIT_TIMEOUT_MS", 50)
            impatient.setattr(waiting, "LOOK_SECONDS", 0.02)
            assert await commit(node, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await committed(node) == ErrorCode.COORDINATOR_NOT_AVAILABLE, "2 is neither committed nor not"
        disk.let_flushes_go()
        await until(lambda: all(one.log.flushed == one.log.end for one in node.broker.partitions))
        assert await commit(node, 3) == 0
        assert await committed(node) == 3
        assert len(node.broker.waiting_coordinators) == 0


async def test_a_member_whose_end_met_a_full_disk_ends_when_there_is_room(tmp_path):
    disk = StoryDisk()
    settings = {"group_consumer_session_timeout_ms": 1000, "group_consumer_heartbeat_interval_ms": 50}
    async with running(tmp_path, disk=disk, offsets_partitions=1, **settings, **QUICK) as node:
        await node.topic()
        await find(node)
        joined = await node.ask(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="A" * 22,
                member_epoch=0,
                rebalance_timeout=1000,
                subscribed_topic_names=("t",),
                topic_partitions=(),
            ),
            1,
        )
        assert joined.error_code == 0

        def members() -> int:
            return sum(one.members for one in node.server.groups.summaries())

        refused = 0

        def full(path: str) -> OSError | None:
            nonlocal refused
            if OFFSETS_TOPIC not in path:
                return None
            refused += 1
            return NO_ROOM

        disk.on_write = full
        await until(lambda: refused)
        assert members() == 1
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.05)
        sessions = asyncio.get_running_loop().time() - began  # of a second each
        assert refused < 5 + 2 * sessions, "it is tried again after a session, not in a circle"
        disk.on_write = lambda path: None
        await until(lambda: members() == 0)


async def test_a_group_without_a_name_has_offsets_and_no_members(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        reply = await node.ask(HeartbeatRequest(group_id="", generation_id=1, member_id="m"), 3)
        assert reply.error_code == ErrorCode.INVALID_GROUP_ID
        beat = ConsumerGroupHeartbeatRequest(group_id="", member_id="m", member_epoch=0)
        assert (await node.ask(beat, 1)).error_code == ErrorCode.INVALID_REQUEST
        assert await commit(node, 7, group="") == ErrorCode.NONE
        assert await committed(node, group="") == 7


async def test_offsets_in_a_topic_that_does_not_exist_cannot_be_deleted(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 7)
        place = (OffsetDeleteRequestPartition(partition_index=0),)
        asked = tuple(OffsetDeleteRequestTopic(name=name, partitions=place) for name in ("none", "t"))
        reply = await node.ask(OffsetDeleteRequest(group_id="g", topics=asked), 0)
        codes = {topic.name: topic.partitions[0].error_code for topic in reply.topics}
        assert codes == {"t": ErrorCode.NONE, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert await committed(node) == -1


def posted(client: Client, *requests: tuple[object, int]) -> None:
    """Several requests in one packet."""
    frames = []
    for request, version in requests:
        key = BY_NAME[type(request).__name__.removesuffix("Request")].key
        frames.append(request_frame(key, version, 1, "tests", encode(request, key, version, "request")))
    client.post(b"".join(frames))


async def test_no_commit_overtakes_a_deletion_of_offsets_on_its_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "PIECE_MS", 0)  # loops over what a request names pause at every step
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 7)
        place = OffsetDeleteRequestTopic(name="t", partitions=(OffsetDeleteRequestPartition(partition_index=0),))
        deletion = OffsetDeleteRequest(group_id="g", topics=(place, place, place))
        topic = OffsetCommitRequestTopic(
            name="t", partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=8),)
        )
        posted(node.client, (deletion, 0), (OffsetCommitRequest(group_id="g", topics=(topic,)), 8))
        await node.client.next_frame()
        await node.client.next_frame()
        assert await committed(node) == 8


async def test_a_member_that_joins_by_expression_and_leaves_at_once_has_left(tmp_path):
    """The expression is looked at beside the loop, and the second request behind it must wait for that."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await node.ask(FindCoordinatorRequest(key="g"), 2)
        joins = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout=60_000,
            subscribed_topic_regex="t.*",
            topic_partitions=(),
        )
        leaves = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1)
        posted(node.client, (joins, 1), (leaves, 1))
        for _ in range(2):
            frame = await node.client.next_frame()
            _, body_at = parse_response_header(frame, CONSUMER_GROUP_HEARTBEAT, 1)
            reply = decode(ConsumerGroupHeartbeatResponse, CONSUMER_GROUP_HEARTBEAT, 1, "response", frame[body_at:])
            assert reply.error_code == ErrorCode.NONE, reply.error_message
        (described,) = (await node.ask(ConsumerGroupDescribeRequest(group_ids=("g",)), 1)).groups
        assert described.members == ()


@pytest.mark.parametrize("version", [5, 9])
@pytest.mark.parametrize("names", ["all", "named"])
async def test_many_offsets_are_told_in_pieces_and_each_topic_once(tmp_path, monkeypatch, version, names):
    monkeypatch.setattr(k09_offset_fetch, "PARTITIONS_PER_PIECE", 3)
    counts = {"a": 2, "b": 7, "c": 1, "d": 5}
    async with running(tmp_path, **QUICK) as node:
        for name, count in counts.items():
            await node.topic(name, count)
            for index in range(count):
                await commit(node, 10 * index, topic=name, partition=index)
        asked = {name: tuple(range(count)) for name, count in counts.items()}
        reply = await node.ask(_offset_fetch(asked if names == "named" else None, version), version)
        topics = reply.topics if version < 8 else reply.groups[0].topics
        told = [
            (one.name, [(each.partition_index, each.committed_offset) for each in one.partitions]) for one in topics
        ]
        assert told == [(name, [(index, 10 * index) for index in range(count)]) for name, count in counts.items()]


def _offset_fetch(asked: dict[str, tuple[int, ...]] | None, version: int) -> OffsetFetchRequest:
    named = (asked or {}).items()
    topics = tuple(OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in named)
    topics = None if asked is None else topics
    if version < 8:
        return OffsetFetchRequest(group_id="g", topics=topics)
    return OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=topics),))


async def test_the_offsets_of_a_hundred_thousand_partitions_hold_up_nobody(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 7)
        shard = next(one for one in node.server.groups.shards if one.coordinator.committed_offsets("g"))
        (place,) = shard.coordinator.shard.offsets._groups["g"]
        known = shard.coordinator.shard.offsets._groups["g"]
        for index in range(1, 100_000):  # as if committed: to commit them takes longer than the rest of the test
            known[place._replace(partition=index)] = known[place]
        async with watched_turns("an OffsetFetch of everything") as watched:
            posted(node.client, (_offset_fetch(None, 8), 8))
            frame = await node.client.next_frame()
            watched.skip()
        assert len(frame) > 100_000 * 20


async def test_a_group_named_twice_is_deleted_once_and_answered_once(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 7)
        reply = await node.ask(DeleteGroupsRequest(groups_names=("g", "g")), 2)
        assert [(one.group_id, one.error_code) for one in reply.results] == [("g", 0)]


@pytest.mark.parametrize("is_asked", [False, True])
async def test_what_may_be_done_with_a_group_is_told_who_asks(tmp_path, is_asked):
    """Without an authorizer that is everything: read, delete, describe, and the same of its settings (KIP-430)."""
    everything = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11 if is_asked else -(2**31)
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 7, group="classic")
        beat = ConsumerGroupHeartbeatRequest(
            group_id="consumer",
            member_id="m",
            member_epoch=0,
            subscribed_topic_names=("t",),
            rebalance_timeout=1000,
            topic_partitions=(),
        )
        assert (await node.ask(beat, 1)).error_code == 0
        classic = DescribeGroupsRequest(groups=("classic", "none"), include_authorized_operations=is_asked)
        modern = ConsumerGroupDescribeRequest(group_ids=("consumer", "none"), include_authorized_operations=is_asked)
        for reply in (await node.ask(classic, 6), await node.ask(modern, 1)):
            assert [one.authorized_operations for one in reply.groups] == [everything, -(2**31)]


async def test_a_member_that_waits_is_let_go_when_the_broker_stops(tmp_path):
    async with running(tmp_path, group_initial_rebalance_delay_ms=60_000, **QUICK) as node:
        await find(node)
        joining = asyncio.ensure_future(
            node.ask(
                JoinGroupRequest(
                    group_id="g",
                    session_timeout=10_000,
                    rebalance_timeout=10_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
                ),
                3,
            )
        )
        await until(lambda: list(node.server.groups.summaries()))
        await node.server.stop(drain_seconds=0)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await joining


async def test_offsets_of_partitions_that_do_not_exist_are_refused_one_by_one(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=2)
        await find(node)
        asked = OffsetCommitRequestTopic(
            name="t",
            partitions=tuple(
                OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in (0, 1, 2, -1)
            ),
        )
        reply = await node.ask(OffsetCommitRequest(group_id="g", topics=(asked,)), 5)
        codes = {one.partition_index: one.error_code for topic in reply.topics for one in topic.partitions}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {0: 0, 1: 0, 2: unknown, -1: unknown}
