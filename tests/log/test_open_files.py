"""What is closed when descriptors run short, and what must not be."""

from __future__ import annotations

import errno

import pytest

from clarion.log.files import FileCache
from clarion.log.log import Log
from tests.log.batches import SMALL, append, content, open_log, read_all
from tests.sim.disk import SimDisk


def logs_on(disk: SimDisk, count: int, files: FileCache) -> list[Log]:
    return [open_log(disk, f"/data/t-{number}", files=files) for number in range(count)]


def test_an_error_of_a_writeback_is_heard_however_many_files_were_opened_since() -> None:
    """The kernel tells it to the descriptors that are open when it happens, and to no other."""
    disk = SimDisk()
    files = FileCache(disk, limit=2)
    logs = logs_on(disk, 6, files)
    for log in logs:
        append(log)
    disk.lose_writeback("/data/t-0/00000000000000000000.log")
    with pytest.raises(OSError, match="Input/output error"):
        logs[0].flush()
    assert logs[0].failed is not None
    for log in logs[1:]:
        log.flush()


def test_a_cut_back_to_an_older_segment_keeps_its_unsynced_file_open() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(12):
        append(log, size=200)
    second, third = log.segments[1:3]
    disk.lose_writeback(second.path)
    log.truncate_to(third.base_offset)
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()


def test_logs_whose_files_cannot_be_closed_are_asked_for_a_flush_and_then_let_go() -> None:
    disk = SimDisk()
    files = FileCache(disk, limit=4)
    logs = logs_on(disk, 40, files)
    asked: list[int] = []
    for number, log in enumerate(logs):
        log.on_pressure(lambda number=number: asked.append(number))
        append(log)
    assert asked
    assert files.open_count > 4, "what is dirty stays open"
    for log in logs:
        log.flush()
    append(open_log(disk, "/data/one-more", files=files))
    for log in logs:
        read_all(log, 0)
    assert files.open_count <= 4
    assert all(content(log) for log in logs)


def test_beyond_a_bound_files_that_wait_for_a_flush_count_as_no_free_descriptor() -> None:
    disk = SimDisk()
    files = FileCache(disk, limit=4)
    logs = logs_on(disk, 100, files)
    for log in logs[:60]:
        append(log)
    with pytest.raises(OSError, match="wait for a flush") as refused:
        list(map(append, logs[60:]))
    assert refused.value.errno == errno.EMFILE
    assert not any(log.failed for log in logs), "it passes"
    for log in logs:
        log.flush()
        append(log)
        log.flush()


def test_room_for_indexes_is_found_without_closing_a_dirty_file() -> None:
    disk = SimDisk()
    files = FileCache(disk, index_bytes_max=200)
    log = open_log(disk, files=files, config=SMALL)
    for _ in range(60):
        append(log, size=100)
    for offset in range(60):
        read_all(log, offset, 1)
    for segment in log.segments[:-1]:
        disk.lose_writeback(segment.path)
        with pytest.raises(OSError, match="Input/output error"):
            segment.handle().sync()
