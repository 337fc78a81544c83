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

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from uuid import UUID

from clarion.log.active import ActiveSegment
from clarion.log.cleaned import CleanedSegment
from clarion.log.config import LogConfig
from clarion.log.epoch_file import EpochFile
from clarion.log.epochs import LeaderEpochs
from clarion.log.files import FileCache
from clarion.log.flush import FlushTicket, NameSync
from clarion.log.folder import METADATA, SYNC_FAILED, Folder, parent_of, remove_if_there
from clarion.log.hops import SWEEP_BYTES, Reader, read_any
from clarion.log.index import OFFSET_DELTA_MAX
from clarion.log.leftovers import segment_bases
from clarion.log.producer_snapshot import drop_snapshots
from clarion.log.recovery import Opened, RecoveryReport, open_clean, recover
from clarion.log.segment import Segment
from clarion.log.segments import Segments, create, end_in
from clarion.log.slices import FileSlice
from clarion.log.times import TimeSearch, copies_for_a_thread
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition
from clarion.wire.batch import BatchHeader
from clarion.world import NO_DESCRIPTOR, NO_ROOM, Buffer, Disk, event_log

__all__ = ["FileCache", "FileSlice", "FlushTicket", "Log", "LogConfig", "RecoveryReport"]

log = event_log("log")


class Log:
    def __init__(self, folder: Folder, config: LogConfig, topic_id: UUID, opened: Opened, start_offset: int) -> None:
        """Use `Log.open`."""
        self.topic_id = topic_id
        self.recovery: RecoveryReport = opened.report
        self.failed: OSError | None = None
        self._folder = folder
        self._config = config
        self._segments = Segments(folder, opened.sealed, opened.active)
        self.next_offset: int = opened.next_offset
        self._epoch_file = EpochFile(folder, lambda: self.next_offset, self._headers)
        self._epoch = -2  # of the last append; matches no batch before the first
        self._truncations = 0
        self._is_new = False
        self._unsynced_paths: list[str] = []
        self.start_offset = max(start_offset, self._segments.first.base_offset)
        self._set_end(opened.next_offset)
        self.flushed = self.end

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
    ) -> Log:
        """Open the log in `folder`, or make an empty one. `files` is shared by all logs of a broker.

        `clean`: the last process closed it; nothing is scanned then. TopicIdMismatch if it is another topic's.
        """
        home = Folder(disk, folder, files or FileCache(disk), config)
        names = _names(disk, folder)
        has_id = METADATA in names and home.check_topic_id(topic_id)
        bases = segment_bases(home, names)
        if not bases:
            first = max(start_offset, recovery_point)  # offsets of messages that are lost are not given again
            opened = Opened([], create(home, first, now_ms), first, RecoveryReport(was_clean=True), [], first)
            if first > start_offset:
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
        one._settle(opened, recovery_point, now_ms)
        if opened.report.trouble is not None:
            one.fail(opened.report.trouble)
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
            # The tail that the start offset spoke of is lost: what is left is what nobody may read any longer.
            self.restart_at(self.start_offset, now_ms)
        self.drop_below_start()

    def _skip_to(self, offset: int, now_ms: int) -> None:
        """Go on behind offsets that were given to messages which are lost: nobody must take others for them."""
        with self._failing():
            self._unsynced_paths += self._segments.roll(offset, now_ms)
        self._set_end(offset)
        self.flushed = self.end

    # What there is

    @property
    def folder(self) -> str:
        return self._folder.path

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._folder.config = config

    @property
    def segments(self) -> list[Segment]:
        """All of them, sorted; the last is the active one."""
        return self._segments.all

    @property
    def segment_count(self) -> int:
        return len(self._segments.sealed) + 1

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epoch_file.epochs

    # Appending

    def append(self, batch: Buffer, header: BatchHeader, now_ms: int) -> LogPosition:
        """Write one batch that carries its offset already; returns the new end. OSError leaves the log as it was."""
        if self.failed is not None:
            raise self._offline()
        size = len(batch)
        assert header.base_offset >= self.next_offset, "offsets grow"
        last_offset = header.base_offset + header.last_offset_delta
        active = self._segments.active
        if not active.has_room(self._config, size, last_offset, header.max_timestamp, now_ms):
            active = self._roll(header.base_offset, last_offset, now_ms)
        epochs = None if header.leader_epoch == self._epoch else self._epochs_before(header.leader_epoch)
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
        if self._folder.has_unsynced_names:
            # A segment's name must not reach the disk before that of the segment before it. Seldom here: a flush was
            # asked for when the segment was half full.
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

    def _set_end(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.end = LogPosition(next_offset, self._segments.active.base_offset, self._segments.active.size)

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit: LogPosition,
        *,
        at_least_one_batch: bool = True,
        reader: Reader = read_any,
    ) -> list[FileSlice]:
        """Slices from the batch that holds the offset on, up to `max_bytes` and never past `limit`.

        The first batch comes whole even if it is larger (KIP-74), unless `at_least_one_batch` is off. The end is a
        batch's end wherever that is known without a search; else the last batch may be cut, as in Kafka. Behind the
        recent batches of the active segment this looks into the index and up to one index interval of the file; with
        `read_cached` a ColdRead is raised where that would ask the device.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in {self.start_offset}..{self.next_offset}"
            )
        if offset >= limit.offset:
            return []
        slices: list[FileSlice] = []
        for segment in self._segments.from_offset(offset):
            whole_first = at_least_one_batch and not slices
            end = end_in(segment, limit)
            stretch = segment.stretch(offset, max_bytes, end, whole_first=whole_first, read=reader)
            if stretch is None:
                continue  # only a gap is left of it, or it lies past the limit
            start, stop = stretch
            if stop > start:
                slices.append(FileSlice(segment.handle(), start, stop - start))
            max_bytes -= stop - start
            if stop < segment.size or max_bytes <= 0:
                break
        return slices

    def batch_headers(
        self, from_offset: int, to: LogPosition | None = None
    ) -> Iterator[tuple[BatchHeader, LogPosition]]:
        """Every batch from the one that holds the offset up to `to` (or the present end), and where it begins."""
        for header, segment, position in self._walk(from_offset, to or self.end):
            yield header, LogPosition(header.base_offset, segment.base_offset, position)

    def batches(self, from_offset: int, to: LogPosition | None = None) -> Iterator[bytes]:
        """The same batches, whole. To be asked for in the loop; a thread may go through them."""
        end = to or self.end
        segments = [one for one in self._segments.from_offset(from_offset) if one.base_offset <= end.segment]
        return _whole_batches([copy for _, copy in copies_for_a_thread(segments)], from_offset, end)

    def _headers(self) -> Iterator[BatchHeader]:
        return (header for header, _, _ in self._walk(self.start_offset, self.end))

    def _walk(self, offset: int, to: LogPosition) -> Iterator[tuple[BatchHeader, Segment, int]]:
        for segment in list(self._segments.from_offset(offset)):
            if segment.base_offset > to.segment:
                return
            for header, position in segment.headers(offset, end_in(segment, to), SWEEP_BYTES):
                yield header, segment, position

    def offset_for_time(self, timestamp_ms: int, limit: LogPosition | None = None) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record before `limit` that is as late as that, if there is one."""
        with closing(self.search_times(limit or self.end)) as search:
            return search.first_from(timestamp_ms)

    def max_timestamp(self, limit: LogPosition | None = None) -> tuple[int, int]:
        """(timestamp, offset) of the record with the greatest timestamp before `limit`; (-1, -1) if there is none."""
        with closing(self.search_times(limit or self.end)) as search:
            return search.latest()

    def search_times(self, limit: LogPosition) -> TimeSearch:
        """In the loop, for a search in a thread."""
        return TimeSearch(self._segments.from_offset(self.start_offset), self.start_offset, limit)

    # Flushing

    def begin_flush(self) -> FlushTicket:
        """In the loop. Then `ticket.run()` in a thread, then `finish_flush` in the loop, if run raised nothing."""
        if self.failed is not None:
            raise self._offline()
        ticket = FlushTicket(self._folder, self.end, self._segments.dirty_since(self.flushed), self._truncations)
        ticket.cuts = self._segments.cuts
        ticket.paths = list(self._unsynced_paths)
        if self._folder.has_unsynced_names:
            ticket.names = self._sync_of_names()
        if not self._epoch_file.is_saved:
            ticket.epochs, ticket.epoch_changes = self._epoch_file.unsaved()
        return ticket

    def finish_flush(self, ticket: FlushTicket) -> None:
        """In the loop. After a truncation in between `flushed` stays: flush again if `flushed < end`."""
        if ticket.error is not None:
            self.fail(ticket.error)
            raise self._offline()
        assert ticket.has_run, "a flush is finished that was never run"
        if ticket.names is not None:
            self._note_names_synced(ticket.names)
        if ticket.epochs is not None:
            self._epoch_file.mark_saved(ticket.epoch_changes)
        if ticket.paths:
            self._unsynced_paths = [path for path in self._unsynced_paths if path not in ticket.paths]
        if ticket.truncations == self._truncations:
            self._segments.mark_synced(ticket.sizes, ticket.cuts)
            self.flushed = max(self.flushed, ticket.end)
            assert self.flushed <= self.end, "more is flushed than there is"

    def flush(self) -> None:
        """All three steps at once; blocks."""
        self._run(self.begin_flush())

    def _run(self, ticket: FlushTicket) -> None:
        try:
            ticket.run()
        except OSError as error:
            if not ticket.may_try_again:
                self.fail(error)
            raise
        self.finish_flush(ticket)

    def begin_name_sync(self) -> NameSync | None:
        """The part of a flush that makes names last: `run` in a thread, then `finish_name_sync`; None if all do."""
        if self.failed is not None:
            raise self._offline()
        return self._sync_of_names() if self._folder.has_unsynced_names else None

    def finish_name_sync(self, sync: NameSync) -> None:
        """In the loop. Without a free descriptor it is left to the next flush; any other error ends the writing."""
        if sync.error is None:
            self._note_names_synced(sync)
        elif sync.error.errno in NO_DESCRIPTOR:
            log.warning("folder_sync_put_off", folder=self.folder, reason=str(sync.error))
        else:
            self.fail(sync.error)
            raise self._offline()

    def _sync_of_names(self) -> NameSync:
        folders = [self.folder, parent_of(self.folder)] if self._is_new else [self.folder]
        return NameSync(self._folder.disk, folders, self._folder.changes)

    def _note_names_synced(self, sync: NameSync) -> None:
        self._folder.mark_synced(sync.changes)
        self._is_new = False

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
        self._truncations += 1
        with self._failing():
            self._segments.truncate_to(offset, now_ms)
        active = self._segments.active
        self._set_end(active.last_offset + 1 if active.size else active.base_offset)
        self.start_offset = min(self.start_offset, self.next_offset)
        self.flushed = min(self.flushed, self.end)
        self.epochs.truncate_to(self.next_offset)
        with self._failing():
            self._epoch_file.save()
            drop_snapshots(self._folder.disk, self.folder, above=self.next_offset)

    def restart_at(self, offset: int, now_ms: int = 0) -> None:
        """Drop everything and begin anew at the offset."""
        if self.failed is not None:
            raise self._offline()
        self._truncations += 1
        with self._failing():
            self._segments.restart_at(offset, now_ms)
        self.start_offset = offset
        self._set_end(offset)
        self.flushed = self.end
        self.epochs.clear()
        with self._failing():
            self._epoch_file.save()
            drop_snapshots(self._folder.disk, self.folder, above=offset)

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

    def sweep_deleted(self, now_ms: int) -> int:
        """Remove .deleted files that a sweep saw `file.delete.delay.ms` ago; returns how many."""
        return self._segments.sweep_deleted(now_ms, self._config.file_delete_delay_ms)

    def take_deleted(self, now_ms: int, *, at_once: bool = False) -> list[str]:
        """What `sweep_deleted` would remove, for a caller who removes it in a thread: a large file takes its time.

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
        return self._segments.is_first_below(self.start_offset)

    def drop_below_start(self, *, is_start_saved: bool = False) -> None:
        """Where the start is not saved yet, the names must last at once: some of the files coming back were a hole."""
        with self._failing():
            self._segments.drop_below(self.start_offset, must_last=not is_start_saved)

    def on_pressure(self, flush_soon: Callable[[], None]) -> None:
        """Called in the loop when descriptors run out and this log's files cannot be closed before a flush."""
        self._folder.flush_soon = flush_soon

    def share_files(self, files: FileCache) -> None:
        """In the loop: count its handles with those of the other logs. A log is made in a thread with its own cache."""
        self._folder.files = files
        for segment in self.segments:
            if segment.file is not None:
                files.adopt(segment)

    # The end

    def begin_close(self) -> FlushTicket | None:
        """Everything is to be flushed, indexes and epochs too, so that the next start need not scan.

        In the loop, as `begin_flush`; `abandon` follows `finish_flush`. None if it is on disk already.
        """
        if self.failed is not None:
            return None
        with self._failing():
            self._unsynced_paths += self._segments.active.save()
        has_news = self.flushed != self.end or (self._has_unsynced and not self._is_untouched)
        return self.begin_flush() if has_news else None

    def close(self) -> None:
        """All steps of closing at once; blocks."""
        ticket = self.begin_close()
        if ticket is not None:
            self._run(ticket)
        self.abandon()

    def abandon(self) -> None:
        """Close the files without a flush: the log is going to be deleted, or has failed."""
        self._segments.forget()

    @property
    def _is_untouched(self) -> bool:
        """Nothing was ever written to it: what a power loss takes of its files the next start makes again."""
        return self._is_new and self.segment_count == 1 and not self._segments.active.size

    @property
    def _has_unsynced(self) -> bool:
        is_synced = self._epoch_file.is_saved and not self._folder.has_unsynced_names
        return bool(self._unsynced_paths or self._segments.cuts) or not is_synced

    def fail(self, error: OSError) -> None:
        """No more writes: what the kernel could not write it may have dropped."""
        if self.failed is None:
            self.failed = error
            self._folder.note_failed_sync()
            log.error("log_failed", folder=self.folder, reason=str(error))

    def _fail_unless_passing(self, error: OSError, passing: tuple[int, ...] = (*NO_ROOM, *NO_DESCRIPTOR)) -> None:
        """Of an error that has left nothing half done."""
        if error.errno not in passing:
            self.fail(error)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Half done is not done: an error in here ends the writing."""
        try:
            yield
        except OSError as error:
            self.fail(error)
            raise

    def _offline(self) -> OSError:
        error = self.failed
        assert error is not None
        return OSError(error.errno, f"{self.folder} takes no more writes since: {error}")


def _names(disk: Disk, folder: str) -> list[str]:
    try:
        return disk.names(folder)
    except FileNotFoundError:
        disk.make_folder(folder)
        return []


def _whole_batches(segments: list[Segment], from_offset: int, end: LogPosition) -> Iterator[bytes]:
    for segment in segments:
        try:
            for header, position in segment.headers(from_offset, end_in(segment, end), SWEEP_BYTES):
                yield segment.handle().read(header.size_bytes, position)
        finally:
            segment.file = None  # the copy and its cache hold each other: nobody else would close it soon
