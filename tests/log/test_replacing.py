"""Rewritten segments take the place of the old ones, whole or not at all."""

from __future__ import annotations

import random

from clarion.log.cleaned import CleanedFile
from clarion.log.dump import DumpedBatch, dump_segment
from clarion.log.log import Log
from clarion.wire.batch import read_header
from tests.log.batches import append, open_log, read_all
from tests.sim.disk import PowerLoss, SimDisk


def replace_first_two(log: Log, disk: SimDisk, kept: list[bytes]) -> None:
    with CleanedFile(disk, log.folder, 0, 150) as cleaned:
        for one in kept:
            cleaned.append(read_header(one), one)
        log.replace_segments(cleaned.finish([0, 3]))


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
        disk = SimDisk()
        disk.make_folder("/data")
        disk.sync_folder("/")
        disk.operations.clear()
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
