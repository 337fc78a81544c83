"""The checkpoint file of the whole data directory: where logs start, how far they are flushed, how far committed.

It only ever saves work: a start after a crash checks what lies behind the recovery point, and a start offset that was
moved by retention or DeleteRecords is not forgotten. What it says is said of a topic's id, never of a name alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from clarion.log.checkpoints import (
    HIGH_WATERMARKS,
    PARTITION_OFFSETS,
    RECOVERY_POINTS,
    START_OFFSETS,
    PartitionId,
    SavedOffsets,
    load_epochs,
    load_offsets,
    load_partitions,
    save_partitions,
)
from clarion.log.folder import EPOCHS, remove_if_there
from clarion.model.ids import TopicId, TopicPartition
from clarion.world import Disk, event_log

log = event_log("log")

Snapshot = dict[PartitionId, SavedOffsets]


class OffsetFiles:
    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._path = os.path.join(data_dir, PARTITION_OFFSETS)
        self._saved: Snapshot | None = None

    def load(self, claimed: Mapping[TopicPartition, TopicId], *, was_clean: bool) -> Snapshot:
        """`claimed`: by the topics of today. `was_clean`: the last process stopped cleanly, so it wrote of them."""
        if self._disk.exists(self._path):
            return load_partitions(self._disk, self._path)
        return self._import(claimed, was_clean)

    def save(self, snapshot: Snapshot) -> None:
        """Write the file if it changed. The log's flush came first, so what it says is true whenever a crash comes."""
        if snapshot != self._saved:
            self._saved = None  # an error may come when the file is in its place already
            save_partitions(self._disk, self._path, snapshot)
            self._saved = snapshot

    def may_name(self, partitions: Iterable[PartitionId]) -> bool:
        """Whether the file says something of these, as far as is known here."""
        return self._saved is None or not self._saved.keys().isdisjoint(partitions)

    # The files by name of an earlier version

    def _import(self, claimed: Mapping[TopicPartition, TopicId], was_clean: bool) -> Snapshot:
        """Their entries may be those of a topic that was deleted and made again under its name since they were written.

        Not after a clean stop, whose last act was to write them. After any other a recovery point is not believed,
        which costs a scan; a start offset only as far as the log itself has given up what lies before.
        """
        names = [os.path.join(self._data_dir, name) for name in (START_OFFSETS, RECOVERY_POINTS, HIGH_WATERMARKS)]
        starts, flushed, watermarks = (load_offsets(self._disk, name) for name in names)
        imported: Snapshot = {}
        for tp, topic_id in claimed.items():
            start = starts.get(tp, 0)
            if was_clean:
                imported[topic_id, tp.partition] = SavedOffsets(start, flushed.get(tp, 0), watermarks.get(tp, 0))
            elif start:
                imported[topic_id, tp.partition] = SavedOffsets(min(start, self._first_epoch_start(tp)), 0, 0)
        if imported:
            log.info("checkpoints_imported", partitions=len(imported))
            self.save(imported)
        for name in names:
            remove_if_there(self._disk, name)
        return imported

    def _first_epoch_start(self, tp: TopicPartition) -> int:
        """Where the first leader epoch begins: a log that moves its start moves it along, in its own folder."""
        epochs = load_epochs(self._disk, os.path.join(self._data_dir, str(tp), EPOCHS))
        return epochs[0][1] if epochs else 0
