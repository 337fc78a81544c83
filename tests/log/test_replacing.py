"""Rewritten segments take the place of the old ones, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from clarion.log.cleaned import CleanedFile
from clarion.log.dump import DumpedBatch, dump_segment
from clarion.log.log import Log
from clarion.log.swap import Swap
from clarion.log.views import view_of
from clarion.wire.batch import read_header
from tests.log.batches import append, open_log, read_all
from tests.log.partitions import swap_in
from tests.sim.disk import PowerLoss, SimDisk


def replace_first_two(log: Log, disk: SimDisk, kept: list[bytes]) -> None:
    with CleanedFile(disk, log.folder, 0, 150) as cleaned:
        for one in kept:
            cleaned.append(read_header(one), one)
        assert swap_in(log, view_of(log), cleaned.finish([0, 3]))


def lasting_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_folder("/data")
    disk.sync_folder("/")
    disk.operations.clear()
    return disk


def prepared(disk: SimDisk) -> tuple[Log, list[bytes]]:
    log = open_log(disk)
    written = [append(log, size=200) for _ in range(12)]
    log.flush()
    return log, written


def test_readers_see_the_new_segment_and_slices_in_flight_the_old_one() -> None:
    disk = SimDisk()
    log, written = prepared(disk)
    slices = log.read(0, 1 << 20, log.end)
    replace_first_two(log, disk, [written[1], written[5]])
    assert list(log.batches(0)) == [written[1], *written[5:]]
    assert read_all(log, 0, max_bytes=1) == written[1]
    assert read_all(log, 2, max_bytes=1) == written[5]
    assert [segment.base_offset for segment in log.segments] == [0, 6, 9]
    assert b"".join(one.read() for one in slices) == b"".join(written)
    log.close()
    assert list(open_log(disk).batches(0)) == [written[1], *written[5:]]


def test_a_flush_that_began_before_ends_well_behind_it() -> None:
    """It has synced more bytes of the old segment than the new one has, which was synced before it came."""
    disk = SimDisk()
    log = open_log(disk)
    written = [append(log, size=200) for _ in range(12)]
    ticket = log.begin_flush()
    replace_first_two(log, disk, [written[1], written[5]])
    ticket.run()
    log.finish_flush(ticket)
    assert log.flushed == log.end
    assert list(log.batches(0)) == [written[1], *written[5:]]


def test_what_is_not_finished_leaves_nothing_behind() -> None:
    disk = SimDisk()
    log, written = prepared(disk)
    before = disk.names(log.folder)
    with CleanedFile(disk, log.folder, 0, 150) as cleaned:
        cleaned.append(read_header(written[0]), written[0])
    assert disk.names(log.folder) == before


def test_a_crash_at_any_point_leaves_all_of_the_old_or_all_of_the_new() -> None:
    complete = SimDisk()
    log, written = prepared(complete)
    first = len(complete.operations)
    kept = [written[1], written[5]]
    replace_first_two(log, complete, kept)
    outcomes = set()
    for crash_at in range(first, len(complete.operations) + 1):
        disk = lasting_disk()
        log, _ = prepared(disk)
        disk.crash_at = len(disk.operations) + crash_at - first
        try:
            replace_first_two(log, disk, kept)
        except PowerLoss:
            pass
        for seed in range(10):
            found = list(open_log(disk.power_loss(random.Random(seed)), clean=False, recovery_point=6).batches(0))
            assert found in (written, kept + written[6:])
            outcomes.add(len(found))
    assert outcomes == {8, 12}


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("number", [0, 1])
def test_a_swap_without_a_descriptor_takes_no_log_offline(code: int, number: int) -> None:
    disk = lasting_disk()
    log, written = prepared(disk)
    kept, countdown = [written[1], written[5]], iter([*range(number, -1, -1)])
    disk.fail_when(lambda what: what.kind == "sync_folder" and next(countdown) == 0, code)
    for _ in range(2 - number):
        with contextlib.suppress(OSError):
            replace_first_two(log, disk, kept)
    assert log.failed is None
    assert list(log.batches(0)) == kept + written[6:]
    written.append(append(log))
    log.flush()
    found = open_log(disk.power_loss(), clean=False, recovery_point=6)
    assert list(found.batches(0)) == kept + written[6:]


def test_a_swap_that_could_not_be_announced_never_happens_later() -> None:
    """Its files would take the place of whatever is in the log by the next start."""
    disk = lasting_disk()
    log, written = prepared(disk)
    for kind in ("rename", "sync_folder"):
        disk.fail_when(lambda what, kind=kind: what.kind == kind, errno.EMFILE)
        with pytest.raises(OSError):
            replace_first_two(log, disk, [written[1], written[5]])
        assert not [name for name in disk.names(log.folder) if name.endswith((".swap", ".cleaned"))]
    assert list(open_log(disk, clean=False).batches(0)) == written


def test_after_a_failed_last_sync_of_a_swap_memory_and_disk_agree() -> None:
    disk = lasting_disk()
    log, written = prepared(disk)
    kept, countdown = [written[1], written[5]], iter([1, 0])
    disk.fail_when(lambda what: what.kind == "sync_folder" and next(countdown) == 0, errno.EIO)
    with pytest.raises(OSError):
        replace_first_two(log, disk, kept)
    assert log.failed is not None, "whether the names will last nobody knows"
    assert list(log.batches(0)) == kept + written[6:]


def test_deleting_without_a_descriptor_takes_no_log_offline() -> None:
    disk = lasting_disk()
    log, written = prepared(disk)
    disk.fail_when(lambda what: what.kind == "sync_folder", errno.EMFILE)
    log.advance_start(7)
    assert log.failed is None
    assert list(log.batches(7)) == written[7:]
    written.append(append(log))
    log.flush()
    assert "00000000000000000000.log" not in disk.power_loss().names(log.folder), "the next flush made it last"


def test_a_flush_without_a_descriptor_takes_no_log_offline() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    disk.fail_when(lambda what: what.kind == "sync_folder", errno.EMFILE)
    with pytest.raises(OSError):
        log.flush()
    assert log.failed is None
    log.flush()
    assert log.flushed == log.end


def test_a_dump_names_every_batch_and_the_damaged_ones() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for epoch in (0, 0, 3):
        append(log, count=2, epoch=epoch)
    log.close()
    path = "/data/t-0/00000000000000000000.log"
    dumped = list(dump_segment(disk, path))
    assert [(one.header.base_offset, one.header.leader_epoch, one.damage) for one in dumped] == [
        (0, 0, ""),
        (2, 0, ""),
        (4, 3, ""),
    ]
    assert [record.offset for record in dumped[1].records()] == [2, 3]
    assert dumped[0].codec == "none"
    disk.open(path).write([b"!"], dumped[1].position + 70)
    assert [one.is_good for one in dump_segment(disk, path) if isinstance(one, DumpedBatch)] == [True, False, True]


def test_a_swap_that_was_announced_before_a_cut_does_not_come_back_with_a_crash() -> None:
    """It would take the place of what was written there since."""
    disk = lasting_disk()
    log, written = prepared(disk)
    with CleanedFile(disk, log.folder, 0, 150) as cleaned:
        cleaned.append(read_header(written[1]), written[1])
        swap = Swap(log, view_of(log), cleaned.finish([0, 3]))
    swap.announce()
    log.restart_at(0)
    later = [append(log, size=200) for _ in range(12)]
    log.flush()
    assert not swap.is_possible
    for seed in range(10):
        found = open_log(disk.power_loss(random.Random(seed)), clean=False)
        assert list(found.batches(0)) == later
    swap.withdraw()
    assert list(log.batches(0)) == later
