"""What a stop leaves of partitions: crash at any point of it, fail at any point of it, and nothing false is on disk."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from uuid import UUID

from clarion.broker.partitions import Partitions
from clarion.cluster import PartitionState, Topic
from clarion.log.files import FileCache
from clarion.log.offset_files import OffsetFiles
from clarion.log.producer_snapshot import snapshot_offsets
from clarion.model.topic_settings import TopicSettings
from clarion.replication import GroupCommit, Partition
from clarion.wire.records import encode_batch
from clarion.world import SystemClock
from tests.sim.disk import PowerLoss, SimDisk

NOW_MS = 1_700_000_000_000
LED = PartitionState(1, 0, (1,), (1,))
TOPIC = Topic("t", UUID(int=7), (LED, LED), {"clarion.durability": "page-cache"})


def opened(disk: SimDisk, *, was_clean: bool = True, count: int = 2) -> Partitions:
    topic = Topic(TOPIC.name, TOPIC.id, (LED,) * count, TOPIC.overrides)
    partitions = Partitions(disk, SystemClock(), "/data", FileCache(disk), TopicSettings(), GroupCommit())
    partitions.open_all([topic], OffsetFiles(disk, "/data"), was_clean=was_clean)
    partitions.lead([topic])
    return partitions


def filled() -> tuple[SimDisk, Partitions]:
    disk = SimDisk()
    disk.make_folder("/data")
    disk.sync_folder("/")
    partitions = opened(disk)
    for partition in partitions:
        for number in range(3):
            append(partition, number)
    return disk, partitions


def append(partition: Partition, sequence: int) -> int:
    batch = encode_batch([(None, b"v", (), NOW_MS)], producer_id=7, producer_epoch=0, base_sequence=sequence)
    return partition.append(memoryview(batch), NOW_MS).base_offset


async def test_a_crash_at_any_point_of_a_stop_leaves_no_snapshot_of_batches_that_are_not_there():
    disk, partitions = filled()
    first = len(disk.operations)
    await partitions.close_all()
    for crash_at in range(first, len(disk.operations) + 1):
        cut_short, partitions = filled()
        cut_short.crash_at = crash_at
        try:
            await partitions.close_all()
        except PowerLoss:
            pass
        for seed in range(5):
            after = cut_short.power_loss(random.Random(seed))
            behind = {path: snapshot_offsets(after, path) for path in ("/data/t-0", "/data/t-1") if after.exists(path)}
            for partition in opened(after, was_clean=False):
                taken = behind.get(partition.log.folder, [])
                assert all(offset <= partition.next_offset for offset in taken)


async def test_trouble_with_a_snapshot_at_the_end_counts_as_a_failed_close():
    """Else the next start would trust the files, and take a retried batch for a new one."""
    disk, partitions = filled()
    disk.fail_when(lambda what: what.kind == "write" and ".snapshot" in what.path, errno.ENOSPC)
    await partitions.close_all()
    assert [partition.log.failed is not None for partition in partitions] == [True, False]
    for partition in opened(disk, was_clean=False):
        assert append(partition, 2) == 2, "a retried batch is recognised"


async def test_a_stop_leaves_partitions_alone_in_which_nothing_was_ever_written():
    disk = SimDisk()
    disk.make_folder("/data")
    partitions = opened(disk, count=50)
    before = len(disk.operations)
    await partitions.close_all()
    assert len(disk.operations) - before < 50, "their files can be made again"
    after = disk.power_loss()
    after.make_folder("/data")
    assert [one.next_offset for one in opened(after, count=50)] == [0] * 50


async def test_partitions_are_closed_side_by_side_and_only_their_flushes_leave_the_loop():
    class Crowd(SimDisk):
        inside = most = 0
        is_closing = False

        def sync_folder(self, path: str) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.is_closing:
                barrier.wait(60)
            self.inside -= 1
            super().sync_folder(path)

    barrier = threading.Barrier(2)  # nobody gets through alone
    disk = Crowd()
    disk.make_folder("/data")
    partitions = opened(disk)
    for partition in partitions:
        append(partition, 0)
    disk.is_closing = True
    await partitions.close_all()
    assert disk.most == 2
    barrier.reset()


async def test_a_stop_without_a_thread_to_be_had_closes_the_partitions_all_the_same(monkeypatch):
    disk, partitions = filled()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", no_thread)
    await partitions.close_all()
    assert not any(one.log.failed for one in partitions)
    assert [one.next_offset for one in opened(disk.power_loss())] == [3, 3]
