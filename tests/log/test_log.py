"""Stories about one log: what goes in comes out, what is full rolls, what breaks says so."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from clarion.log.checkpoints import load_epochs
from clarion.log.files import FileCache
from clarion.log.folder import TopicIdMismatch, parse_metadata
from clarion.log.log import Log, LogConfig
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.batch import read_header
from clarion.world import RealDisk, read_file
from tests.log.batches import SMALL, TOPIC_ID, append, batch, content, open_log, read_all, sweep_deleted
from tests.sim.disk import SimDisk

LARGE = LogConfig(index_interval_bytes=150)


@pytest.fixture
def disk() -> SimDisk:
    one = SimDisk()
    one.make_folder("/data")
    one.sync_folder("/")
    return one


class SlowFile:
    """Of a flush: time passes while it is synced."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self.sync = sync


# Reading


def test_an_offset_in_the_middle_of_a_batch_returns_the_whole_batch(disk: SimDisk) -> None:
    log = open_log(disk)
    first, second = append(log, count=5), append(log, count=5)
    assert read_all(log, 3) == first + second
    assert read_all(log, 7) == second


def test_one_batch_larger_than_the_limit_is_returned_whole(disk: SimDisk) -> None:
    log = open_log(disk)
    data = append(log, size=500)
    append(log)
    assert read_all(log, 0, max_bytes=10) == data
    assert read_all(log, 0, max_bytes=10, at_least_one_batch=False) == b""


def test_nothing_past_the_limit_is_returned(disk: SimDisk) -> None:
    log = open_log(disk)
    first = append(log)
    watermark = log.end
    append(log)
    assert [one.read() for one in log.read(0, 1 << 20, watermark)] == [first]
    assert log.read(1, 1 << 20, watermark) == []


def test_a_read_goes_on_in_the_next_segment(disk: SimDisk) -> None:
    log = open_log(disk)
    written = [append(log, size=300) for _ in range(6)]
    assert log.segment_count == 3
    assert read_all(log, 0) == b"".join(written)
    assert read_all(log, 0, max_bytes=3 * len(written[0])) == b"".join(written[:3])


def test_an_offset_outside_of_the_log_is_refused(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(3):
        append(log)
    log.advance_start(2)
    for offset in (1, 4):
        with pytest.raises(KafkaError) as refusal:
            log.read(offset, 100, log.end)
        assert refusal.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(3, 100, log.end) == []


def test_a_reader_at_the_tail_never_touches_the_disk(disk: SimDisk) -> None:
    log = open_log(disk, config=LARGE)
    for _ in range(3000):
        append(log, size=5)
    log._segments.active._index = None  # whoever searches the index would have to load it
    for offset in range(log.next_offset - 400, log.next_offset):
        assert log.read(offset, 1, log.end)
    assert log._segments.active._index is None


def test_a_gap_is_skipped_to_the_next_batch(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    after = append(log, gap=10)
    assert read_all(log, 5) == after
    log.roll(0)
    assert read_all(log, 5) == after


# Rolling


def test_a_segment_rolls_when_the_next_batch_does_not_fit(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(10):
        append(log, size=200)
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]


def test_a_segment_rolls_by_the_time_of_its_records(disk: SimDisk) -> None:
    log = open_log(disk, config=replace(LARGE, segment_ms=100))
    for time_ms in (1000, 1100, 1101, 1102):
        append(log, time_ms=time_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.close()
    log = open_log(disk, config=replace(LARGE, segment_ms=100))
    append(log, time_ms=1150)
    append(log, time_ms=1202)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 5]


def test_jitter_makes_logs_roll_at_different_times(disk: SimDisk) -> None:
    config = replace(LARGE, segment_ms=1000, segment_jitter_ms=1000)
    rolled_at = set()
    for number in range(5):
        log = open_log(disk, f"/data/t-{number}", config)
        time_ms = 1000
        while log.segment_count == 1:
            append(log, time_ms=time_ms)
            time_ms += 10
        rolled_at.add(time_ms)
    assert len(rolled_at) > 1
    assert max(rolled_at) <= 2020


def test_a_segment_rolls_when_its_index_is_full(disk: SimDisk) -> None:
    log = open_log(disk, config=replace(LARGE, segment_index_bytes=120))
    for number in range(60):
        append(log, time_ms=1000 + number)
    assert log.segment_count > 3
    for segment in log.segments:
        assert len(segment.index.entries) <= 120
        assert len(segment.times.entries) <= 120


def test_a_segment_rolls_when_an_offset_is_too_far_for_its_index(disk: SimDisk) -> None:
    log = open_log(disk, config=LARGE)
    append(log)
    far = append(log, gap=1 << 32)
    assert [segment.base_offset for segment in log.segments] == [0, (1 << 32) + 1]
    log.abandon()
    assert read_all(open_log(disk, config=LARGE, clean=False), 1) == far


def test_an_empty_log_begins_where_it_is_told_and_may_jump_far_ahead(disk: SimDisk) -> None:
    log = open_log(disk, start_offset=5)
    assert (log.start_offset, log.next_offset) == (5, 5)
    append(log, gap=1 << 33)
    assert [segment.base_offset for segment in log.segments] == [5 + (1 << 33)]


# Cutting


def test_truncating_inside_a_batch_takes_the_whole_batch(disk: SimDisk) -> None:
    log = open_log(disk)
    first = append(log, count=3)
    append(log, count=3)
    log.truncate_to(4)
    assert log.next_offset == 3
    assert content(log) == first


def test_a_truncated_log_forgets_the_epochs_behind_it(disk: SimDisk) -> None:
    log = open_log(disk)
    for epoch in (0, 0, 3, 5):
        append(log, epoch=epoch)
    assert log.epochs.entries == [(0, 0), (3, 2), (5, 3)]
    log.truncate_to(3)
    assert log.epochs.entries == [(0, 0), (3, 2)]
    assert log.epochs.end_offset_for(3) == (3, 3)
    assert log.epochs.end_offset_for(2) == (0, 2)


def test_restarting_leaves_nothing_behind(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(9):
        append(log, size=200)
    log.restart_at(100)
    assert (log.start_offset, log.next_offset, log.size_bytes) == (100, 100, 0)
    append(log)
    log.close()
    assert open_log(disk, start_offset=100).next_offset == 101


def test_segments_before_the_start_are_deleted_after_the_delay(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(9):
        append(log, size=200)
    log.advance_start(7)
    assert [segment.base_offset for segment in log.segments] == [6]
    assert len([name for name in disk.names("/data/t-0") if name.endswith(".deleted")]) == 6
    sweep_deleted(log, 1000)
    sweep_deleted(log, 1000 + SMALL.file_delete_delay_ms - 1)
    assert any(name.endswith(".deleted") for name in disk.names("/data/t-0"))
    sweep_deleted(log, 1000 + SMALL.file_delete_delay_ms)
    assert not any(name.endswith(".deleted") for name in disk.names("/data/t-0"))


def test_a_start_behind_a_lost_tail_begins_the_log_anew(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    log.close()
    log = open_log(disk, clean=False, start_offset=50)
    assert (log.start_offset, log.next_offset) == (50, 50)


# Searching


def test_the_first_record_as_late_as_that_is_found_inside_its_batch(disk: SimDisk) -> None:
    log = open_log(disk)
    for number in range(20):
        append(log, count=4, time_ms=1000 + number * 10)
    assert log.offset_for_time(1072) == (1072, 30)
    assert log.offset_for_time(1000) == (1000, 0)
    assert log.offset_for_time(5000) is None
    assert log.max_timestamp() == (1193, 79)


def test_a_search_by_time_stops_at_the_limit(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, time_ms=1000)
    limit = log.end
    append(log, time_ms=2000)
    assert log.offset_for_time(1500, limit) is None
    assert log.max_timestamp(limit) == (1000, 0)


def test_a_batch_that_lies_about_its_records_is_found_by_its_header(disk: SimDisk) -> None:
    log = open_log(disk)
    liar = bytearray(batch(0, count=3))
    liar[70:] = b"\xff" * (len(liar) - 70)
    log.append(liar, read_header(liar), 0)
    assert log.offset_for_time(1001) == (1002, 0)


# Errors


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_without_room_the_torn_batch_is_cut_and_the_log_goes_on_later(disk: SimDisk, code: int) -> None:
    log = open_log(disk)
    written = append(log)
    disk.fail_when(lambda operation: operation.kind == "write", code)
    with pytest.raises(OSError, match="t-0"):
        append(log)
    assert disk.size("/data/t-0/00000000000000000000.log") == len(written)
    assert log.failed is None
    written += append(log)
    assert content(log) == written
    log.abandon()
    assert content(open_log(disk, clean=False)) == written


def test_a_full_disk_cannot_roll_but_loses_nothing(disk: SimDisk) -> None:
    log = open_log(disk)
    written = b"".join(append(log, size=200) for _ in range(3))
    disk.is_full = True
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            append(log, size=200)
    assert content(log) == written
    disk.is_full = False
    written += append(log, size=200)
    assert content(log) == written
    assert log.segment_count == 2


def test_an_error_of_the_device_ends_the_writing_but_not_the_reading(disk: SimDisk) -> None:
    log = open_log(disk)
    written = append(log)
    disk.fail_when(lambda operation: operation.kind == "write", errno.EIO)
    for _ in range(2):
        with pytest.raises(OSError, match=r"t-0"):
            append(log)
    assert log.failed is not None
    with pytest.raises(OSError, match="takes no more writes"):
        log.begin_flush()
    assert read_all(log, 0) == written


def test_a_failed_sync_is_never_tried_again(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    before = log.flushed
    disk.fail_when(lambda operation: operation.kind == "sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    assert log.flushed == before
    for attempt in (log.flush, lambda: append(log), lambda: log.roll(0)):
        with pytest.raises(OSError, match="takes no more writes"):
            attempt()
    log.close()  # closes files and nothing else
    assert content(open_log(disk.power_loss(), clean=False)) == b""


def test_a_ticket_that_failed_in_its_thread_fails_the_log_when_it_is_given_back(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    ticket = log.begin_flush()
    disk.fail_when(lambda operation: operation.kind == "sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        ticket.run()
    with pytest.raises(OSError, match="takes no more writes"):
        log.finish_flush(ticket)


# Flushing


def test_a_flush_covers_indexes_epochs_and_the_topic_id_too(disk: SimDisk) -> None:
    log = open_log(disk)
    for epoch in (0, 0, 0, 3, 3, 3, 3):
        append(log, size=200, epoch=epoch)
    assert log.segment_count == 3
    log.flush()
    after = disk.power_loss()
    assert load_epochs(after, f"{log.folder}/leader-epoch-checkpoint") == [(0, 0), (3, 3)]
    assert parse_metadata(read_file(after, f"{log.folder}/partition.metadata")) == TOPIC_ID
    for base in (0, 3):
        for kind in (".index", ".timeindex"):
            path = f"{log.folder}/{base:020d}{kind}"
            assert read_file(after, path) == read_file(disk, path) != b""


def test_without_any_flush_a_power_loss_leaves_a_beginning_and_never_a_hole() -> None:
    """A segment's name must not reach the disk before that of the segment before it."""
    lengths = set()
    for seed in range(300):
        disk = SimDisk()
        rng = random.Random(seed)
        disk.make_folder("/data/t-0")
        disk.sync_folder("/")
        disk.sync_folder("/data")
        log = open_log(disk)
        for _ in range(14):
            append(log, size=200)
            if rng.random() < 0.3:
                disk.open(rng.choice(log.segments).path).sync()  # the kernel writes what it likes, when it likes
        after = disk.power_loss(rng)
        found = open_log(after, clean=False)
        offsets = [header.base_offset for header, _ in found.batch_headers(0)]
        assert offsets == list(range(len(offsets))), f"seed {seed}"
        lengths.add(len(offsets))
    assert len(lengths) > 3


def test_what_is_appended_while_a_flush_runs_belongs_to_the_next_one(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    end = log.end
    ticket = log.begin_flush()
    append(log)
    ticket.run()
    log.finish_flush(ticket)
    assert log.flushed == end
    log.flush()
    assert log.flushed == log.end


def test_a_flush_covers_the_segments_that_were_sealed_since_the_last(disk: SimDisk) -> None:
    log = open_log(disk)
    written = b"".join(append(log, size=300) for _ in range(10))
    ticket = log.begin_flush()
    append(log, size=900)  # rolls while the flush runs
    ticket.run()
    log.finish_flush(ticket)
    assert content(open_log(disk.power_loss(), clean=False)) == written


def test_a_truncation_while_a_flush_runs_takes_back_its_promise(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log)
    log.flush()
    append(log)
    ticket = log.begin_flush()
    log.truncate_to(1)
    append(log, epoch=1)
    ticket.run()
    log.finish_flush(ticket)
    assert log.flushed.offset == 1


def test_a_roll_after_a_restart_finds_its_syncs_done_by_a_flush_that_was_asked_for_before(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, size=200)
    log.close()
    log = open_log(disk)
    asked: list[int] = []
    log.on_pressure(lambda: asked.append(log.end.position))
    append(log, size=200)
    assert asked == []
    append(log, size=200)
    assert len(asked) == 1, "when the segment is half full"
    log.flush()
    before = len(disk.operations)
    append(log, size=200)
    append(log, size=200)
    assert log.segment_count == 2
    assert not [one for one in disk.operations[before:] if one.kind in ("sync", "sync_folder")]


def test_a_segment_that_fills_while_a_slow_flush_runs_finds_the_names_synced(disk: SimDisk) -> None:
    """The messages of a flush may take a device many seconds, in which as many come again."""
    log = open_log(disk)
    while log.segment_count < 2:
        append(log, size=200)
    ticket = log.begin_flush()
    sync = ticket._files[0].sync

    def fill_another() -> None:
        before = len(disk.operations)
        while log.segment_count < 3:
            append(log, size=200)
        assert not [one for one in disk.operations[before:] if one.kind in ("sync", "sync_folder")]
        sync()

    ticket._files[0] = SlowFile(fill_another)
    ticket.run()
    log.finish_flush(ticket)
    log.flush()
    assert log.segment_count == 3
    assert content(open_log(disk.power_loss(), clean=False)) == content(log)


# Handles and metadata


def test_open_files_are_bounded_and_slices_stay_readable(tmp_path: Path) -> None:
    disk = RealDisk()
    files = FileCache(disk, limit=4)
    logs = [open_log(disk, f"{tmp_path}/t-{number}", files=files) for number in range(30)]
    before = len(os.listdir("/proc/self/fd"))
    written = []
    for log in logs:
        written.append(b"".join(append(log, size=300) for _ in range(9)))
        log.flush()
    slices = logs[0].read(0, 1 << 20, logs[0].end)
    for log, data in zip(logs, written, strict=True):
        assert content(log) == data
    assert files.open_count <= 4
    assert len(os.listdir("/proc/self/fd")) <= before + len(slices) + 1
    logs[0].restart_at(9)
    assert b"".join(one.read() for one in slices) == written[0]
    del slices
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_opening_a_log_with_many_segments_looks_at_names_only(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(30):
        append(log, size=900)
    log.close()
    asked = []
    disk.size = lambda path, ask=disk.size: asked.append(path) or ask(path)  # type: ignore[method-assign]
    log = open_log(disk)
    assert log.segment_count == 30
    assert len(asked) == 1
    assert log.size_bytes == sum(segment.size for segment in log.segments)


def test_another_topic_of_the_same_name_is_not_served(disk: SimDisk) -> None:
    open_log(disk).close()
    with pytest.raises(TopicIdMismatch):
        Log.open(disk, "/data/t-0", SMALL, now_ms=0, clean=True, topic_id=UUID(int=9))


def test_a_closed_log_leaves_nothing_to_do_and_nothing_open(disk: SimDisk) -> None:
    files = FileCache(disk)
    log = open_log(disk, files=files)
    for _ in range(9):
        append(log, size=200)
    log.close()
    assert files.open_count == 0
    count = len(disk.operations)
    log = open_log(disk, files=files)
    log.close()
    assert len(disk.operations) == count
    assert content(open_log(disk.power_loss())) == content(log)
