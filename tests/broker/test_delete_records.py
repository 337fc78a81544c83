import asyncio
import errno
import shutil

import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, versions_of
from tests.broker.talk import batch

T = 1_700_000_000_000


async def delete(node: Node, offset: int, version: int = 2, *, topic: str = "t", partition: int = 0):
    asked = DeleteRecordsTopic(
        name=topic, partitions=(DeleteRecordsPartition(partition_index=partition, offset=offset),)
    )
    reply = await node.ask(DeleteRecordsRequest(topics=(asked,), timeout=1000), version)
    (result,) = reply.topics[0].partitions
    return result.error_code, result.low_watermark


@pytest.mark.parametrize("version", versions_of("DeleteRecords"))
async def test_every_version_moves_the_start(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T, T])
        assert await delete(node, 2, version) == (0, 2)
        assert node.partition("t", 0).start_offset == 2


async def test_minus_one_deletes_up_to_the_watermark(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T, T])
        assert await delete(node, -1) == (0, 3)
        await node.write("t", [T])
        assert node.partition("t", 0).next_offset == 4


async def test_the_start_never_goes_back_and_never_passes_the_watermark(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T, T])
        assert await delete(node, 2) == (0, 2)
        assert await delete(node, 1) == (0, 2)
        assert await delete(node, 4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete(node, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_a_compacted_topic_keeps_its_records_unless_it_is_deleted_too(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("kept", cleanup_policy="compact")
        await node.topic("both", cleanup_policy="compact,delete")
        assert await delete(node, -1, topic="kept") == (ErrorCode.POLICY_VIOLATION, -1)
        assert await delete(node, -1, topic="both") == (0, 0)


async def test_a_topic_without_a_cleanup_policy_is_not_compacted(tmp_path):
    async with running(tmp_path) as node:
        await node.topic(cleanup_policy="")
        await node.write("t", [T, T, T])
        assert await delete(node, 2) == (0, 2)


async def test_unknown_and_internal_partitions_are_refused(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        assert await delete(node, 0, partition=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await delete(node, 0, topic="nowhere") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        await node.topic("__consumer_offsets", cleanup_policy="compact")
        assert await delete(node, 0, topic="__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


async def test_the_new_start_outlives_a_restart(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T, T])
        await delete(node, 2)
    async with running(tmp_path) as node:
        assert node.partition("t", 0).start_offset == 2


async def test_a_deleted_record_does_not_come_back_after_a_kill(tmp_path):
    """No checkpoint is due for half a minute."""
    async with running(tmp_path / "a") as node:
        await node.topic("t", 2, segment_bytes="1024")
        for _ in range(6):
            await node.client.produce({("t", 0): batch(b"v" * 400)})
        assert await delete(node, 3) == (0, 3)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with running(tmp_path / "b") as node:
        assert node.partition().start_offset == 3


async def test_a_deletion_that_cannot_be_made_to_last_is_refused_and_can_be_repeated(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path / "a", disk=disk) as node:
        await node.topic("t", segment_bytes="1024")
        for _ in range(6):
            await node.client.produce({("t", 0): batch(b"v" * 400)})
        disk.on_write = lambda path: OSError(errno.ENOSPC, "full") if "offset-checkpoint" in path else None
        assert await delete(node, 3) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert node.partition().log.segment_count == 3, "no file goes before its start is saved"
        disk.on_write = lambda path: None
        assert await delete(node, 3) == (0, 3)
        assert node.partition().log.segment_count == 2
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with running(tmp_path / "b") as node:
        assert node.partition().start_offset == 3


async def test_deletions_at_the_same_time_share_their_checkpoints(tmp_path, monkeypatch):
    async with running(tmp_path) as node:
        await node.topic("t")
        await node.write("t", [T] * 9)
        checkpoints, taken = node.broker.checkpoints, []
        take = checkpoints.take
        monkeypatch.setattr(checkpoints, "take", lambda: taken.append(take()) or taken[-1])
        await asyncio.gather(*(checkpoints.save_now() for _ in range(10)))
        assert 1 <= len(taken) <= 2
