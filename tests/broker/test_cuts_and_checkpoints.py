"""A checkpoint is 30 seconds old when a log is cut, other messages come to its offsets, and the broker is killed."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from clarion.broker.checkpoint_writer import CheckpointWriter
from clarion.log.checkpoints import NOTHING_SAVED, PARTITION_OFFSETS, SavedOffsets
from clarion.log.config import LogConfig
from clarion.log.log import Log
from clarion.log.offset_files import OffsetFiles
from clarion.log.producer_snapshot import snapshot_offsets
from clarion.replication import Partition, Term
from clarion.replication.producer_files import load_producers
from clarion.wire.batch import stamp
from clarion.wire.records import encode_batch
from clarion.world import RealDisk, make_lasting_folder
from tests.broker.harness import until
from tests.log.batches import TOPIC_ID
from tests.replication.bench import NOW_MS, Bench, append, turns
from tests.replication.test_producer_files import flush_all
from tests.sim.disk import SimDisk

FOLLOWS = Term(2, 9, (1, 2), (2,), 9)


class Follower:
    """Led, has 40 messages and a checkpoint that says so, and follows another one since."""

    def __init__(self, folder: Path, **overrides: str) -> None:
        self.bench = Bench(folder)
        self.partition = self.bench.partition(**overrides)
        self.files = OffsetFiles(self.bench.disk, str(folder))
        self.writer = CheckpointWriter(self.files, [self.partition])

    async def fill(self, start: int = 0) -> None:
        for sequence in range(40):
            append(self.partition, producer=7, sequence=sequence)
        await flush_all(self.bench)
        self.partition.raise_start(start)
        await self.writer.save_now()
        assert self.saved == SavedOffsets(start, 40, 40)
        self.partition.follow(FOLLOWS)

    async def fetch(self, first: int, end: int, committed: int) -> None:
        for offset in range(first, end):
            sent = encode_batch([(None, b"theirs", (), NOW_MS)])
            stamp(memoryview(sent), offset, 9)
            self.partition.append_fetched(memoryview(sent), NOW_MS)
        self.partition.note_leader(committed, 0)
        await flush_all(self.bench)

    @property
    def saved(self) -> SavedOffsets:
        return (
            OffsetFiles(self.bench.disk, str(self.bench.folder))
            .load({}, was_clean=False)
            .get((TOPIC_ID, 0), NOTHING_SAVED)
        )

    def after_a_kill(self) -> Partition:
        known, one = self.saved, self.partition
        log = Log.open(
            self.bench.disk,
            one.log.folder,
            LogConfig.of(one.settings),
            now_ms=NOW_MS,
            clean=False,
            topic_id=TOPIC_ID,
            start_offset=known.start,
            recovery_point=known.recovery_point,
            is_replicated=True,
        )
        disk = self.bench.disk
        producers = load_producers(disk, log, NOW_MS, clean=False, recovery_point=known.recovery_point)
        again = Partition(one.tp, TOPIC_ID, log, one.settings, 3, self.bench.commits, disk, producers)
        again.restore_watermark(known.high_watermark)
        return again


@pytest.mark.parametrize("count", [10, 35, 60], ids=["before the old start", "behind it", "behind the old end"])
async def test_a_log_that_began_anew_further_back_keeps_its_first_messages(tmp_path: Path, count: int) -> None:
    follower = Follower(tmp_path)
    await follower.fill(start=30)
    assert follower.partition.begin_anew(0, NOW_MS)
    await follower.fetch(0, count, committed=count)
    again = follower.after_a_kill()
    assert (again.start_offset, again.next_offset, again.is_short) == (0, count, False)
    assert len(list(again.batches())) == count


async def test_what_was_committed_before_a_cut_is_not_where_it_was(tmp_path: Path) -> None:
    """After an election that loses messages: others are at those offsets, and nobody has committed them yet."""
    follower = Follower(tmp_path)
    await follower.fill()
    follower.partition.cut_where_logs_part(3, 4, NOW_MS)
    await follower.fetch(4, 50, committed=6)
    again = follower.after_a_kill()
    assert again.next_offset == 50
    assert again.high_watermark.offset <= 6


async def test_a_log_that_was_cut_and_ends_there_is_not_short(tmp_path: Path) -> None:
    """It lacks nothing that its leader has acknowledged: it need not leave those in sync."""
    follower = Follower(tmp_path)
    await follower.fill()
    follower.partition.cut_where_logs_part(3, 4, NOW_MS)
    again = follower.after_a_kill()
    assert (again.next_offset, again.is_short) == (4, False)
    assert again.producers.find(7) is not None


async def test_the_next_checkpoint_is_believed_again(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    await follower.fill(start=30)
    assert follower.partition.begin_anew(0, NOW_MS)
    await follower.fetch(0, 35, committed=35)
    assert follower.partition.is_cut_noted
    follower.partition.raise_start(20)
    await follower.writer.save_now()
    assert not follower.partition.is_cut_noted
    assert follower.partition.told_start == 20
    again = follower.after_a_kill()
    assert (again.start_offset, again.high_watermark.offset, again.recovery_point) == (20, 35, 35)
    assert not again.is_cut_noted


async def test_a_cut_while_a_checkpoint_is_written_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(tmp_path)
    await follower.fill(start=30)
    partition = follower.partition
    partition.cut_where_logs_part(3, 38, NOW_MS)
    saving, may_go_on = await begin_saving(follower.writer, monkeypatch)
    assert partition.begin_anew(0, NOW_MS)
    may_go_on.set()
    await saving
    await follower.fetch(0, 35, committed=35)
    assert partition.told_start == 0
    assert follower.after_a_kill().start_offset == 0


async def begin_saving(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Future[None], threading.Event]:
    """A checkpoint that is being written until the event is set."""
    is_writing, may_go_on = threading.Event(), threading.Event()
    rename = RealDisk.rename

    def slow_rename(disk: RealDisk, old: str, new: str) -> None:
        if new.endswith(PARTITION_OFFSETS):
            is_writing.set()
            assert may_go_on.wait(20)
        rename(disk, old, new)

    monkeypatch.setattr(RealDisk, "rename", slow_rename)
    saving = asyncio.ensure_future(writer.save_now())
    await until(is_writing.is_set)
    return saving, may_go_on


async def test_a_gone_replica_that_a_checkpoint_under_way_names_is_forgotten_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, held = Bench(tmp_path), list[Partition]()
    writer = CheckpointWriter(OffsetFiles(bench.disk, str(tmp_path)), held)
    await writer.save_now()
    held.append(bench.partition())
    append(held[0])
    await flush_all(bench)
    saving, may_go_on = await begin_saving(writer, monkeypatch)
    held.clear()
    forgetting = asyncio.ensure_future(writer.forget([(TOPIC_ID, 0)]))
    await turns()
    assert not forgetting.done()
    may_go_on.set()
    await asyncio.gather(saving, forgetting)
    assert not OffsetFiles(bench.disk, str(tmp_path)).load({}, was_clean=False)


def test_a_checkpoint_that_came_into_its_place_before_an_error_counts_as_written(tmp_path: Path) -> None:
    disk = SimDisk()
    make_lasting_folder(disk, "/data")
    files = OffsetFiles(disk, "/data")
    files.save({})
    disk.fail_when(lambda one: one.kind == "sync_folder", errno.EIO)
    with pytest.raises(OSError):
        files.save({(TOPIC_ID, 0): SavedOffsets(0, 1, 1)})
    assert files.may_name([(TOPIC_ID, 0)])
    files.save({})
    assert not OffsetFiles(disk, "/data").load({}, was_clean=False)


async def test_a_clean_stop_leaves_no_mark(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    await follower.fill()
    follower.partition.cut_where_logs_part(3, 4, NOW_MS)
    follower.partition.begin_close()
    follower.writer.save_last()
    assert not [one for one in follower.bench.disk.names(follower.partition.log.folder) if "cut" in one]


async def test_producers_of_before_a_cut_are_known_after_a_kill(tmp_path: Path) -> None:
    """The cut took all snapshots along: what they knew of the first segments is nowhere but in these."""
    follower = Follower(tmp_path, segment_bytes="1024")
    first = append(follower.partition, producer=6, size=300)
    for sequence in range(39):
        append(follower.partition, producer=7, sequence=sequence, size=300)
        await flush_all(follower.bench)
    await follower.writer.save_now()
    follower.partition.follow(FOLLOWS)
    follower.partition.cut_where_logs_part(3, 12, NOW_MS)
    assert not snapshot_offsets(follower.bench.disk, follower.partition.log.folder)
    again = follower.after_a_kill()
    again.lead(Term(1, 10, (1,), (1,), 10))
    assert append(again, producer=6, size=300).base_offset == first.base_offset, "it would be written twice"
    assert (again.next_offset, again.producers.has_snapshot) == (12, True)
