"""Opening what a crash, a bad disk or an older process left behind."""

from __future__ import annotations

import errno

import pytest

from clarion.log.dump import DamagedRest, dump_segment
from clarion.log.log import Log
from clarion.model.errors import KafkaError
from clarion.wire.batch import read_header
from tests.log.batches import append, batch, content, open_log, read_all
from tests.sim.disk import PowerLoss, SimDisk

FOLDER = "/data/t-0"
FIRST = f"{FOLDER}/00000000000000000000.log"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


def write(disk: SimDisk, count: int = 4, size: int = 20, close: bool = False, **more) -> list[bytes]:
    log = open_log(disk)
    written = [append(log, size=size, **more) for _ in range(count)]
    if close:
        log.close()
    else:
        log.abandon()
    return written


def poke(disk: SimDisk, path: str, position: int, data: bytes) -> None:
    disk.open(path).write([data], position)


def flip(disk: SimDisk, path: str, position: int, bit: int = 0) -> None:
    file = disk.open(path)
    file.write([bytes([file.read(1, position)[0] ^ (1 << bit)])], position)


# Torn and damaged tails


def test_a_flipped_bit_anywhere_leaves_exactly_the_batches_before_it(disk: SimDisk) -> None:
    written = write(disk, 3, epoch=2)
    data = b"".join(written)
    kept = [len(b"".join(written[:number])) for number in range(4)]
    for position in range(len(data)):
        poke(disk, FIRST, 0, data)
        flip(disk, FIRST, position, bit=position % 8)
        log = open_log(disk, clean=False)
        found = content(log)
        log.abandon()
        number = sum(position >= end for end in kept[1:])
        changed = position - kept[number]
        if 12 <= changed < 16 or (changed < 8 and number == 2):
            # Base offset and epoch sit outside of the checksum: only what contradicts the next batch is noticed.
            assert len(found) in kept[number:]
        else:
            assert found == data[: kept[number]], f"byte {position}"
            assert log.recovery.cut_bytes == len(data) - kept[number]
            assert log.recovery.cut_from_offset == number
            assert log.recovery.reason


@pytest.mark.parametrize("garbage", [b"\0" * 700, b"\xff" * 700, bytes(range(256)) * 3, b"x"])
def test_garbage_behind_the_last_batch_is_cut_off(disk: SimDisk, garbage: bytes) -> None:
    data = b"".join(write(disk))
    poke(disk, FIRST, len(data), garbage)
    log = open_log(disk, clean=False)
    assert content(log) == data
    assert log.recovery.cut_bytes == len(garbage)
    assert disk.size(FIRST) == len(data)


def test_a_torn_batch_is_cut_off_at_every_length(disk: SimDisk) -> None:
    first, second = write(disk, 2)
    for length in range(len(second)):
        poke(disk, FIRST, 0, first + second)
        disk.open(FIRST).truncate(len(first) + length)
        log = open_log(disk, clean=False)
        assert content(log) == first
        assert log.recovery.cut_bytes == length
        log.abandon()


def test_old_batches_behind_the_new_end_do_not_come_back(disk: SimDisk) -> None:
    old = write(disk, 4, epoch=1)
    newer = batch(1, epoch=2)
    assert len(newer) == len(old[1])
    poke(disk, FIRST, len(old[0]), newer)  # as if a truncation had been lost, but not the append after it
    log = open_log(disk, clean=False)
    assert content(log) == old[0] + newer
    assert log.recovery.reason == "epoch 1 comes after epoch 2"


def test_damage_ends_the_log_and_later_segments_are_kept_aside(disk: SimDisk) -> None:
    written = write(disk, 9, size=200)
    flip(disk, f"{FOLDER}/00000000000000000003.log", 100)
    log = open_log(disk, clean=False)
    assert content(log) == b"".join(written[:3])
    assert log.next_offset == 3
    assert log.recovery.dropped_segments == [6]
    assert f"{6:020d}.log.corrupt" in disk.names(FOLDER)
    append(log)
    log.close()
    assert open_log(disk).next_offset == 4


def test_good_batches_behind_a_damaged_one_are_kept_aside(disk: SimDisk) -> None:
    written = write(disk, 4)
    flip(disk, FIRST, len(written[0]) + 70)
    open_log(disk, clean=False)
    [aside] = [name for name in disk.names(FOLDER) if name.endswith(".corrupt")]
    assert bytes(disk._inode(f"{FOLDER}/{aside}").content).endswith(written[2] + written[3])
    assert content(open_log(disk, clean=False)) == written[0]


def test_a_scan_begins_with_the_segment_of_the_recovery_point(disk: SimDisk) -> None:
    write(disk, 12, size=200)
    flip(disk, FIRST, 100)
    log = open_log(disk, clean=False, recovery_point=7)
    assert log.next_offset == 12
    assert log.recovery.cut_bytes == 0
    assert log.recovery.scanned_bytes == sum(segment.size for segment in log.segments[2:])


# What the page cache shows and the device never got


@pytest.mark.parametrize("is_noted", [True, False])
def test_after_a_failed_sync_and_a_kill_the_tail_is_written_anew(disk: SimDisk, is_noted: bool) -> None:
    """The kill may come before the failure is noted in the folder, and the note itself may fail."""
    log = open_log(disk)
    written = [append(log) for _ in range(2)]
    log.flush()
    written.append(append(log))
    if not is_noted:
        disk.fail_when(lambda what: what.kind == "create" and what.path.endswith("sync-failed"), errno.EMFILE)
    disk.fail_when(lambda what: what.kind == "sync" and what.path.endswith(".log"), errno.EIO)
    with pytest.raises(OSError):
        log.flush()
    assert disk.exists(f"{FOLDER}/sync-failed") is is_noted
    again = open_log(disk, clean=False, recovery_point=2)
    assert again.flushed.offset == 3, "the next start counts it as flushed"
    disk.sync_folder("/")
    assert content(open_log(disk.power_loss(), clean=False, recovery_point=3)) == b"".join(written)


def test_only_what_lies_behind_the_recovery_point_is_written_anew(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(12):
        append(log, size=200)
    log.flush()
    log.abandon()
    before = len(disk.operations)
    open_log(disk, clean=False, recovery_point=12).abandon()
    assert not [one for one in disk.operations[before:] if one.kind == "write" and one.path.endswith(".log")]


# Damage before the recovery point


def in_one_segment(disk: SimDisk, count: int = 5) -> list[bytes]:
    log = open_log(disk)
    written = [append(log) for _ in range(count)]
    log.flush()
    log.abandon()
    return written


def test_a_damaged_batch_that_was_flushed_cuts_nothing_behind_it(disk: SimDisk) -> None:
    written = in_one_segment(disk)
    flip(disk, FIRST, len(written[0]) + 70)
    log = open_log(disk, clean=False, recovery_point=5)
    assert (log.next_offset, log.failed, log.recovery.damaged_batches) == (5, None, 1)
    assert read_all(log, 2) == b"".join(written[2:])
    assert read_all(log, 1)[len(written[1]) :] == b"".join(written[2:]), "its reader finds the wrong checksum"
    append(log)
    log.close()
    assert open_log(disk).next_offset == 6


@pytest.mark.parametrize("position", [8, 11, 16])
def test_where_the_end_of_a_flushed_batch_cannot_be_told_the_log_is_for_reading_alone(
    disk: SimDisk, position: int
) -> None:
    written = in_one_segment(disk)
    flip(disk, FIRST, len(written[0]) + position, bit=6)
    size = disk.size(FIRST)
    for _ in range(2):  # the next start finds the same
        log = open_log(disk, clean=False, recovery_point=5)
        assert log.failed is not None
        assert (log.next_offset, disk.size(FIRST)) == (5, size), "nothing is cut, no offset is used again"
        with pytest.raises(OSError, match="takes no more writes"):
            append(log)
        assert read_all(log, 0, max_bytes=1) == written[0]
        log.abandon()


def test_damage_in_an_earlier_segment_that_was_flushed_drops_none_of_the_later_ones(disk: SimDisk) -> None:
    written = write(disk, 9, size=200)
    flip(disk, f"{FOLDER}/{3:020d}.log", 8, bit=6)
    log = open_log(disk, clean=False, recovery_point=5)
    assert log.failed is not None
    assert log.next_offset == 9
    assert read_all(log, 6) == b"".join(written[6:])


def test_a_clean_log_with_a_damaged_end_loses_nothing_that_was_flushed(disk: SimDisk) -> None:
    written = in_one_segment(disk)
    open_log(disk, clean=False).close()
    flip(disk, FIRST, len(b"".join(written[:4])) + 8, bit=6)
    log = open_log(disk, recovery_point=5)
    assert (log.failed is not None, log.next_offset) == (True, 5)


@pytest.mark.parametrize("what", ["the tail", "everything", "the folder"])
def test_offsets_of_flushed_messages_that_are_lost_are_not_given_again(disk: SimDisk, what: str) -> None:
    written = in_one_segment(disk)
    kept = written[:3] if what == "the tail" else []
    disk.open(FIRST).truncate(len(b"".join(kept)))
    if what == "the folder":
        disk.remove_folder(FOLDER)
    log = open_log(disk, clean=False, recovery_point=5)
    assert log.next_offset == 5
    kept.append(append(log))
    assert content(log) == b"".join(kept)
    log.close()
    assert content(open_log(disk)) == b"".join(kept)
    assert content(open_log(disk, clean=False, recovery_point=6)) == b"".join(kept)


@pytest.mark.parametrize("what", ["the tail", "everything", "the folder"])
@pytest.mark.parametrize("clean", [True, False])
def test_where_others_have_what_is_lost_the_log_ends_before_it_and_says_so(
    disk: SimDisk, what: str, clean: bool
) -> None:
    written = in_one_segment(disk)
    kept = written[:3] if what == "the tail" else []
    disk.open(FIRST).truncate(len(b"".join(kept)))
    if what == "the folder":
        disk.remove_folder(FOLDER)
    log = open_log(disk, clean=clean, recovery_point=5, is_replicated=True)
    assert (log.next_offset, log.is_short, content(log)) == (len(kept), True, b"".join(kept))
    assert not open_log(disk, clean=clean, recovery_point=len(kept), is_replicated=True).is_short


def test_a_log_that_met_damage_says_what_it_is(disk: SimDisk) -> None:
    written = in_one_segment(disk)
    assert open_log(disk, clean=False, recovery_point=5).damage == ""
    flip(disk, FIRST, len(written[0]) + 70)
    assert "checksums" in open_log(disk, clean=False, recovery_point=5).damage
    flip(disk, FIRST, len(written[0]) + 8, bit=6)
    assert "damaged at byte" in open_log(disk, clean=False, recovery_point=5).damage
    assert open_log(disk).damage, "a start that looks at nothing knows of it too"


def test_damage_that_a_reader_meets_is_noted(disk: SimDisk) -> None:
    written = in_one_segment(disk)
    log = open_log(disk, clean=False, recovery_point=5)
    log.close()
    flip(disk, FIRST, len(written[0]) + 8, bit=6)
    log = open_log(disk)
    assert log.damage == ""
    with pytest.raises(KafkaError):
        read_all(log, 1)
    assert "damaged" in log.damage


@pytest.mark.parametrize("kind", ["create", "write", "sync"])
def test_what_cannot_be_kept_aside_is_not_cut(disk: SimDisk, kind: str) -> None:
    written = write(disk, 4)
    flip(disk, FIRST, len(written[0]) + 70)
    size = disk.size(FIRST)
    disk.fail_when(lambda what: what.kind == kind and what.path.endswith(".corrupt"), errno.ENOSPC)
    log = open_log(disk, clean=False)
    assert log.failed is not None
    assert disk.size(FIRST) == size
    log.abandon()
    log = open_log(disk, clean=False)
    assert (log.failed, content(log)) == (None, written[0]), "with room the next start cuts it"


def test_what_is_cut_has_been_kept_aside_durably_before(disk: SimDisk) -> None:
    written = write(disk, 4)
    open_log(disk, clean=False).abandon()
    disk.sync_folder("/")
    flip(disk, FIRST, len(written[0]) + 70)
    disk.open(FIRST).sync()
    for lost in range(20):
        trial = disk.power_loss()
        trial.crash_at = len(trial.operations) + lost
        try:
            open_log(trial, clean=False)
        except PowerLoss:
            pass
        after = trial.power_loss()
        files = [bytes(after._inode(f"{FOLDER}/{name}").content) for name in after.names(FOLDER) if ".log" in name]
        assert any(written[2] + written[3] in content for content in files)


# A clean start


def test_a_clean_start_reads_no_batches(disk: SimDisk) -> None:
    written = write(disk, 12, size=200, close=True)
    log = open_log(disk)
    assert log.recovery.was_clean
    assert log.recovery.scanned_bytes == 0
    assert content(log) == b"".join(written)


def test_damage_in_a_sealed_segment_does_not_cut_what_lies_behind_it(disk: SimDisk) -> None:
    written = write(disk, 12, size=200, close=True)
    flip(disk, FIRST, 100)
    log = open_log(disk)
    assert log.next_offset == 12
    assert read_all(log, 3) == b"".join(written[3:])
    assert [one.position for one in dump_segment(disk, FIRST) if one.damage] == [0]


def test_a_damaged_length_is_an_error_for_its_reader_and_nobody_else(disk: SimDisk) -> None:
    written = write(disk, 12, size=200, close=True)
    flip(disk, FIRST, len(written[0]) + 8, bit=6)
    log = open_log(disk)
    with pytest.raises(KafkaError, match="is damaged at byte"):
        log.read(1, 100, log.end)
    assert read_all(log, 3) == b"".join(written[3:])
    [rest] = [one for one in dump_segment(disk, FIRST) if one.damage]
    assert isinstance(rest, DamagedRest)


def test_a_clean_start_with_a_damaged_active_segment_scans_that_one(disk: SimDisk) -> None:
    written = write(disk, 12, size=200, close=True)
    size = disk.size(f"{FOLDER}/{9:020d}.log")
    disk.open(f"{FOLDER}/{9:020d}.log").truncate(size - 10)
    log = open_log(disk)
    assert content(log) == b"".join(written[:11])
    assert log.recovery.cut_bytes > 0


# Indexes


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "zeros", "random", "past the end", "stale"])
def test_a_damaged_index_is_built_again(disk: SimDisk, kind: str, clean: bool, damage: str) -> None:
    config_written = write(disk, 40, size=30, close=True)
    for name in [name for name in disk.names(FOLDER) if name.endswith(kind)]:
        path = f"{FOLDER}/{name}"
        size = disk.size(path)
        match damage:
            case "missing":
                disk.remove(path)
            case "empty":
                disk.open(path).truncate(0)
            case "short":
                disk.open(path).truncate(size - 3)
            case "zeros":
                poke(disk, path, size // 2, bytes(size))
            case "random":
                poke(disk, path, 0, (b"\x13\x57\x9b\xdf\x24" * size)[:size])
            case "past the end":
                poke(disk, path, size - 4, b"\x7f\xff\xff\xff")
            case "stale":
                poke(disk, path, 0, bytes(range(1, 9)))
    log = open_log(disk, clean=clean)
    assert content(log) == b"".join(config_written)
    for number in range(40):
        assert read_all(log, number, max_bytes=1) == config_written[number]
    assert log.offset_for_time(1000) == (1000, 0)
    assert log.max_timestamp() == (1000, 0)


def test_an_index_built_again_is_the_one_that_was_written(disk: SimDisk) -> None:
    write(disk, 60, size=30, close=True)
    indexes = [name for name in disk.names(FOLDER) if name.endswith("index")]
    before = {name: bytes(disk._inode(f"{FOLDER}/{name}").content) for name in indexes}
    for name in indexes:
        disk.remove(f"{FOLDER}/{name}")
    open_log(disk, clean=False).close()
    assert {name: bytes(disk._inode(f"{FOLDER}/{name}").content) for name in indexes} == before


# Leftovers


def cleaned(disk: SimDisk, base: int, batches: list[bytes], suffix: str) -> None:
    disk.open(f"{FOLDER}/{base:020d}.log{suffix}", create=True).write([b"".join(batches)], 0)


def test_unfinished_files_are_removed(disk: SimDisk) -> None:
    written = write(disk, 6, size=200, close=True)
    for suffix in (".deleted", ".cleaned", ".tmp"):
        cleaned(disk, 3, [b"x"], suffix)
    disk.open(f"{FOLDER}/{77:020d}.index", create=True)
    assert content(open_log(disk)) == b"".join(written)
    assert not [name for name in disk.names(FOLDER) if name.endswith(("ed", ".tmp")) or name.startswith(f"{77:020d}")]


@pytest.mark.parametrize("clean", [True, False])
def test_a_finished_swap_takes_the_place_of_what_it_covers(disk: SimDisk, clean: bool) -> None:
    written = write(disk, 12, size=200, close=True)
    kept = [written[0], written[5]]
    cleaned(disk, 0, kept, ".swap")
    log = open_log(disk, clean=clean, recovery_point=12)
    assert [segment.base_offset for segment in log.segments] == [0, 6, 9]
    assert list(log.batches(0)) == kept + written[6:]


def test_a_swap_is_undone_while_one_of_its_group_is_not_finished(disk: SimDisk) -> None:
    written = write(disk, 12, size=200, close=True)
    cleaned(disk, 0, written[:1], ".cleaned")
    cleaned(disk, 3, written[5:6], ".swap")
    assert list(open_log(disk).batches(0)) == written


def test_the_epochs_are_read_from_the_batches_when_their_file_is_lost(disk: SimDisk) -> None:
    log = open_log(disk)
    for epoch in (0, 0, 4, 4, 7):
        append(log, size=300, epoch=epoch)
    entries = log.epochs.entries
    log.close()
    disk.remove(f"{FOLDER}/leader-epoch-checkpoint")
    for clean in (True, False):
        assert open_log(disk, clean=clean).epochs.entries == entries


def test_an_unreadable_topic_id_is_written_again(disk: SimDisk) -> None:
    write(disk, close=True)
    disk.open(f"{FOLDER}/partition.metadata").truncate(10)
    log: Log = open_log(disk)
    assert log.next_offset == 4
    log.close()
    assert read_header(next(open_log(disk).batches(0))).base_offset == 0
