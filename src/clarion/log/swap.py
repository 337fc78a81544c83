"""Putting a rewritten segment in the place of those it was made of, in steps: what waits for the disk runs in a thread.

    announce   thread   .cleaned becomes .swap, for good: from here on a start finishes the swap
    take       loop     the old files become .deleted, the new one gets its name
    sync       thread   the names last
    finish     loop

A crash at any moment leaves all of the old or all of the new. DeleteRecords, a truncation or a new start may take away
what the segment was made of before `take`: then it is withdrawn. One swap of a log is finished before the next begins.
"""

from __future__ import annotations

from clarion.log.cleaned import CleanedSegment
from clarion.log.flush import NameSync
from clarion.log.folder import SEGMENT_FILES, Folder, remove_if_there, rename_segment
from clarion.log.log import Log
from clarion.log.views import LogView


class Swap:
    def __init__(self, log: Log, view: LogView, cleaned: CleanedSegment) -> None:
        """`cleaned` was made from the view of the log."""
        self._log = log
        self._folder: Folder = view.home
        self._truncations_before = view.truncations
        self._sizes_before = {segment.base_offset: segment.size for segment in view.segments}
        self._cleaned = cleaned
        self._names: NameSync | None = None

    @property
    def is_possible(self) -> bool:
        """In the loop: whether the log still has what the segment was made of, and no others of the same sizes."""
        if self._log.truncations != self._truncations_before:
            return False
        now = {segment.base_offset: segment.size for segment in self._log.segments[:-1]}
        return all(now.get(base) == self._sizes_before[base] for base in self._cleaned.replaces)

    def announce(self) -> None:
        """In a thread. If it fails, nothing has happened; `fail_to_announce` follows."""
        try:
            rename_segment(self._folder, self._cleaned.base_offset, ".cleaned", ".swap")
            self._folder.disk.sync_folder(self._folder.path)
        except OSError:
            self.withdraw()
            raise

    def fail_to_announce(self, error: OSError) -> None:
        """In the loop."""
        self._log.note_not_announced(error)

    def take(self) -> bool:
        """In the loop. False if the log has moved on meanwhile; `withdraw` follows."""
        if not self.is_possible:
            return False
        self._log.replace_segments(self._cleaned)
        self._names = self._log.begin_name_sync()
        return True

    def withdraw(self) -> None:
        """In a thread. A .swap that is left behind would one day take the place of what is in the log by then."""
        for kind in SEGMENT_FILES:
            for suffix in (".swap", ".cleaned"):
                remove_if_there(self._folder.disk, self._folder.file(self._cleaned.base_offset, kind) + suffix)

    def sync(self) -> None:
        """In a thread. What goes wrong is told by `finish`."""
        if self._names is not None:
            try:
                self._names.run()
            except OSError:
                pass

    def finish(self) -> None:
        if self._names is not None:
            self._log.finish_name_sync(self._names)
