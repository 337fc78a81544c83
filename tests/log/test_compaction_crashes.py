"""A crash at any step of a rewrite leaves the old log or the new one; a lost folder sync too."""

import shutil

import pytest

from clarion.world import RealDisk
from tests.log.partitions import NOW, append, clean, open_log, records, sweep, topic

COMPACT = topic(cleanup_policy="compact", delete_retention_ms=1000)
TEN_SECONDS = topic(retention_ms=10_000)


class Crash(BaseException):
    """The process is gone."""


class MortalDisk(RealDisk):
    """Dies before its nth change, and never does anything again."""

    def __init__(self, changes_left):
        self.changes_left = changes_left

    def step(self):
        self.changes_left -= 1
        if self.changes_left < 0:
            raise Crash

    def open(self, path, *, create=False):
        if create:
            self.step()
        return MortalFile(self, super().open(path, create=create))

    def remove(self, path):
        self.step()
        super().remove(path)

    def rename(self, old, new):
        self.step()
        super().rename(old, new)

    def sync_folder(self, path):
        self.step()


class MortalFile:
    def __init__(self, disk, file):
        self.disk, self.file, self.path = disk, file, file.path

    def write(self, buffers, position):
        self.disk.step()
        self.file.write(buffers, position)

    def truncate(self, size):
        self.disk.step()
        self.file.truncate(size)

    def sync(self):
        self.disk.step()

    def __getattr__(self, name):
        return getattr(self.file, name)


def fold(found):
    table = {one.key: one.value for one in found}
    return {key: value for key, value in table.items() if value is not None}


def compacted_source(folder):
    """A log that was cleaned once, with a tombstone whose grace has passed, and with new data since."""
    log = open_log(folder, COMPACT)
    for number in range(4):
        append(log, [(b"a", b"%d" % number, NOW), (b"k%d" % number, b"x", NOW)])
        log.roll(NOW)
    append(log, [(b"k0", None, NOW)])
    log.roll(NOW)
    clean(log, COMPACT, NOW)
    for number in range(4):
        append(log, [(b"a", b"new%d" % number, NOW), (b"k1", b"new", NOW)])
        log.roll(NOW)
    append(log, [(b"a", b"last", NOW)])
    log.close()


def run_with_crash(folder, settings, work, changes):
    """Open the log on a disk that dies; True if the work was done before."""
    disk = MortalDisk(10**9)
    log = open_log(folder, settings, disk)
    disk.changes_left = changes
    try:
        work(log)
        return True
    except Crash:
        return False
    finally:
        log.abandon()


def crash_everywhere(tmp_path, source, settings, work, check):
    source(tmp_path / "source")
    for changes in range(500):
        folder = tmp_path / f"t-{changes}"
        shutil.copytree(tmp_path / "source", folder)
        is_done = run_with_crash(folder, settings, work, changes)
        log = open_log(folder, settings)
        assert not log.recovery.has_cut, f"crash before change {changes}: {log.recovery}"
        check(log)
        assert not [path.name for path in folder.iterdir() if path.name.endswith((".cleaned", ".log.swap"))]
        log.abandon()
        if is_done:
            return changes
    pytest.fail("the work never ended")


def test_a_crash_in_the_middle_of_compaction_keeps_every_key(tmp_path):
    compacted_source(tmp_path / "reference")
    reference = open_log(tmp_path / "reference", COMPACT)
    original, end = records(reference), reference.next_offset
    reference.abandon()

    def check(log):
        assert log.next_offset == end
        for start in range(end):
            assert fold(records(log, start)) == fold(one for one in original if one.offset >= start)

    def work(log):
        clean(log, COMPACT, NOW + 2000, first_dirty=9)

    steps = crash_everywhere(tmp_path, compacted_source, COMPACT, work, check)
    assert steps > 10


def test_a_crash_in_the_middle_of_a_trim_keeps_what_has_not_expired(tmp_path):
    def source(folder):
        log = open_log(folder, TEN_SECONDS)
        for age in (30_000, 20_000, 5_000, 1_000):
            append(log, [(None, b"%d" % age, NOW - age)])
        log.roll(NOW)
        append(log, [(None, b"now", NOW)])
        log.close()

    def check(log):
        assert [one.offset for one in records(log, max(2, log.start_offset))] == [2, 3, 4]

    crash_everywhere(tmp_path, source, TEN_SECONDS, lambda log: sweep(log, TEN_SECONDS, NOW), check)


def test_a_disk_without_room_ends_the_run_and_leaves_the_log_as_it_was(tmp_path):
    compacted_source(tmp_path / "t-0")

    class FullDisk(RealDisk):
        def open(self, path, *, create=False):
            if path.endswith(".cleaned"):
                raise OSError(28, "No space left on device")
            return super().open(path, create=create)

    log = open_log(tmp_path / "t-0", COMPACT, FullDisk())
    before = records(log)
    with pytest.raises(OSError, match="No space"):
        clean(log, COMPACT, NOW + 2000)
    assert records(log) == before
    append(log, [(b"z", b"1", NOW)])
    assert log.failed is None
    log.abandon()
