"""The log of one partition: segments on disk, appended at the end, read anywhere, cut at either side.

    start_offset          flushed                 end
        │  on disk           │  in the page cache  │
        └────────────────────┴─────────────────────┘

`append` writes one batch with one system call. `read` finds slices of files and touches no message; it may go through
several segments in one call. Flushing is apart from both (`begin_flush`).

When the disk is full the torn batch is cut off again and the log goes on when there is room. Any other error of a
write, and every error of a sync, ends the writing for good (`failed`): what the kernel could not write it may have
dropped, and a later success would prove nothing. Reading goes on.

A log belongs to the loop's thread. What others may do in theirs: run a flush ticket, read slices, fill a CleanedFile.
"""

from __future__ import annotations

from uuid import UUID

from clarion.log.active import ActiveSegment
from clarion.log.cleaned import CleanedSegment
from clarion.log.config import LogConfig
from clarion.log.cut_mark import CutMark, drop_cut, take_mark
from clarion.log.epochs import LeaderEpochs
from clarion.log.files import FileCache
from clarion.log.flush import FlushTicket, NameSync
from clarion.log.flushing import FlushableLog
from clarion.log.folder import DAMAGED, METADATA, SYNC_FAILED, Folder, remove_if_there
from clarion.log.index import OFFSET_DELTA_MAX
from clarion.log.leftovers import segment_bases
from clarion.log.producer_snapshot import drop_snapshots
from clarion.log.recovery import Opened, RecoveryReport, open_clean, recover
from clarion.log.segments import create
from clarion.log.slices import FileSlice
from clarion.log.views import LogView
from clarion.model.ids import LogPosition
from clarion.wire.batch import BatchHeader
from clarion.world import NO_DESCRIPTOR, Buffer, Disk, event_log

__all__ = ["FileCache", "FileSlice", "FlushTicket", "Log", "LogConfig", "RecoveryReport"]

log = event_log("log")


class Log(FlushableLog):
    def __init__(self, folder: Folder, config: LogConfig, topic_id: UUID, opened: Opened, start_offset: int) -> None:
        """Use `Log.open`."""
        super().__init__(folder, config, topic_id, opened, start_offset)
        self._epoch = -2  # of the last append; matches no batch before the first
        self._cut_mark: CutMark | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool,
        topic_id: UUID,
        start_offset: int = 0,
        recovery_point: int = 0,
        files: FileCache | None = None,
        is_replicated: bool = False,
    ) -> Log:
        """Open the log in `folder`, or make an empty one. `files` is shared by all logs of a broker.

        `clean`: the last process closed it; nothing is scanned then. TopicIdMismatch if it is another topic's.
        `start_offset`, `recovery_point`: by the last checkpoint. Where a cut came after it less of that is believed.
        `is_replicated`: what is lost at its end is fetched from other brokers, so that it may end before what was
        flushed (`is_short`). Else such offsets are passed over for good.
        """
        home = Folder(disk, folder, files or FileCache(disk), config)
        names = _names(disk, folder)
        has_id = METADATA in names and home.check_topic_id(topic_id)
        bases = segment_bases(home, names)
        mark = take_mark(home, names)
        if mark is not None:
            start_offset, recovery_point = mark.start, min(recovery_point, mark.end)
            if mark.is_under_way:
                bases = drop_cut(home, bases, mark)
        if not bases:
            # Offsets of messages that are lost are not given again, unless the messages come again.
            first = start_offset if is_replicated else max(start_offset, recovery_point)
            opened = Opened([], create(home, first, now_ms), first, RecoveryReport(was_clean=True), [], first)
            if recovery_point > start_offset:
                log.error("flushed_data_missing", folder=folder, offset=start_offset, flushed=recovery_point)
        elif clean and SYNC_FAILED not in names:
            opened = open_clean(home, bases, recovery_point, now_ms)
        else:
            opened = recover(home, bases, recovery_point, now_ms, has_failed_sync=SYNC_FAILED in names)
            remove_if_there(disk, f"{folder}/{SYNC_FAILED}")
        one = cls(home, config, topic_id, opened, start_offset)
        one._is_new = not bases
        home.changes += not bases
        if not has_id:
            one._write_topic_id()
        one._cut_mark = mark
        one._settle(opened, 0 if is_replicated else recovery_point, now_ms)
        if DAMAGED in names:
            one.damage = one.damage or "it was found to be damaged before"
        elif one.damage:
            home.note_damage()
        one.is_short = is_replicated and one.next_offset < recovery_point
        if opened.report.trouble is not None:
            one.fail(opened.report.trouble)
        elif mark is not None and mark.is_under_way:
            try:
                one._finish_cut(mark, now_ms)
            except OSError:
                if one.failed is None:
                    raise
        return one

    def _write_topic_id(self) -> None:
        self._folder.write_topic_id(self.topic_id)
        self._unsynced_paths.append(f"{self.folder}/{METADATA}")
        self._folder.changes += 1

    def _settle(self, opened: Opened, recovery_point: int, now_ms: int) -> None:
        if not opened.report.was_clean:
            self._epoch_file.merge(opened.scanned_from, opened.epochs)
            self.epochs.advance_start(self.start_offset)
            if self.next_offset < recovery_point:
                log.error("flushed_data_missing", folder=self.folder, offset=self.next_offset, flushed=recovery_point)
                self._skip_to(recovery_point, now_ms)
        if self.start_offset > self.next_offset:
            # The tail that the start offset spoke of is lost: what is left is what nobody may read any longer. Without
            # a mark of a cut: the next start, too, has to find that the log is short.
            self._restart_at(self.start_offset, now_ms)
        self.drop_below_start()

    def _skip_to(self, offset: int, now_ms: int) -> None:
        """Go on behind offsets that were given to messages which are lost: nobody must take others for them."""
        with self._failing():
            self._unsynced_paths += self._segments.roll(offset, now_ms)
        self._set_end(offset)
        self.flushed = self.end

    # Appending

    def append(self, batch: Buffer, header: BatchHeader, now_ms: int) -> LogPosition:
        """Write one batch that carries its offset already; returns the new end. OSError leaves the log as it was."""
        if self.failed is not None:
            raise self._offline()
        assert not self._is_closed, "nothing comes after the flush at the end"
        size = len(batch)
        assert header.base_offset >= self.next_offset, "offsets grow"
        last_offset = header.base_offset + header.last_offset_delta
        active = self._segments.active
        if not active.has_room(self._config, size, last_offset, header.max_timestamp, now_ms):
            active = self._roll(header.base_offset, last_offset, now_ms)
        epochs = None if header.leader_epoch == self._epoch else self._epochs_before(header.leader_epoch)
        assert active.size == self.end.position, "a batch is written where the one before it ends"
        try:
            position = active.append(batch, size, last_offset, header.max_timestamp)
            active.appended_ms = now_ms
        except OSError as error:
            self._undo_write(error)
            raise
        if epochs is not None:
            self._note_epoch(header, epochs)
        self.next_offset = last_offset + 1
        self.end = LogPosition(last_offset + 1, active.base_offset, position)
        return self.end

    def roll(self, now_ms: int) -> None:
        """Seal the active segment, unless it is empty, and begin a new one."""
        if self.failed is not None:
            raise self._offline()
        if self._segments.active.size:
            self._roll(self.next_offset, self.next_offset, now_ms)

    def _roll(self, base_offset: int, last_offset: int, now_ms: int) -> ActiveSegment:
        """Begin a segment where the active one ends; further on only if its index could not tell such a distance."""
        base = self.next_offset if last_offset - self.next_offset <= OFFSET_DELTA_MAX else base_offset
        if base != self.next_offset:
            self.flush()
        self._segments.prepare_roll()
        self._note_names_under_way()
        if self._folder.has_unsynced_names:
            # A segment's name must not reach the disk before that of the segment before it. Seldom here: flushes were
            # asked for when the segment was begun and when it was half full, and the names go first in them.
            changes = self._folder.changes
            self._sync_folder()
            self._folder.mark_synced(changes)
        self._unsynced_paths += self._segments.roll(base, now_ms)
        self._set_end(self.next_offset)
        return self._segments.active

    def _sync_folder(self) -> None:
        try:
            self._folder.disk.sync_folder(self.folder)
        except OSError as error:
            self._fail_unless_passing(error, NO_DESCRIPTOR)
            raise

    def _undo_write(self, error: OSError) -> None:
        active = self._segments.active
        if active.file is None:
            return  # it could not even be opened: nothing was written
        try:
            active.file.truncate(active.size)
            self._segments.note_cut()
        except OSError as second:
            self.fail(second)
        self._fail_unless_passing(error)

    def _epochs_before(self, epoch: int) -> LeaderEpochs:
        """Loaded before anything is written."""
        epochs = self.epochs
        assert epoch < 0 or epoch >= epochs.latest, f"leader epoch {epoch} comes after {epochs.latest}"
        return epochs

    def _note_epoch(self, header: BatchHeader, epochs: LeaderEpochs) -> None:
        self._epoch = header.leader_epoch
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)

    # Cutting

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Nothing at or behind the offset remains; a batch that holds it goes whole, so the end may come before it.

        On disk when it returns: what was cut must not come back behind what is appended next.
        """
        if self.failed is not None:
            raise self._offline()
        if offset >= self.next_offset:
            return
        if offset <= self._segments.first.base_offset:
            self.restart_at(max(offset, 0), now_ms)
            return
        self._begin_cut(min(self.start_offset, offset), offset)
        with self._failing():
            self._segments.truncate_to(offset, now_ms)
            active = self._segments.active
            self._set_end(active.last_offset + 1 if active.size else active.base_offset)
            self.start_offset = min(self.start_offset, self.next_offset)
            self.flushed = min(self.flushed, self.end)
            self.cleaned_to = min(self.cleaned_to, self.next_offset)
            self.epochs.truncate_to(self.next_offset)
            self._epoch_file.save()
            drop_snapshots(self._folder.disk, self.folder, above=self.next_offset)
            self._end_cut()

    def forget_empty_epochs(self) -> bool:
        """Forget epochs that begin where the log ends, as one does when all is deleted; whether there was one."""
        epochs = self.epochs
        before = epochs.changes
        epochs.truncate_to(self.next_offset)
        return epochs.changes != before

    def restart_at(self, offset: int, now_ms: int = 0) -> None:
        """Drop everything and begin anew at the offset."""
        if self.failed is not None:
            raise self._offline()
        self._begin_cut(offset, offset)
        self._restart_at(offset, now_ms)
        with self._failing():
            self._end_cut()

    def _restart_at(self, offset: int, now_ms: int) -> None:
        with self._failing():
            self._segments.restart_at(offset, now_ms)
            self.start_offset = offset
            self._set_end(offset)
            self.flushed = self.end
            self.cleaned_to = 0
            self.epochs.clear()
            self._epoch_file.save()
            drop_snapshots(self._folder.disk, self.folder, above=offset)

    def _begin_cut(self, start: int, at: int) -> None:
        """What was worked out from the log as it was takes the place of nothing that comes, at the next start neither.

        A thread may be giving a .cleaned file its next name, .swap, so they are looked for in this order.
        """
        self._note_cut(CutMark(start, at, at))
        self._folder.fence.begin_cut()
        disk = self._folder.disk
        with self._failing():
            for suffix in (".cleaned", ".swap"):
                for name in disk.names(self.folder):
                    if name.endswith(suffix):
                        remove_if_there(disk, f"{self.folder}/{name}")

    def _end_cut(self) -> None:
        self._note_cut(CutMark(self.start_offset, self.next_offset))

    def _finish_cut(self, mark: CutMark, now_ms: int) -> None:
        """At a start: a crash came in the middle of it."""
        if mark.start == mark.at:
            self.restart_at(mark.at, now_ms)
        elif mark.at < self.next_offset:
            self.truncate_to(mark.at, now_ms)
        else:
            with self._failing():
                self._end_cut()

    def _note_cut(self, mark: CutMark) -> None:
        """On disk when it returns. Where it cannot be begun nothing has changed, and it may be tried again."""
        disk, before = self._folder.disk, self._cut_mark
        if before is None:
            disk.open(f"{self.folder}/{mark.name}", create=True).close()
        else:
            mark = mark._replace(end=min(mark.end, before.end))
            if mark != before:
                disk.rename(f"{self.folder}/{before.name}", f"{self.folder}/{mark.name}")
        self._cut_mark = mark
        with self._failing():
            disk.sync_folder(self.folder)

    @property
    def cut_at(self) -> int | None:
        """What a checkpoint of before says of what lies behind is not believed; None since one has been taken."""
        return None if self._cut_mark is None else self._cut_mark.end

    def forget_cut(self, truncations: int) -> NameSync | None:
        """In the loop: a checkpoint that was taken after so many cuts is on disk. None if it needs no mark to go.

        Until the names have been synced, a crash may bring it back.
        """
        mark = self._cut_mark
        if mark is None or mark.is_under_way or truncations != self.truncations:
            return None
        self._folder.disk.remove(f"{self.folder}/{mark.name}")
        self._cut_mark = None
        self._folder.changes += 1
        return self._sync_of_names()

    def note_cleaned(self, view: LogView, offset: int) -> None:
        """Compaction has put all keys up to there into maps, working from this view."""
        if view.truncations == self.truncations:
            self.cleaned_to = offset

    def advance_start(self, offset: int, now_ms: int = 0) -> None:
        """Nothing before the offset is readable any longer. Segments that lie before it whole become .deleted files."""
        self.raise_start(offset)
        self.drop_below_start()

    def raise_start(self, offset: int) -> None:
        """For readers; `drop_below_start` takes the files. In between the caller may have the new start saved."""
        assert offset <= self.next_offset, f"{offset} is behind the log's end {self.next_offset}"
        if offset > self.start_offset:
            epochs = self.epochs  # loaded before anything changes
            self.start_offset = offset
            epochs.advance_start(offset)

    def restart_times(self, now_ms: int) -> None:
        """The clock was wrong: what it said when something was written says nothing any more."""
        self._segments.restart_times(now_ms)

    def take_deleted(self, now_ms: int, *, at_once: bool = False) -> list[str]:
        """The .deleted files that a sweep saw `file.delete.delay.ms` ago, to be removed in a thread.

        `at_once`: without the delay, because the disk has no room.
        """
        return self._segments.take_deleted(now_ms, -1 if at_once else self._config.file_delete_delay_ms)

    def replace_segments(self, cleaned: CleanedSegment) -> None:
        """Put an announced segment in the place of the sealed ones that it was made of; `log/swap` has all steps.

        The caller sees to it that these are flushed. In the loop; it renames a few files.
        """
        if self.failed is not None:
            raise self._offline()
        with self._failing():
            self._segments.replace(cleaned)

    def note_not_announced(self, error: OSError) -> None:
        """A segment could not be announced. Names that others wait for may be lost with it, unless this passes."""
        self._fail_unless_passing(error)

    @property
    def has_files_below_start(self) -> bool:
        return self.has_files_below(self.start_offset)

    def has_files_below(self, offset: int) -> bool:
        """Whether a sealed file has nothing from there on."""
        return self._segments.is_first_below(offset)

    def drop_below_start(self, *, is_start_saved: bool = False) -> None:
        """Where the start is not saved yet, the names must last at once: some of the files coming back were a hole."""
        with self._failing():
            self._segments.drop_below(self.start_offset, must_last=not is_start_saved)


def _names(disk: Disk, folder: str) -> list[str]:
    try:
        return disk.names(folder)
    except FileNotFoundError:
        disk.make_folder(folder)
        return []
