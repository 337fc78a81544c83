"""A log is cut in the loop while a flush is in its thread: what that flush knew takes no place afterwards."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from clarion.log.checkpoints import format_epochs, load_epochs
from clarion.log.cut_mark import find_marks
from clarion.log.folder import EPOCHS
from clarion.log.producer_snapshot import snapshot_offsets
from clarion.replication import Partition, Term
from clarion.wire.batch import stamp
from clarion.wire.records import encode_batch
from clarion.world import Disk, replace_file
from clarion.world.disk import RealFile
from tests.log.batches import append as append_to_log
from tests.log.batches import open_log
from tests.replication.bench import NOW_MS, Bench, append, turns
from tests.replication.test_producer_files import after_a_kill, close, flush_all
from tests.sim.disk import SimDisk

LEADS = Term(1, 4, (1, 2), (1, 2), 4)
FOLLOWS = Term(2, 9, (1, 2), (2,), 9)


def fetched(partition: Partition, offset: int, producer: int = 8) -> None:
    sent = encode_batch([(None, b"theirs", (), NOW_MS)], producer_id=producer, producer_epoch=0, base_sequence=offset)
    stamp(memoryview(sent), offset, 9)
    partition.append_fetched(memoryview(sent), NOW_MS)


def epochs_on_disk(disk: Disk, folder: str) -> list[tuple[int, int]] | None:
    return load_epochs(disk, f"{folder}/{EPOCHS}")


async def test_a_retry_of_what_was_cut_is_not_taken_for_a_duplicate_after_a_kill(tmp_path: Path) -> None:
    """The thread ends, and the process before the loop hears of it: nothing in memory tells what has to go."""
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    append(partition, producer=7, sequence=0, size=900)
    await flush_all(bench)
    partition.lead(LEADS)
    append(partition, producer=7, sequence=1, size=900)  # the other one never gets it
    await turns()
    assert len(bench.executor.held) == 1, "the flush of the roll is in its thread, and the disk takes long"
    partition.follow(FOLLOWS)
    partition.cut_where_logs_part(3, 1, NOW_MS)
    for offset in range(1, 5):
        fetched(partition, offset)
    partition.note_leader(5, 0)
    _, thread = bench.executor.held.pop(0)
    thread()
    assert max(snapshot_offsets(bench.disk, partition.log.folder), default=0) <= 1
    again = after_a_kill(bench, partition)
    again.lead(Term(1, 10, (1,), (1,), 10))
    assert append(again, producer=7, sequence=1, size=900).base_offset == 5


@pytest.mark.parametrize("begins_anew", [False, True])
async def test_a_follower_that_was_cut_agrees_with_its_leader_after_a_restart(
    tmp_path: Path, begins_anew: bool
) -> None:
    """Its epochs name none that the cut has taken: by such a one it would be asked to cut where nothing is."""
    bench = Bench(tmp_path)
    partition, leader = bench.partition(), Bench(tmp_path / "leader").partition()
    append(partition)
    append(leader)
    await flush_all(bench)
    partition.lead(LEADS)
    append(partition)
    await turns()
    leader.lead(FOLLOWS)
    partition.follow(FOLLOWS)
    if begins_anew:
        partition.begin_anew(0, NOW_MS)
    else:
        partition.cut_where_logs_part(3, 1, NOW_MS)
    await flush_all(bench)
    assert epochs_on_disk(bench.disk, partition.log.folder) == ([] if begins_anew else [(3, 0)])
    await close(bench, partition)

    again = Bench(tmp_path).partition()
    append(leader)
    at = again.position
    assert leader.diverging_epoch(at.last_epoch, at.next_offset) is None


async def test_a_cut_in_the_middle_of_a_flush_leaves_the_log_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the epochs, the thread slowly: neither takes the other's file away."""
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition)
    await flush_all(bench)
    partition.lead(LEADS)
    append(partition)
    await turns()
    is_written, may_go_on, loop, sync = threading.Event(), threading.Event(), threading.get_ident(), RealFile.sync

    def slow_sync(file: RealFile) -> None:
        sync(file)
        if EPOCHS in file.path and threading.get_ident() != loop:
            is_written.set()
            assert may_go_on.wait(20)

    monkeypatch.setattr(RealFile, "sync", slow_sync)
    done, work = bench.executor.held.pop(0)

    def run() -> None:
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert is_written.wait(20)
    partition.follow(FOLLOWS)
    partition.cut_where_logs_part(3, 1, NOW_MS)
    may_go_on.set()
    thread.join()
    await turns(20)
    assert partition.failure is None
    assert epochs_on_disk(bench.disk, partition.log.folder) == [(3, 0)]
    beside = [one for one in bench.disk.names(partition.log.folder) if one.endswith(".tmp")]
    assert len(beside) == len(find_marks(beside)), "what it wrote beside the file is gone"


def test_a_slow_flush_writes_no_older_epochs_over_newer_ones(tmp_path: Path) -> None:
    """Without any cut: a roll over a gap flushes in the loop while a thread is at it."""
    disk = SimDisk()
    log = open_log(disk)
    append_to_log(log, epoch=1)
    slow = log.begin_flush()
    append_to_log(log, epoch=2)
    log.flush()
    slow.run()
    log.finish_flush(slow)
    log.close()
    assert epochs_on_disk(disk, log.folder) == [(1, 0), (2, 1)]


async def test_a_snapshot_counts_as_saved_although_an_older_one_cannot_be_removed() -> None:
    disk = SimDisk()
    disk.make_folder("/data")
    bench = Bench(Path("/data"), disk=disk)
    partition = bench.partition(segment_bytes="1024")
    for sequence in range(3):
        append(partition, producer=7, sequence=sequence, size=900)
        await flush_all(bench)
    disk.fail_when(lambda one: one.kind == "remove" and one.path.endswith(".snapshot"), errno.EACCES)
    append(partition, producer=7, sequence=3, size=900)
    await flush_all(bench)
    assert snapshot_offsets(disk, partition.log.folder)[-1] == 4
    assert partition.recovery_point == partition.flushed_offset == 4


@pytest.mark.parametrize("clean", [True, False])
async def test_epochs_in_which_nothing_was_written_are_dropped_at_a_start(tmp_path: Path, clean: bool) -> None:
    """As an earlier version, or a crash within a cut, has left them."""
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition)
    await close(bench, partition)
    stale = format_epochs([(3, 0), (4, 1), (5, 7)])
    replace_file(bench.disk, f"{partition.log.folder}/{EPOCHS}", stale)
    again = Bench(tmp_path).partition(clean=clean)
    assert again.position.last_epoch == 3
    await close(bench, again)
    assert epochs_on_disk(bench.disk, again.log.folder) == [(3, 0)]


async def test_an_empty_log_does_not_part_from_its_leaders_for_ever(tmp_path: Path) -> None:
    """All of it was deleted; it remembers in which epoch. After an election that loses messages its leader does not."""
    partition, leader = Bench(tmp_path).partition(), Bench(tmp_path / "leader").partition()
    append(partition)
    append(leader, 2)
    partition.lead(LEADS)
    append(partition)
    partition.raise_start(2)
    leader.lead(FOLLOWS)
    append(leader)
    partition.follow(FOLLOWS)
    at = partition.position
    assert at.last_epoch == 4
    diverging = leader.diverging_epoch(at.last_epoch, at.next_offset)
    assert diverging is not None
    partition.cut_where_logs_part(*diverging, NOW_MS)
    at = partition.position
    assert leader.diverging_epoch(at.last_epoch, at.next_offset) is None
