"""Retention and compaction of one partition: decided and worked out in a thread, applied in the loop.

Both take segments out of the log, so they never run side by side on one partition; `Cleaner` remembers who is busy. A
partition where nothing can have expired yet is passed over without a thread: ten thousand quiet ones cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from clarion.log.cleaned import CleanedSegment
from clarion.log.compaction import CompactionResult, compact, plan_compaction
from clarion.log.hops import DamagedSegment
from clarion.log.retention import (
    Noticed,
    RetentionPlan,
    apply_retention,
    is_worth_trimming,
    plan_retention,
    trim_first,
)
from clarion.log.views import LogView, headers_of, swap_in, view_of
from clarion.replication import Partition
from clarion.wire.batch import HAS_DELETE_HORIZON
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

Result = TypeVar("Result")


class Memory:
    """What the cleaner remembers of one partition between two looks."""

    __slots__ = ("first_dirty", "held_by", "next_horizon_ms", "noticed", "quiet_from", "quiet_timestamp_ms")

    def __init__(self) -> None:
        self.noticed: Noticed | None = None
        self.quiet_from = -1  # the start offset at which the oldest message is known, and its time
        self.quiet_timestamp_ms = 0
        self.held_by: tuple[str, ...] = ()
        self.first_dirty = 0
        self.next_horizon_ms: int | None = None


class Cleaner:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._memories: dict[Partition, Memory] = {}
        self._busy: set[Partition] = set()
        self.retention_messages_total = 0
        self.compaction_saved_bytes_total = 0

    def held_by(self, partition: Partition) -> tuple[str, ...]:
        """The groups without which more of this partition would be gone."""
        memory = self._memories.get(partition)
        return memory.held_by if memory else ()

    def forget_gone(self) -> None:
        for partition in [one for one in self._memories if one.is_gone]:
            del self._memories[partition]

    # Retention

    async def retain(self, partition: Partition, now_ms: int) -> None:
        if not self._may_touch(partition):
            return
        partition.log.sweep_deleted(now_ms)
        memory = self._memories.setdefault(partition, Memory())
        if not partition.settings.is_deleted or self._is_quiet(partition, memory, now_ms):
            return
        self._busy.add(partition)
        try:
            await self._retain(partition, memory, now_ms)
        finally:
            self._busy.discard(partition)

    async def _retain(self, partition: Partition, memory: Memory, now_ms: int) -> None:
        view = view_of(partition.log)
        settings = partition.settings
        limit, holds, noticed = partition.high_watermark.offset, self._holds(partition), memory.noticed

        def decide() -> tuple[RetentionPlan, int]:
            plan = plan_retention(view, settings, now_ms, limit_offset=limit, holds=holds, noticed=noticed)
            return plan, _first_timestamp(view)

        plan, first_timestamp = await self._in_thread(decide)
        if not self._is_alive(partition):
            return
        memory.noticed, memory.held_by = plan.noticed, plan.held_by
        if not plan.reason:
            _note_quiet(memory, view, first_timestamp)
            return
        before = partition.start_offset
        apply_retention(partition.log, plan, now_ms)
        self.retention_messages_total += partition.start_offset - before
        log.info("retention", partition=partition.tp, start_offset=partition.start_offset, by=plan.reason)
        await self._trim(partition)

    async def _trim(self, partition: Partition) -> None:
        """Rewrite the first file without its expired head, where that pays."""
        view = view_of(partition.log)
        if not is_worth_trimming(view, partition.high_watermark):
            return
        cleaned = await self._in_thread(lambda: trim_first(view))
        if self._is_alive(partition):
            swap_in(partition.log, view, cleaned)

    def _is_quiet(self, partition: Partition, memory: Memory, now_ms: int) -> bool:
        settings, start = partition.settings, partition.start_offset
        if start == partition.next_offset:
            return True
        if 0 <= settings.retention_bytes < partition.log.size_bytes:
            return False
        expires_ms = memory.quiet_timestamp_ms + settings.retention_ms
        return settings.retention_ms < 0 or (memory.quiet_from == start and now_ms <= expires_ms)

    def _holds(self, partition: Partition) -> Mapping[str, int | None]:
        return {
            group: self._broker.groups.committed_offset(group, partition.tp)
            for group in partition.settings.retention_hold_groups
        }

    # Compaction

    async def compact(self, partition: Partition, now_ms: int) -> None:
        if not self._may_touch(partition) or not partition.settings.is_compacted:
            return
        memory = self._memories.setdefault(partition, Memory())
        if partition.log.segment_count == 1 and partition.settings.max_compaction_lag_ms > now_ms:
            return  # only the active segment, which is never touched
        self._busy.add(partition)
        try:
            await self._compact(partition, memory, now_ms)
        finally:
            self._busy.discard(partition)

    async def _compact(self, partition: Partition, memory: Memory, now_ms: int) -> None:
        view, settings, limit = view_of(partition.log), partition.settings, partition.high_watermark
        plan = await self._in_thread(
            lambda: plan_compaction(
                view,
                settings,
                now_ms,
                first_dirty=memory.first_dirty,
                limit=limit,
                next_horizon_ms=memory.next_horizon_ms,
            )
        )
        if plan.roll and self._is_alive(partition):
            partition.roll(now_ms)  # the next look finds it sealed
        if not plan.reason or not await self._flushed(partition, plan.uncleanable):
            return
        result = CompactionResult(next_dirty=plan.first_dirty)
        rewritten = compact(view, plan, settings, now_ms, result, keep_last_offsets=partition.producers.last_offsets())
        while (cleaned := await self._in_thread(lambda: _next(rewritten))) is not None:
            if not self._is_alive(partition) or not swap_in(partition.log, view, cleaned):
                return
        if result.is_done:
            memory.first_dirty, memory.next_horizon_ms = result.next_dirty, result.next_horizon_ms
        self.compaction_saved_bytes_total += max(0, result.bytes_read - result.bytes_written)
        log.info("compacted", partition=partition.tp, why=plan.reason, dropped=result.records_dropped)

    async def _flushed(self, partition: Partition, offset: int) -> bool:
        """Whether what is going to be rewritten is on disk: a crash must find either the old files or the new ones."""
        if partition.log.flushed.offset >= offset:
            return True
        partition.flush_soon()
        return False

    # Both

    def _may_touch(self, partition: Partition) -> bool:
        return self._is_alive(partition) and partition not in self._busy

    @staticmethod
    def _is_alive(partition: Partition) -> bool:
        return not partition.is_gone and partition.log.failed is None

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(None, work)


def _note_quiet(memory: Memory, view: LogView, first_timestamp: int) -> None:
    if first_timestamp >= 0 and not memory.noticed and not memory.held_by:
        memory.quiet_from, memory.quiet_timestamp_ms = view.start_offset, first_timestamp


def _next(rewritten: Iterator[CleanedSegment]) -> CleanedSegment | None:
    try:
        return next(rewritten, None)
    except DamagedSegment as damage:
        log.error("compaction_stopped", reason=str(damage))
        return None


def _first_timestamp(view: LogView) -> int:
    """Of the first message; -1 where it cannot be told from the header alone."""
    found: Iterator[Any] = headers_of(view.disk, view.segments[0], view.start_position)
    for header, _ in found:
        is_plain = header.base_offset == view.start_offset and not header.attributes & HAS_DELETE_HORIZON
        return int(header.base_timestamp) if is_plain else -1
    return -1
