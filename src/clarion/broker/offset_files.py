"""The checkpoint files of the whole data directory: where logs start, how far they are flushed, how far committed.

They only ever save work: a start after a crash checks what lies behind the recovery point, and a start offset that was
moved by retention or DeleteRecords is not forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from clarion.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, START_OFFSETS, load_offsets, save_offsets
from clarion.model.ids import TopicPartition
from clarion.replication import Partition
from clarion.world import Disk

Offsets = dict[TopicPartition, int]


class Snapshot(NamedTuple):
    starts: Offsets
    flushed: Offsets
    watermarks: Offsets


class OffsetFiles:
    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._saved: Snapshot | None = None

    def load(self) -> Snapshot:
        return Snapshot(self._load(START_OFFSETS), self._load(RECOVERY_POINTS), self._load(HIGH_WATERMARKS))

    def take(self, partitions: Iterable[Partition]) -> Snapshot:
        snapshot = Snapshot({}, {}, {})
        for one in partitions:
            snapshot.flushed[one.tp] = one.log.flushed.offset
            snapshot.watermarks[one.tp] = one.high_watermark.offset
            if one.start_offset:
                snapshot.starts[one.tp] = one.start_offset
        return snapshot

    def save(self, snapshot: Snapshot) -> None:
        """Write the files that changed. The log's flush came first, so what they say is true whenever a crash comes."""
        saved = self._saved or Snapshot({}, {}, {})
        for name, offsets, before in zip(
            (START_OFFSETS, RECOVERY_POINTS, HIGH_WATERMARKS), snapshot, saved, strict=True
        ):
            if offsets != before or self._saved is None:
                save_offsets(self._disk, os.path.join(self._data_dir, name), offsets)
        self._saved = snapshot

    def _load(self, name: str) -> Offsets:
        return load_offsets(self._disk, os.path.join(self._data_dir, name))
