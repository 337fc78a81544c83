"""Flushes that fail: for good where bytes may be lost, for a while where nothing is in doubt, for nobody else ever."""

from __future__ import annotations

import asyncio
import errno

import pytest

from clarion.log.config import LogConfig
from clarion.log.log import Log
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.topic_settings import TopicSettings
from clarion.replication import GroupCommit, Partition, ProducerStates
from clarion.replication import group_commit as module
from clarion.wire.records import encode_batch
from tests.log.batches import TOPIC_ID
from tests.sim.disk import SimDisk

NOW_MS = 1_700_000_000_000


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRY_AGAIN_SECONDS", 0.01)


def partition(disk: SimDisk, commits: GroupCommit, index: int = 0) -> Partition:
    tp, settings = TopicPartition("t", index), TopicSettings()
    log = Log.open(disk, f"/data/{tp}", LogConfig.of(settings), now_ms=NOW_MS, clean=True, topic_id=TOPIC_ID)
    return Partition(tp, TOPIC_ID, log, settings, 3, commits, disk, ProducerStates())


async def outcome(one: Partition) -> ErrorCode:
    """Append, and wait until that is committed or never will be."""
    answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    appended = one.append(memoryview(encode_batch([(None, b"v", (), NOW_MS)])), NOW_MS)
    assert not one.when_committed(appended.last_offset, answer.set_result)
    return await asyncio.wait_for(answer, 5)


async def test_a_flush_without_room_for_its_epochs_is_tried_again(disk: SimDisk):
    one = partition(disk, GroupCommit())
    disk.fail_when(lambda what: what.kind == "write" and "leader-epoch" in what.path, errno.ENOSPC)
    assert await outcome(one) is ErrorCode.NONE
    assert one.log.failed is None


async def test_a_flush_without_a_descriptor_is_tried_again(disk: SimDisk):
    one = partition(disk, GroupCommit())
    disk.fail_when(lambda what: what.kind == "sync_folder", errno.EMFILE)
    assert await outcome(one) is ErrorCode.NONE


async def test_what_the_device_refused_is_never_tried_again(disk: SimDisk):
    one = partition(disk, GroupCommit())
    for code in (errno.EIO, errno.ENOSPC):
        two = partition(disk, GroupCommit(), index=code)
        disk.fail_when(lambda what, at=two: what.kind == "sync" and at.log.folder in what.path, code)
        assert await outcome(two) is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError, match="offline"):
            two.append(memoryview(encode_batch([(None, b"v", (), NOW_MS)])), NOW_MS)
    assert await outcome(one) is ErrorCode.NONE, "the neighbour goes on"


async def test_a_partition_that_fails_before_its_flush_begins_holds_up_no_other(disk: SimDisk):
    commits = GroupCommit()
    bad, good = partition(disk, commits, 0), partition(disk, commits, 1)
    failed, kept = asyncio.ensure_future(outcome(bad)), asyncio.ensure_future(outcome(good))
    await asyncio.sleep(0)  # both have appended, and their flushes begin at the end of this turn
    bad.log.failed = OSError(errno.EIO, "broken in between")
    assert await kept is ErrorCode.NONE
    assert await failed is ErrorCode.KAFKA_STORAGE_ERROR
