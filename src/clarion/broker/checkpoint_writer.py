"""Writes down where the logs of all partitions start, how far they are flushed and how far committed.

One at a time: whoever asks while a file is being written shares the next one with all others who ask until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from clarion.broker.threads import in_thread
from clarion.log.checkpoints import SavedOffsets
from clarion.log.offset_files import OffsetFiles, Snapshot
from clarion.replication import Partition


class CheckpointWriter:
    def __init__(self, files: OffsetFiles, partitions: Iterable[Partition]) -> None:
        self._files = files
        self._partitions = partitions
        self._turn = asyncio.Lock()
        self._asked = 0
        self._answered = 0

    async def save_now(self) -> None:
        """Returns when what is true now is on disk."""
        self._asked += 1
        number = self._asked
        async with self._turn:
            if self._answered >= number:
                return
            answered, snapshot = self._asked, self.take()
            await in_thread(lambda: self._files.save(snapshot))
            self._answered = answered

    def save_last(self) -> None:
        """At the end, when nobody else asks. Not in a thread: at a program's end there may be none to have."""
        self._files.save(self.take())

    def take(self) -> Snapshot:
        return {
            (one.topic_id, one.tp.partition): SavedOffsets(
                one.start_offset, one.recovery_point, one.high_watermark.offset
            )
            for one in self._partitions
        }
