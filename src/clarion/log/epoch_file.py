"""The leader epochs of a log and their file: loaded when somebody asks, written with the next flush."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clarion.log.batch_headers import DamagedSegment
from clarion.log.checkpoints import format_epochs, load_epochs
from clarion.log.epochs import LeaderEpochs
from clarion.log.folder import EPOCHS, Folder
from clarion.wire.batch import BatchHeader
from clarion.world import event_log

log = event_log("log")


class EpochFile:
    __slots__ = ("_epochs", "_folder", "_headers", "_next_offset", "_placed_changes", "_saved_changes")

    def __init__(
        self, folder: Folder, next_offset: Callable[[], int], headers: Callable[[], Iterable[BatchHeader]]
    ) -> None:
        """`headers` walks the whole log, for the day when the file is lost."""
        self._folder = folder
        self._next_offset = next_offset
        self._headers = headers
        self._epochs: LeaderEpochs | None = None
        self._saved_changes = 0
        self._placed_changes = 0  # of the state that has the file's name now; guarded by the fence

    @property
    def epochs(self) -> LeaderEpochs:
        if self._epochs is None:
            entries = load_epochs(self._folder.disk, f"{self._folder.path}/{EPOCHS}")
            self._epochs = LeaderEpochs(entries or [], self._next_offset)
            # A crash, or an earlier version's flush, may have left a state of before a cut. By what nothing was written
            # in, this log would part from its leader's where nothing can be cut.
            self._epochs.truncate_to(self._next_offset())
            if not self._epochs.entries:
                self._read_batches(self._epochs)
        return self._epochs

    def merge(self, scanned_from: int, found: Iterable[tuple[int, int]]) -> None:
        """After a scan: the file knows what lies before it, the batches know the rest."""
        epochs = self.epochs
        epochs.truncate_to(scanned_from + 1)
        for epoch, start in found:
            if epoch > epochs.latest:
                epochs.assign(epoch, start)
        epochs.truncate_to(self._next_offset())

    @property
    def is_saved(self) -> bool:
        return self._epochs is None or self._epochs.changes == self._saved_changes

    def unsaved(self) -> tuple[bytes, int]:
        """What to write, and what to tell `mark_saved` then."""
        return format_epochs(self.epochs.entries), self.epochs.changes

    def mark_saved(self, changes: int) -> None:
        self._saved_changes = max(self._saved_changes, changes)

    def save(self) -> None:
        if not self.is_saved:
            data, changes = self.unsaved()
            self.write(data, changes)
            self.mark_saved(changes)

    def write(self, data: bytes, changes: int) -> None:
        """In the loop or in the thread of a flush: an older state takes the place of no newer one."""
        disk, fence, path = self._folder.disk, self._folder.fence, f"{self._folder.path}/{EPOCHS}"
        beside = fence.write_beside(disk, path, data)
        with fence.lock:
            is_late = changes < self._placed_changes
            if not is_late:
                disk.rename(beside, path)
                self._placed_changes = changes
        if is_late:
            fence.give_up(disk, beside)
        else:
            disk.sync_folder(self._folder.path)

    def _read_batches(self, epochs: LeaderEpochs) -> None:
        try:
            for header in self._headers():
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
        except DamagedSegment as damage:
            log.error("epochs_incomplete", folder=self._folder.path, reason=str(damage))
