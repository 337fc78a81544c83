"""What happens when a log is opened: trust after a clean shutdown, a scan after any other.

A scan begins with the segment of the recovery point, which is what is known to have been on disk. Every batch must be
whole, have the right checksum, and go on where the one before it ended, in its epoch or a later one. The first that
does not ends the log: the rest is cut off and the report says how much.

What is kept from the recovery point on is written anew and synced before anybody may call it flushed. After a kill it
may be in the page cache alone, and if a sync has failed before, the kernel takes its pages for clean: another sync
would succeed and write nothing.

Before the recovery point there is no torn write to be cut off: what is wrong there was damaged later, and what lies
behind it was acknowledged. A batch with a wrong checksum stays where it is, for its reader to notice, as it would in
any older segment. Where not even the end of the bad batch can be told, nothing is cut and no offset used again: the log
is opened for reading alone (`RecoveryReport.trouble`). So it is where what must be cut cannot be copied aside first.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from contextlib import closing
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from clarion.log.active import ActiveSegment, end_of
from clarion.log.batch_headers import DamagedSegment
from clarion.log.folder import INDEX, LOG, TIME_INDEX, Folder, parent_of, remove_if_there, sync_files
from clarion.log.index import OFFSET_DELTA_MAX, IndexBuilder
from clarion.log.segment import Segment, last_entry
from clarion.wire.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, read_header
from clarion.wire.checksum import crc32c
from clarion.world import DiskFile, event_log

log = event_log("log")

SCAN_BYTES: Final = 1 << 20  # large enough that calls do not count, small enough to stay in the processor's cache
_HEADER = Struct(">qiibIhiqq")  # up to the max timestamp
_CRC_FROM: Final = 21
_OVERTAKEN: Final[str] = "an offset comes again"
_BAD_CHECKSUM: Final[str] = "a batch does not match its checksum"
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found."""

    was_clean: bool
    scanned_bytes: int = 0
    cut_bytes: int = 0
    cut_from_offset: int | None = None  # the first offset that is no longer there
    reason: str = ""
    dropped_segments: list[int] = field(default_factory=list)  # kept as .corrupt files, like a tail that held batches
    damaged_batches: int = 0  # before the recovery point, left as they are
    trouble: OSError | None = None  # why the log is opened for reading alone

    @property
    def damage(self) -> str:
        """What is wrong with what is left, before the recovery point; empty if nothing is."""
        if self.trouble is not None:
            return str(self.trouble)
        return f"{self.damaged_batches} batches do not match their checksums" if self.damaged_batches else ""

    @property
    def has_cut(self) -> bool:
        return self.cut_bytes > 0 or bool(self.dropped_segments)


@dataclass(slots=True)
class Opened:
    """The segments of a log, ready to go on."""

    sealed: list[Segment]
    active: ActiveSegment
    next_offset: int
    report: RecoveryReport
    epochs: list[tuple[int, int]]  # as found in the scanned batches
    scanned_from: int


def open_clean(folder: Folder, bases: list[int], recovery_point: int, now_ms: int) -> Opened:
    """Nothing is scanned; but if the files of the active segment contradict each other, that one is."""
    active = ActiveSegment(folder, bases[-1], folder.disk.size(folder.file(bases[-1], LOG)), now_ms)
    try:
        next_offset = end_of(active)
    except DamagedSegment as damage:
        log.warning("clean_log_damaged", segment=active.path, reason=str(damage))
        active.forget()
        return recover(folder, bases, max(bases[-1], recovery_point), now_ms)
    sealed = [Segment(folder, base) for base in bases[:-1]]
    return Opened(sealed, active, next_offset, RecoveryReport(was_clean=True), [], next_offset)


def recover(
    folder: Folder, bases: list[int], recovery_point: int, now_ms: int, *, has_failed_sync: bool = False
) -> Opened:
    """With `has_failed_sync` all that is scanned is written anew, also what lies before the recovery point."""
    first = max(0, bisect_right(bases, recovery_point) - 1)
    report = RecoveryReport(was_clean=False)
    rewrite_from = -1 if has_failed_sync else recovery_point
    scans: list[SegmentScan] = []
    for number in range(first, len(bases)):
        epoch = scans[-1].epoch if scans else -1
        scan = SegmentScan(folder, bases[number], epoch, recovery_point, rewrite_from)
        report.reason = _misfit(scans[-1], scan, recovery_point) if scans else ""
        if not report.reason:
            scan.run()
            scans.append(scan)
            report.scanned_bytes += scan.file_size
            report.damaged_batches += scan.damaged_batches
            report.reason = scan.reason
        if report.reason:
            report.trouble = _trouble(folder, scans[-1], recovery_point)
            if report.trouble is not None:
                return _for_reading(folder, bases, recovery_point, report, now_ms)
            _cut(folder, scans[-1], bases[number + (scan is scans[-1]) :], report)
            break
    return _settle(folder, bases[:first], scans, report, now_ms)


class SegmentScan:
    """One segment, batch by batch, as far as it is good."""

    __slots__ = (
        "_epoch_before",
        "_folder",
        "_jump_at",
        "_jump_next",
        "_recovery_point",
        "_rewrite_from",
        "base_offset",
        "builder",
        "damaged_batches",
        "epoch",
        "epochs",
        "file",
        "file_size",
        "good_bytes",
        "next_offset",
        "reason",
    )

    def __init__(self, folder: Folder, base_offset: int, epoch: int, recovery_point: int, rewrite_from: int) -> None:
        """`rewrite_from`: the offset from which on the page cache may show what the device never got."""
        self._folder = folder
        self._epoch_before = epoch
        self._recovery_point = recovery_point
        self._rewrite_from = rewrite_from
        self.base_offset = base_offset
        self.file: DiskFile = folder.disk.open(folder.file(base_offset, LOG))
        self.file_size = self.file.size()
        self._reset()

    def _reset(self) -> None:
        self.builder = IndexBuilder.empty(self.base_offset, self._folder.index_interval_bytes)
        self.epoch = self._epoch_before
        self.epochs: list[tuple[int, int]] = []
        self.next_offset = self.base_offset
        self.good_bytes = 0
        self.damaged_batches = 0
        self.reason = ""
        self._jump_at, self._jump_next = -1, -1  # the last batch that left offsets out, and the offset after it

    @property
    def ends_with_jump(self) -> bool:
        return self.next_offset == self._jump_next

    @property
    def index_names_last_batch(self) -> bool:
        """Whether the index on disk was written when the segment was sealed with the batch that is now its last."""
        return self.good_bytes > 0 and last_entry(self._folder, self.base_offset, self.good_bytes) == (
            self.next_offset - 1,
            self.builder.last_position,
        )

    @property
    def has_batch_behind(self) -> bool:
        """Whether the batch that is bad is followed by what looks like another one."""
        head = self.file.read(HEADER_BYTES, self.good_bytes)
        if len(head) < HEADER_BYTES:
            return False
        at = self.good_bytes + read_header(head).size_bytes
        behind = self.file.read(HEADER_BYTES, at) if at > self.good_bytes else b""
        return len(behind) == HEADER_BYTES and read_header(behind).magic == MAGIC

    def run(self) -> None:
        self._scan(self.file_size)
        self.builder.seal()

    def back_to_jump(self) -> None:
        """Leave out the last batch: it jumped ahead, and what follows shows that it should not have.

        Its offset is not under the checksum. Found with a second scan, since it is found once in a lifetime.
        """
        reason, end = self.reason, self._jump_at
        self._reset()
        self._scan(end)
        self.builder.seal()
        self.reason = reason

    def _scan(self, end: int) -> None:
        wanted = SCAN_BYTES
        while self.good_bytes < end and not self.reason:
            at, rest = self.good_bytes, end - self.good_bytes
            chunk = memoryview(self.file.read(min(wanted, rest), at))
            wanted = max(SCAN_BYTES, self._take(chunk, rest))
            if self.next_offset > self._rewrite_from and self.good_bytes > at:
                self.file.write([chunk[: self.good_bytes - at]], at)  # the very bytes that were judged
            if self.reason == _BAD_CHECKSUM and self.next_offset < self._recovery_point:
                self._step_over(end)
        if self.ends_with_jump and self.reason == _OVERTAKEN:
            self.back_to_jump()

    def _take(self, chunk: memoryview, rest: int) -> int:
        """Judge the batches in the chunk, the beginning of the rest; returns the size of one that sticks out of it."""
        at, size, start, expected = 0, len(chunk), self.good_bytes, self.next_offset
        add, unpack, sticks_out = self.builder.add, _HEADER.unpack_from, 0
        while at < size:
            if size - at < HEADER_BYTES:
                sticks_out = self._torn(at, rest, HEADER_BYTES)
                break
            base, length, epoch, magic, crc, _, delta, _, timestamp = unpack(chunk, at)
            end = at + length + LENGTH_PREFIX_BYTES
            if magic != MAGIC or length < _LENGTH_MIN or delta < 0:
                self.reason = "no batch begins here"
                break
            if end > size:
                sticks_out = self._torn(at, rest, end - at)
                break
            if crc32c(chunk[at + _CRC_FROM : end]) != crc:
                self.reason = _BAD_CHECKSUM
                break
            if base != expected and not self._may_jump(base, expected, delta, start + at):
                break
            if epoch != self.epoch and not self._may_begin(epoch, base):
                break
            add(base + delta, start + at, end - at, timestamp)
            expected = base + delta + 1
            at = end
        self.next_offset, self.good_bytes = expected, start + at
        return sticks_out

    def _step_over(self, end: int) -> None:
        """Leave a damaged batch where it is, if another one begins where its header says that it ends."""
        header = read_header(self.file.read(HEADER_BYTES, self.good_bytes))
        after = self.good_bytes + header.size_bytes
        if header.base_offset < self.next_offset or header.last_offset - self.base_offset > OFFSET_DELTA_MAX:
            return
        if after < end:
            behind = self.file.read(HEADER_BYTES, after)
            if len(behind) < HEADER_BYTES:
                return
            follower = read_header(behind)
            if follower.magic != MAGIC or follower.base_offset < header.next_offset:
                return
        log.error("damaged_batch_kept", segment=self.file.path, position=self.good_bytes, offset=header.base_offset)
        self.builder.add(header.last_offset, self.good_bytes, header.size_bytes, -1)
        self.next_offset, self.good_bytes = header.next_offset, after
        self.damaged_batches += 1
        self.reason = ""

    def _torn(self, at: int, rest: int, whole: int) -> int:
        """A batch sticks out of the chunk. If it sticks out of the file too, its end was never written."""
        if whole > rest - at:
            self.reason = "the last batch is cut off"
        return whole

    def _may_jump(self, base: int, expected: int, delta: int, position: int) -> bool:
        if base < expected:
            self.reason = _OVERTAKEN
        elif base + delta - self.base_offset > OFFSET_DELTA_MAX:
            self.reason = "an offset is too far ahead for its segment"
        else:
            self._jump_at, self._jump_next = position, base + delta + 1
        return not self.reason

    def _may_begin(self, epoch: int, base: int) -> bool:
        if 0 <= epoch < self.epoch and base >= self._recovery_point:
            self.reason = f"epoch {epoch} comes after epoch {self.epoch}"
        elif epoch > self.epoch:
            self.epoch = epoch
            self.epochs.append((epoch, base))
        return not self.reason


def _misfit(before: SegmentScan, scan: SegmentScan, recovery_point: int) -> str:
    """Why the segment cannot follow the one before it, if so.

    A gap may be what compaction left: then the index of the segment before names its last batch. Else a crash took
    the end of that segment, and what comes after it is no continuation.
    """
    if scan.base_offset < before.next_offset:
        if before.ends_with_jump:
            before.back_to_jump()
        return f"segment {scan.base_offset} begins before {before.next_offset}, where the one before it ends"
    if scan.base_offset > max(before.next_offset, recovery_point) and not before.index_names_last_batch:
        return f"offsets {before.next_offset} to {scan.base_offset - 1} are missing"
    return ""


def _trouble(folder: Folder, last: SegmentScan, recovery_point: int) -> OSError | None:
    """Why the log cannot be cut behind the last good batch, if so. What is worth it has been copied aside then."""
    if last.next_offset < recovery_point:
        text = f"{last.file.path} is damaged at byte {last.good_bytes}, before what was flushed: {last.reason}"
        return OSError(errno.EIO, text)
    try:
        if last.has_batch_behind:
            _keep_aside(folder, last)
    except OSError as error:
        return OSError(error.errno, f"{last.file.path} must be cut, and what is cut cannot be kept: {error}")
    return None


def _keep_aside(folder: Folder, last: SegmentScan) -> None:
    """Copy what is cut off: it is not the torn end of a write, and somebody may want to look into it."""
    path = f"{folder.file(last.base_offset, LOG)}.{last.good_bytes}.corrupt"
    with closing(folder.disk.open(path, create=True)) as aside:
        aside.truncate(0)
        for position in range(last.good_bytes, last.file_size, SCAN_BYTES):
            aside.write([last.file.read(SCAN_BYTES, position)], position - last.good_bytes)
        aside.sync()
    folder.disk.sync_folder(folder.path)


def _cut(folder: Folder, last: SegmentScan, dropped: list[int], report: RecoveryReport) -> None:
    """End the log behind the last good batch. Later segments go first: a crash in between leaves a good prefix too."""
    report.cut_from_offset = last.next_offset
    for base in reversed(dropped):
        path = folder.file(base, LOG)
        report.cut_bytes += folder.disk.size(path)
        report.dropped_segments.insert(0, base)
        folder.disk.rename(path, path + ".corrupt")
        for kind in (INDEX, TIME_INDEX):
            remove_if_there(folder.disk, folder.file(base, kind))
    if dropped:
        folder.disk.sync_folder(folder.path)
    report.cut_bytes += last.file_size - last.good_bytes
    last.file.truncate(last.good_bytes)
    last.file_size = last.good_bytes
    log.warning(
        "tail_cut",
        folder=folder.path,
        offset=last.next_offset,
        bytes=report.cut_bytes,
        segments=len(dropped),
        reason=report.reason,
    )


def _for_reading(folder: Folder, bases: list[int], recovery_point: int, report: RecoveryReport, now_ms: int) -> Opened:
    """All that there is, as it is. What can be found is read; no offset that was given is given again."""
    active = ActiveSegment(folder, bases[-1], folder.disk.size(folder.file(bases[-1], LOG)), now_ms)
    try:
        next_offset = end_of(active)
    except DamagedSegment:
        next_offset = active.base_offset
    sealed = [Segment(folder, base) for base in bases[:-1]]
    next_offset = max(next_offset, recovery_point)
    return Opened(sealed, active, next_offset, report, [], next_offset)


def _settle(
    folder: Folder, untouched: list[int], scans: list[SegmentScan], report: RecoveryReport, now_ms: int
) -> Opened:
    """Sync what was kept and write the indexes of sealed segments."""
    for scan in scans:
        if scan.file_size:
            scan.file.sync()
        scan.file.close()
    sealed = [Segment(folder, base) for base in untouched]
    for scan in scans[:-1]:
        paths = [
            folder.save(scan.base_offset, INDEX, scan.builder.index.entries),
            folder.save(scan.base_offset, TIME_INDEX, scan.builder.times.entries),
        ]
        sync_files(folder.disk, paths)
        sealed.append(Segment(folder, scan.base_offset, scan.good_bytes))
    folder.disk.sync_folder(folder.path)
    folder.disk.sync_folder(parent_of(folder.path))  # the folder itself may be as new as what is in it
    last = scans[-1]
    active = ActiveSegment(folder, last.base_offset, last.good_bytes, now_ms, last.builder)
    epochs = [entry for scan in scans for entry in scan.epochs]
    return Opened(sealed, active, last.next_offset, report, epochs, scans[0].base_offset)
