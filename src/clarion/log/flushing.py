"""A log as its flusher sees it: tickets for what is not on disk yet, closing, and the end of writing after an error.

Any error of a sync ends the writing for good (`failed`): what the kernel could not write it may have dropped, and a
later success would prove nothing. Reading goes on. An error that leaves all as it was, as the lack of a descriptor
does, passes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from clarion.log.batch_headers import DamagedSegment
from clarion.log.config import LogConfig
from clarion.log.files import FileCache
from clarion.log.flush import FlushTicket, NameSync
from clarion.log.folder import Folder, parent_of
from clarion.log.reading import ReadableLog
from clarion.log.recovery import Opened
from clarion.world import NO_DESCRIPTOR, NO_ROOM, event_log

log = event_log("log")


class FlushableLog(ReadableLog):
    def __init__(self, folder: Folder, config: LogConfig, topic_id: UUID, opened: Opened, start_offset: int) -> None:
        super().__init__(folder, config, topic_id, opened, start_offset)
        self.failed: OSError | None = None
        self._is_closed = False  # or deleted: what was written now, nobody would flush
        self.flushed = self.end
        self.cleaned_to = 0  # by compaction since it was opened; 0 is always safe
        self._is_new = False
        self._unsynced_paths: list[str] = []
        self._names_under_way: NameSync | None = None  # in the flush that began last

    @property
    def truncations(self) -> int:
        """How often it was cut: a view of before the last time is a view of another log."""
        return self._folder.fence.truncations

    def begin_flush(self) -> FlushTicket:
        """In the loop. Then `ticket.run()` in a thread, then `finish_flush` in the loop, if run raised nothing."""
        if self.failed is not None:
            raise self._offline()
        ticket = FlushTicket(self._folder, self.end, self._segments.dirty_since(self.flushed), self.truncations)
        ticket.cuts = self._segments.cuts
        ticket.paths = list(self._unsynced_paths)
        if self._folder.has_unsynced_names:
            ticket.names = self._names_under_way = self._sync_of_names()
        if not self._epoch_file.is_saved:
            ticket.epochs, ticket.epoch_changes = self._epoch_file.unsaved()
            ticket.epoch_file = self._epoch_file
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
        if ticket.truncations == self.truncations:
            self._segments.mark_synced(ticket.sizes, ticket.cuts)
            self.flushed = max(self.flushed, ticket.end)
            self._folder.files.trim()
            assert self.flushed <= self.end, "more is flushed than there is"
        else:
            ticket.is_snapshot_saved = False  # the cut has removed it, or it never came to its place

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

    # Names

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

    def _note_names_under_way(self) -> None:
        """A flush that has not ended may have got so far already."""
        if self._names_under_way is not None and self._names_under_way.has_run:
            self._note_names_synced(self._names_under_way)
            self._names_under_way = None

    def _note_names_synced(self, sync: NameSync) -> None:
        self._folder.mark_synced(sync.changes)
        self._is_new = False

    # Open files

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
        self._is_closed = True
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
        except DamagedSegment as damage:
            self.note_damage(str(damage))
            error = OSError(errno.EIO, str(damage))
            self.fail(error)
            raise error from damage
        except OSError as error:
            self.fail(error)
            raise

    def _offline(self) -> OSError:
        error = self.failed
        assert error is not None
        return OSError(error.errno, f"{self.folder} takes no more writes since: {error}")
