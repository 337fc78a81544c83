"""A flush: taken in the loop, run in a thread while appends go on, given back in the loop.

The ticket captures everything it needs when it is taken: the handles of the files with unsynced bytes, and the end of
the log at that moment. What is appended later belongs to the next ticket. It may take a snapshot of the producers
along, which is written last: it must know of no batch that is not on disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from clarion.log.epoch_file import EpochFile
from clarion.log.folder import Folder, sync_files
from clarion.log.producer_snapshot import ProducerEntry, drop_older, put_snapshot
from clarion.log.segment import Segment
from clarion.model.ids import LogPosition
from clarion.world import NO_DESCRIPTOR, NO_ROOM, Disk, DiskFile, event_log

log = event_log("log")


class NameSync:
    """Makes the names in a log's folder last, as they are now."""

    __slots__ = ("_disk", "_folders", "changes", "error", "has_run")

    def __init__(self, disk: Disk, folders: list[str], changes: int) -> None:
        self.changes = changes
        self.error: OSError | None = None
        self.has_run = False
        self._disk = disk
        self._folders = folders

    def run(self) -> None:
        """OSError is raised, and kept for whoever finishes it."""
        try:
            for path in self._folders:
                self._disk.sync_folder(path)
        except OSError as error:
            self.error = error
            raise
        self.has_run = True


class FlushTicket:
    __slots__ = (
        "_committed",
        "_files",
        "_folder",
        "_must_save_snapshot",
        "cuts",
        "end",
        "epoch_changes",
        "epoch_file",
        "epochs",
        "error",
        "has_run",
        "is_snapshot_saved",
        "may_try_again",
        "names",
        "paths",
        "sizes",
        "snapshot",
        "snapshot_offset",
        "truncations",
    )

    def __init__(self, folder: Folder, end: LogPosition, dirty: Sequence[Segment], truncations: int) -> None:
        self.end = end
        self.sizes = [(segment, segment.size) for segment in dirty]
        self.cuts: dict[int, int] = {}
        self.paths: list[str] = []
        self.epochs: bytes | None = None
        self.epoch_changes = 0
        self.epoch_file: EpochFile | None = None
        self.names: NameSync | None = None
        self.truncations = truncations  # that the log had seen: one in between makes the end meaningless
        self.error: OSError | None = None
        self.has_run = False
        self.may_try_again = False
        self.snapshot: list[ProducerEntry] | None = None
        self.snapshot_offset = -1
        self.is_snapshot_saved = False
        self._committed = -1
        self._must_save_snapshot = False
        self._folder = folder
        self._files: list[DiskFile] = [segment.handle() for segment in dirty]

    def take_along(
        self, offset: int, producers: list[ProducerEntry], committed: int, *, must_be_saved: bool = False
    ) -> None:
        """The producers as they are at the offset. `must_be_saved`: the flush counts as failed without them."""
        self.snapshot, self.snapshot_offset, self._committed = producers, offset, committed
        self._must_save_snapshot = must_be_saved

    def run(self) -> None:
        """Everything up to `end` is on disk afterwards, or OSError is raised (and kept for `Log.finish_flush`)."""
        try:
            if self.names is not None:
                self.names.run()  # first: the next roll needs it, and a gigabyte of messages may take long
            for file in self._files:
                file.sync()
            sync_files(self._folder.disk, self.paths)
            self._save_epochs()
            self._save_snapshot()
        except OSError as error:
            self.error = error
            # Only an open fails like this: no byte was given up by the kernel.
            self.may_try_again = self.may_try_again or error.errno in NO_DESCRIPTOR
            raise
        self.has_run = True

    def _save_snapshot(self) -> None:
        if self.snapshot is None:
            return
        try:
            self.is_snapshot_saved = put_snapshot(self._folder, self.snapshot_offset, self.snapshot, self.truncations)
        except OSError as error:
            if self._must_save_snapshot:
                raise
            # The recovery point stays where it is: a start has more to read, and finds the same.
            log.warning("snapshot_not_saved", folder=self._folder.path, reason=str(error))
        if self.is_snapshot_saved:
            drop_older(self._folder.disk, self._folder.path, self._committed)

    def _save_epochs(self) -> None:
        if self.epochs is None or self.epoch_file is None:
            return
        try:
            self.epoch_file.write(self.epochs, self.epoch_changes)
        except OSError as error:
            self.may_try_again = error.errno in NO_ROOM  # the old file is still there, whole
            raise
