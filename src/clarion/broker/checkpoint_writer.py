"""Writes down where the logs of all partitions start, how far they are flushed and how far committed.

One at a time: whoever asks while a file is being written shares the next one with all others who ask until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from clarion.broker.threads import in_thread
from clarion.log.checkpoints import PartitionId, SavedOffsets
from clarion.log.flush import NameSync
from clarion.log.offset_files import OffsetFiles, Snapshot
from clarion.replication import Partition
from clarion.world import event_log
from clarion.world.tasks import start_task

log = event_log("broker")


class CheckpointWriter:
    def __init__(self, files: OffsetFiles, partitions: Iterable[Partition]) -> None:
        self._files = files
        self._partitions = partitions
        self._turn = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        self._is_due = False
        self._saving: asyncio.Task[None] | None = None  # for those who do not wait

    async def save_now(self) -> None:
        """Returns when what is true now is on disk."""
        self._asked += 1
        number = self._asked
        async with self._turn:
            if self._answered >= number:
                return
            answered, snapshot = self._asked, self.take()
            raised = [(one, one.start_offset, one.truncations) for one in self._partitions if _has_news(one)]
            await in_thread(lambda: self._files.save(snapshot))
            await self._forget_cuts([(one, truncations) for one, _, truncations in raised if one.is_cut_noted])
            self._answered = answered
            for one, start, truncations in raised:
                if truncations == one.truncations and not one.is_cut_noted:
                    one.note_start_saved(start)

    async def _forget_cuts(self, cut: list[tuple[Partition, int]]) -> None:
        """What was taken after a cut speaks of the log as it is: the marks that say otherwise go, for good."""
        syncs = _take_marks(cut)
        if syncs:
            await in_thread(lambda: _run_all([sync for _, sync in syncs]))
        for one, sync in syncs:
            try:
                if not one.is_gone:
                    one.finish_name_sync(sync)
            except OSError as error:  # its log is offline by now, which everybody hears
                log.warning("cut_mark_stays", partition=one.tp, reason=str(error))

    async def forget(self, partitions: Collection[PartitionId]) -> None:
        """Of those that are gone: others in their place are not to be taken for them after a crash."""
        async with self._turn:  # the file that is being written may name them, too
            may_name = self._files.may_name(partitions)
        if may_name:
            await self.save_now()

    def save_soon(self) -> None:
        """For whoever does not wait: each partition hears when its start is on disk."""
        self._is_due = True
        if self._saving is None or self._saving.done():
            self._saving = start_task(self._save_due(), "checkpoint")

    async def _save_due(self) -> None:
        while self._is_due:
            self._is_due = False
            try:
                await self.save_now()
            except OSError as error:  # the next one that is due anyway has them
                log.warning("starts_not_saved", reason=str(error))

    async def stop(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)

    def save_last(self) -> None:
        """At the end, when nobody else asks. Not in a thread: at a program's end there may be none to have."""
        self._files.save(self.take())
        _run_all([sync for _, sync in _take_marks([(one, one.truncations) for one in self._partitions])])

    def take(self) -> Snapshot:
        return {
            (one.topic_id, one.tp.partition): SavedOffsets(
                one.start_offset, one.recovery_point, one.high_watermark.offset
            )
            for one in self._partitions
        }


def _has_news(partition: Partition) -> bool:
    """Whether something waits for what is taken now to be on disk."""
    return partition.start_offset > partition.saved_start or partition.is_cut_noted


def _take_marks(cut: Iterable[tuple[Partition, int]]) -> list[tuple[Partition, NameSync]]:
    syncs = []
    for one, truncations in cut:
        try:
            sync = one.forget_cut(truncations)
        except OSError as error:  # it costs a start a scan, and the next checkpoint tries again
            log.warning("cut_mark_stays", partition=one.tp, reason=str(error))
        else:
            if sync is not None:
                syncs.append((one, sync))
    return syncs


def _run_all(syncs: Iterable[NameSync]) -> None:
    for sync in syncs:
        try:
            sync.run()
        except OSError as error:  # which it keeps for `finish_name_sync`
            log.warning("cut_mark_may_come_back", reason=str(error))
