"""Flushes that fail: for good where bytes may be lost, for a while where nothing is in doubt, for nobody else ever."""

from __future__ import annotations

import asyncio
import errno

import pytest

from clarion.log.config import LogConfig
from clarion.log.flush import FlushTicket
from clarion.log.log import Log
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.topic_settings import TopicSettings
from clarion.replication import GroupCommit, LoopThreads, Partition, ProducerStates, Term
from clarion.replication import group_commit as module
from clarion.replication.flush_threads import OnDone, Work
from clarion.wire.records import encode_batch
from clarion.world.events import FIELDS
from tests.log.batches import TOPIC_ID
from tests.replication.bench import HeldExecutor, turns
from tests.sim.disk import SimDisk

NOW_MS = 1_700_000_000_000
pytestmark = pytest.mark.uncompiled  # second tries come sooner than they do


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRY_AGAIN_SECONDS", 0.01)


def partition(disk: SimDisk, commits: GroupCommit, index: int = 0) -> Partition:
    tp, settings = TopicPartition("t", index), TopicSettings()
    log = Log.open(disk, f"/data/{tp}", LogConfig.of(settings), now_ms=NOW_MS, clean=True, topic_id=TOPIC_ID)
    partition = Partition(tp, TOPIC_ID, log, settings, 3, commits, disk, ProducerStates())
    partition.lead(Term(1, 3, (1,), (1,)))
    return partition


async def outcome(one: Partition) -> ErrorCode:
    """Append, and wait until that is committed or never will be."""
    answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    appended = one.append(memoryview(encode_batch([(None, b"v", (), NOW_MS)])), NOW_MS)
    assert not one.when_committed(appended.last_offset, answer.set_result)
    return await asyncio.wait_for(answer, 60)


async def test_a_flush_without_room_for_its_epochs_is_tried_again(disk: SimDisk):
    one = partition(disk, GroupCommit())
    disk.fail_when(lambda what: what.kind == "write" and "leader-epoch" in what.path, errno.ENOSPC)
    assert await outcome(one) is ErrorCode.NONE
    assert one.log.failed is None


async def test_a_flush_that_is_put_off_again_and_again_is_logged_once(disk: SimDisk, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    one = partition(disk, GroupCommit())
    for _ in range(5):
        disk.fail_when(lambda what: what.kind == "write" and "leader-epoch" in what.path, errno.ENOSPC)
    assert await outcome(one) is ErrorCode.NONE
    told = [(record.getMessage(), str(getattr(record, FIELDS)["partition"])) for record in caplog.records]
    assert told == [("flush_put_off", "t-0"), ("flush_made_up_for", "t-0")]


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


class NoThreadAtFirst(LoopThreads):
    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def start(self, work: Work, on_done: OnDone) -> None:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("can't start new thread")
        super().start(work, on_done)


async def test_a_thread_that_cannot_be_started_is_asked_for_again(disk: SimDisk):
    commits = GroupCommit(NoThreadAtFirst(2))
    several = [partition(disk, commits, number) for number in range(4)]
    assert await asyncio.gather(*map(outcome, several)) == [ErrorCode.NONE] * 4
    assert await asyncio.gather(*map(outcome, several)) == [ErrorCode.NONE] * 4
    assert not any(one.is_flushing for one in several)


@pytest.mark.parametrize("error", [ValueError("a mistake"), KafkaError(ErrorCode.CORRUPT_MESSAGE, "damaged")])
async def test_whatever_a_flush_raises_before_it_begins_is_told_and_hits_no_other(disk: SimDisk, error: Exception):
    commits = GroupCommit()
    bad, good = partition(disk, commits, 0), partition(disk, commits, 1)

    def begin_flush() -> None:
        raise error

    bad.log.begin_flush = begin_flush  # type: ignore[assignment,method-assign]
    assert await asyncio.gather(outcome(bad), outcome(good)) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert not bad.is_flushing
    assert await outcome(good) is ErrorCode.NONE


async def test_a_mistake_while_a_flush_is_settled_ends_no_later_flush(disk: SimDisk):
    commits = GroupCommit()
    bad, good = partition(disk, commits, 0), partition(disk, commits, 1)
    finish_flush = bad.log.finish_flush
    mistakes = [ValueError("a mistake")]

    def stumble(ticket: FlushTicket) -> None:
        if mistakes:
            raise mistakes.pop()
        finish_flush(ticket)

    bad.log.finish_flush = stumble  # type: ignore[method-assign]
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    assert await asyncio.gather(outcome(bad), outcome(good)) == [ErrorCode.NONE] * 2
    assert not bad.is_flushing


async def test_many_partitions_that_are_due_at_once_keep_few_files_open(disk: SimDisk):
    executor = HeldExecutor()
    commits = GroupCommit(LoopThreads(executor))
    many = [partition(disk, commits, number) for number in range(60)]
    answers = [asyncio.ensure_future(outcome(one)) for one in many]
    most = 0
    await asyncio.sleep(0)
    while not all(one.done() for one in answers):
        await turns()
        most = max(most, len(executor.held))
        await executor.run()
    assert {await one for one in answers} == {ErrorCode.NONE}
    assert 8 <= most <= 16
