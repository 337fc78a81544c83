"""What is appended and not flushed: no API shows it, counts it or deletes it, and no checkpoint vouches for it."""

import errno

import pytest

from clarion.broker.config import Durability
from clarion.log.checkpoints import PARTITION_OFFSETS, CleanShutdown, load_partitions
from clarion.model.errors import ErrorCode
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from clarion.world import RealDisk
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, until
from tests.broker.talk import batch, now_ms

T0 = ("t", 0)
LATEST, MAX_TIMESTAMP = -1, -3
COMMITTED, APPENDED = 2, 5
CONSUMER, ANY_REPLICA = -1, 2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


async def with_uncommitted_tail(node: Node, disk: StoryDisk) -> int:
    """Two messages are flushed, three are not; returns the time of the first of these."""
    await node.topic()
    early = now_ms() - 1000
    for _ in range(COMMITTED):
        assert (await node.client.produce({T0: batch(b"flushed", at=early)}))[T0].error_code == 0
    disk.hold_flushes()
    for _ in range(APPENDED - COMMITTED):
        assert (await node.client.produce({T0: batch(b"not", at=early + 500)}, acks=1))[T0].error_code == 0
    assert node.partition().log.next_offset == APPENDED
    return early + 500


async def list_offsets(node: Node, timestamp: int, isolation: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=(ListOffsetsTopic(name="t", partitions=(asked,)),)
    )
    (found,) = (await node.ask(request, 8)).topics[0].partitions
    assert found.error_code == 0
    return found.offset


async def delete_records(node: Node, offset: int) -> tuple[int, int]:
    asked = DeleteRecordsTopic(name="t", partitions=(DeleteRecordsPartition(partition_index=0, offset=offset),))
    (result,) = (await node.ask(DeleteRecordsRequest(topics=(asked,), timeout=1000), 2)).topics[0].partitions
    return result.error_code, result.low_watermark


async def test_every_api_of_offsets_ends_at_the_watermark(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        uncommitted_ms = await with_uncommitted_tail(node, disk)
        for version in (4, 12):
            found = (await node.client.fetch({T0: 0}, version=version)).partitions[T0]
            assert (found.high_watermark, found.last_stable_offset) == (COMMITTED, COMMITTED)
        assert (await node.client.fetch({T0: 0})).values() == [b"flushed"] * COMMITTED
        assert (await node.client.fetch({T0: COMMITTED})).values() == []
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            assert await list_offsets(node, LATEST, isolation) == COMMITTED
            assert await list_offsets(node, MAX_TIMESTAMP, isolation) < COMMITTED
            assert await list_offsets(node, uncommitted_ms, isolation) == -1
        for offset in (COMMITTED + 1, APPENDED):
            assert await delete_records(node, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete_records(node, -1) == (0, COMMITTED), "all that is committed, and no more"
        disk.let_flushes_go()
        await until(lambda: node.partition().high_watermark.offset == APPENDED)
        assert (await node.client.fetch({T0: COMMITTED})).values() == [b"not"] * (APPENDED - COMMITTED)
        assert await list_offsets(node, LATEST, READ_COMMITTED) == APPENDED


async def test_a_checkpoint_vouches_only_for_what_is_flushed(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await with_uncommitted_tail(node, disk)
        await node.server.housekeeping.save_checkpoints()
        saved = load_partitions(RealDisk(), str(tmp_path / PARTITION_OFFSETS))
        found = saved[node.broker.image.topics["t"].id, 0]
        assert (found.recovery_point, found.high_watermark) == (COMMITTED, COMMITTED)
        disk.let_flushes_go()


@pytest.mark.parametrize("what", [".snapshot", "00000000000000000000.index", "leader-epoch-checkpoint"])
async def test_a_stop_that_could_not_write_everything_leaves_no_mark_of_a_clean_one(tmp_path, what):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, durability=Durability.PAGE_CACHE) as node:
        await node.topic()
        one = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
        await node.client.produce({T0: one})
        disk.on_write = lambda path: OSError(errno.ENOSPC, "full") if what in path and "/t-0/" in path else None
    assert not CleanShutdown(RealDisk(), str(tmp_path)).take()
    async with running(tmp_path) as node:
        assert (await node.client.produce({T0: one}))[T0].base_offset == 0, "a retried batch is recognised"
        assert node.partition().next_offset == 1
