"""A topic that is deleted takes its committed offsets along, and leaves none to the next of its name."""

import asyncio
import shutil
import struct
import threading

from clarion.broker import coordinator_shard
from clarion.groups.records import Key, encode_key
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from clarion.wire.records import decode_batch, encode_batch
from tests.broker.disks import StoryDisk
from tests.broker.group_words import NO_ROOM, QUICK, commit, committed, find
from tests.broker.harness import running, until
from tests.loop_turns import watched_turns


async def test_offsets_of_a_topic_that_was_made_again_during_the_loading_are_forgotten(tmp_path, monkeypatch):
    async with running(tmp_path) as node:
        await node.topic()
        await node.topic("other")
        assert await commit(node, 5) == await commit(node, 5, topic="other") == 0
    may_go, decoded = threading.Event(), coordinator_shard._decoded
    monkeypatch.setattr(coordinator_shard, "_decoded", lambda batches: may_go.wait(20) and decoded(batches))
    async with running(tmp_path) as node:
        await node.broker.delete_topic("t")
        await node.topic()
        assert not any(shard.is_loaded for shard in node.server.groups.shards)
        may_go.set()
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == -1
        assert await committed(node, topic="other") == 5
    async with running(tmp_path) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == -1


async def test_offsets_of_a_topic_deleted_before_a_crash_and_made_again_during_the_loading_are_forgotten(
    tmp_path, monkeypatch
):
    """The crash came when the topic was gone from the registry, and before anything was said of it to the groups."""
    async with running(tmp_path) as node:
        await node.topic()
        await node.topic("other")
        assert await commit(node, 5) == await commit(node, 5, topic="other") == 0
        await node.broker.registry.delete("t")
    may_go, decoded = threading.Event(), coordinator_shard._decoded
    monkeypatch.setattr(coordinator_shard, "_decoded", lambda batches: may_go.wait(20) and decoded(batches))
    async with running(tmp_path) as node:
        await node.topic()
        may_go.set()
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == -1
        assert await committed(node, topic="other") == 5


async def test_offsets_of_a_topic_made_again_are_forgotten_if_the_broker_is_killed_before_its_groups_are_loaded(
    tmp_path, monkeypatch
):
    async with running(tmp_path / "a") as node:
        await node.topic()
        await node.topic("other")
        assert await commit(node, 5) == await commit(node, 5, topic="other") == 0
    may_go, decoded = threading.Event(), coordinator_shard._decoded
    monkeypatch.setattr(coordinator_shard, "_decoded", lambda batches: may_go.wait(60) and decoded(batches))
    async with running(tmp_path / "a") as node:
        await node.broker.delete_topic("t")
        await node.topic()
        assert not any(shard.is_loaded for shard in node.server.groups.shards)
        shutil.copytree(tmp_path / "a", tmp_path / "killed")
        may_go.set()
    async with running(tmp_path / "killed") as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == -1
        assert await committed(node, topic="other") == 5
        assert await commit(node, 1) == 0
    async with running(tmp_path / "killed") as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == 1


async def test_offsets_that_an_earlier_version_wrote_are_kept(tmp_path):
    """They do not say of which topic they are."""
    async with running(tmp_path, offsets_partitions=1) as node:
        await node.topic()
        await find(node)
        value = b"\0\3" + struct.pack(">qi", 7, -1) + b"\0\0" + struct.pack(">q", node.broker.clock.now_ms())
        record = (encode_key(Key(1, "g", "t", 0)), value, (), 0)
        node.partition(OFFSETS_TOPIC).append_own(encode_batch([record]), 0)
    async with running(tmp_path) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == 7
        await node.broker.delete_topic("t")
        await node.topic()
        assert await committed(node) == -1


async def test_offsets_of_a_deleted_topic_are_not_told_of_the_next_one_when_the_disk_was_full(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        assert await commit(node, 5) == 0
        disk.on_write = lambda path: NO_ROOM if OFFSETS_TOPIC in path and path.endswith(".log") else None
        await node.broker.delete_topic("t")
        await node.topic()
        assert await committed(node) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.on_write = lambda path: None
        assert await committed(node) == -1
        assert await commit(node, 1) == 0
        assert await committed(node) == 1


async def test_many_offsets_of_a_deleted_topic_go_in_short_turns_and_all_before_the_next_one_is_made(tmp_path):
    count, groups = 1_500, [f"g{number}" for number in range(4)]
    partitions = tuple(OffsetCommitRequestPartition(partition_index=one, committed_offset=5) for one in range(count))
    async with running(tmp_path, offsets_partitions=1, **QUICK) as node, node.another() as other:
        await node.topic("t", count)
        for group in groups:
            asked = OffsetCommitRequestTopic(name="t", partitions=partitions)
            await node.ask(OffsetCommitRequest(group_id=group, topics=(asked,)), 5)
        first = node.partition(OFFSETS_TOPIC).next_offset
        async with watched_turns("DeleteTopics"):
            deleting = asyncio.create_task(node.broker.delete_topic("t"))
            await until(lambda: node.partition(OFFSETS_TOPIC).next_offset > first)  # the first turn is over
            making = asyncio.create_task(node.topic("t"))
            answers = [await committed(other, group) for group in groups]
            await deleting
        await making
        assert answers == [-1] * len(groups), "who asks meanwhile waits"
        assert not node.server.groups.shards[0].coordinator.committed_topics()
        sizes = [len(decode_batch(one)) for one in node.partition(OFFSETS_TOPIC).log.batches(first)]
        assert sum(sizes) == count * len(groups)
        assert max(sizes) <= 500, "a turn writes a batch"


async def test_a_deleted_topic_takes_its_offsets_along(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await node.topic("other")
        await commit(node, 5)
        await commit(node, 6, topic="other")
        await node.broker.delete_topic("t")
        await node.topic()
        assert await committed(node) == -1
        assert await committed(node, topic="other") == 6


async def test_offsets_of_a_topic_that_went_just_before_a_crash_do_not_meet_its_successor(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 5)
        node.server.groups._on_topics_changed = lambda deleted: None
        node.broker._listeners_of_change.clear()
        await node.broker.delete_topic("t")  # and nobody has told the coordinators
    async with running(tmp_path, **QUICK) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        await node.topic()
        assert await committed(node) == -1
    async with running(tmp_path, **QUICK) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await committed(node) == -1
