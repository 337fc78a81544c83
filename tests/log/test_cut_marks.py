"""The power fails during a cut or after it, and the checkpoint is one of before: it says nothing of what came later."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from clarion.log.cut_mark import CutMark, find_marks
from clarion.log.folder import EPOCHS
from clarion.log.log import Log
from clarion.world import make_lasting_folder
from tests.log.batches import append, batch, content, open_log
from tests.sim.disk import PowerLoss, SimDisk

SEEDS = 6
SIZE = 80


class Story:
    """What was ever in the log, and what its last checkpoint says."""

    def __init__(self) -> None:
        self.states: list[list[bytes]] = [[]]  # the last one is that of now; a cut begins another
        self.start = 0
        self.flushed = 0

    def append(self, log: Log, count: int, epoch: int) -> None:
        for _ in range(count):
            self.states[-1].append(batch(log.next_offset, size=SIZE, epoch=epoch))
            append(log, size=SIZE, epoch=epoch)

    def checkpoint(self, log: Log, start: int = 0) -> None:
        log.flush()
        log.raise_start(start)
        self.start, self.flushed = start, log.flushed.offset

    def allows(self, log: Log) -> bool:
        """A beginning of one of the states, from wherever the log begins."""
        found = content(log)
        first = log.start_offset
        return any(
            b"".join(state[first - 100 : end]) == found
            for state in self.states
            for end in range(first - 100, len(state) + 1)
        )


def cuts_a_tail(log: Log, story: Story) -> None:
    story.append(log, 20, epoch=0)
    story.checkpoint(log)
    story.states.append(story.states[-1][:3])
    log.truncate_to(103)
    story.append(log, 9, epoch=1)
    log.flush()
    story.states.append(story.states[-1][:8])
    log.truncate_to(108)
    story.append(log, 14, epoch=2)


def begins_anew(log: Log, story: Story) -> None:
    story.append(log, 20, epoch=0)
    story.checkpoint(log, start=116)
    story.states.append([])
    log.restart_at(100)
    story.append(log, 12, epoch=1)


@pytest.mark.parametrize("happens", [cuts_a_tail, begins_anew])
def test_whenever_the_power_fails_there_is_a_log_without_holes(happens: Callable[[Log, Story], None]) -> None:
    def run(crash_at: int | None) -> tuple[SimDisk, Story]:
        disk, story = SimDisk(), Story()
        make_lasting_folder(disk, "/data")
        log = open_log(disk, start_offset=100)
        log.flush()
        disk.crash_at = None if crash_at is None else len(disk.operations) + crash_at
        try:
            happens(log, story)
        except PowerLoss:
            pass
        return disk, story

    whole, _ = run(None)
    for crash_at in range(len(whole.operations)):
        disk, story = run(crash_at)
        if not story.flushed:
            continue  # there is no checkpoint yet
        for seed in range(SEEDS):
            after = disk.power_loss(random.Random(seed))
            again = open_log(
                after, clean=False, start_offset=story.start, recovery_point=story.flushed, is_replicated=True
            )
            assert (again.is_short, again.damage, again.failed) == (False, "", None), (crash_at, seed)
            assert story.allows(again), (crash_at, seed)
            if len(story.states) > 1 and again.epochs.latest > 0:
                assert again.start_offset <= 108, "it began anew further back, or was cut there"


def test_a_cut_that_a_crash_interrupted_is_finished_by_the_next_start() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(20):
        append(log, size=SIZE)
    log.flush()
    disk.fail_when(lambda one: one.kind == "truncate", errno.EIO)
    with pytest.raises(OSError):
        log.truncate_to(5)
    again = open_log(disk, clean=False, recovery_point=20, is_replicated=True)
    assert (again.next_offset, again.is_short, again.failed) == (5, False, None)
    assert find_marks(disk.names(again.folder)) == [CutMark(0, 5)]


def test_an_older_version_that_goes_on_with_a_log_takes_the_mark_of_a_cut_away() -> None:
    """It finishes no cut: a version that comes back later would drop what was written meanwhile."""
    disk = SimDisk()
    make_lasting_folder(disk, "/data")
    log = open_log(disk)
    for _ in range(20):
        append(log, size=SIZE)
    log.flush()
    disk.fail_when(lambda one: one.kind == "truncate", errno.EIO)
    with pytest.raises(OSError):
        log.truncate_to(5)
    assert find_marks(disk.names(log.folder))
    for name in disk.names(log.folder):
        if name.endswith((".tmp", ".deleted", ".cleaned")):  # `leftovers` of every version before marks
            disk.remove(f"{log.folder}/{name}")
    assert not find_marks(disk.names(log.folder))
    older = open_log(disk, clean=False, recovery_point=20, is_replicated=True)
    for _ in range(50):
        append(older, size=SIZE, epoch=3)
    older.close()
    again = open_log(disk, clean=True, recovery_point=older.next_offset, is_replicated=True)
    assert (again.next_offset, again.failed, again.cut_at) == (older.next_offset, None, None)


def test_where_a_cut_cannot_be_noted_nothing_has_happened() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(3):
        append(log)
    disk.is_full = True
    with pytest.raises(OSError):
        log.truncate_to(1)
    assert (log.next_offset, log.failed, log.cut_at) == (3, None, None)
    disk.is_full = False
    log.truncate_to(1)
    assert (log.next_offset, log.cut_at) == (1, 1)


def test_a_second_cut_behind_the_first_makes_the_checkpoint_of_before_no_more_believable() -> None:
    log = open_log(SimDisk())
    for _ in range(10):
        append(log)
    log.truncate_to(3)
    for _ in range(10):
        append(log, epoch=1)
    log.truncate_to(8)
    assert (log.next_offset, log.cut_at) == (8, 3)


def test_a_mark_goes_with_a_checkpoint_that_was_taken_after_the_last_cut() -> None:
    disk = SimDisk()
    make_lasting_folder(disk, "/data")
    log = open_log(disk)
    for _ in range(3):
        append(log)
    log.truncate_to(2)
    taken = log.truncations
    log.truncate_to(1)
    assert log.forget_cut(taken) is None
    assert log.cut_at == 1
    sync = log.forget_cut(log.truncations)
    assert sync is not None
    sync.run()
    log.finish_name_sync(sync)
    assert log.cut_at is None
    assert not find_marks(disk.power_loss().names(log.folder))


@pytest.mark.parametrize(
    "name", ["x.cut.tmp", "1-2.cut.tmp", f"{CutMark(1, 2).name}.tmp", "7.cut.tmp", "1-2-3-4.cutting.tmp"]
)
def test_a_name_that_is_no_mark_is_none(name: str) -> None:
    assert find_marks([name, CutMark(1, 2, 3).name]) == [CutMark(1, 2, 3)]


def test_a_mark_that_comes_back_beside_a_later_one_does_not_stay() -> None:
    """One start later it would be the only one, and speak of yet another log."""
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(9):
        append(log)
    log.flush()
    for mark in (CutMark(0, 3), CutMark(0, 5, 5)):
        disk.open(f"{log.folder}/{mark.name}", create=True)
    again = open_log(disk, clean=False, recovery_point=9, is_replicated=True)
    assert (again.next_offset, find_marks(disk.names(log.folder))) == (5, [CutMark(0, 5)])


def test_epochs_that_cannot_be_read_within_a_cut_end_the_writing() -> None:
    """Else what is written next would be cut by the next start, which finds that the cut was under way."""
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(9):
        append(log)
    log.close()
    again = open_log(disk)
    disk.fail_read_when(lambda path: path.endswith(EPOCHS))
    with pytest.raises(OSError):
        again.truncate_to(5)
    assert again.failed is not None
    assert open_log(disk, clean=False, recovery_point=9, is_replicated=True).next_offset == 5
