"""Retention and compaction of one partition: decided and worked out in a thread, applied in the loop.

Both take segments out of the log, so they never run side by side on one partition; `Cleaner` remembers who is busy. A
partition where nothing can have changed is passed over without a thread: ten thousand idle ones cost nothing. What
goes wrong in one partition (a damaged segment, a full disk) is put off there, and the others are cleaned as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from clarion.broker.cleaner_state import CleanerState, IdleMark
from clarion.broker.threads import in_thread
from clarion.consumers.retention import Need, acknowledged_by_all
from clarion.log.batch_headers import DamagedSegment
from clarion.log.cleaned import CleanedSegment
from clarion.log.compaction import CompactionResult, compact, let_others_run, plan_compaction
from clarion.log.folder import remove_if_there
from clarion.log.retention import RetentionPlan, is_worth_trimming, trim_first
from clarion.log.tombstones import Tombstones
from clarion.log.views import LogView
from clarion.model.errors import KafkaError
from clarion.model.ids import TopicId, TopicPartition
from clarion.replication import Partition
from clarion.world import Disk, event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.wire.messages.replicas import LogHolder

log = event_log("broker")


class Interrupted(Exception):
    """The partition or the broker goes, or the topic is compacted no longer: what the thread does is of no use."""


class Cleaner:
    def __init__(self, broker: Broker, disk: Disk) -> None:
        self._broker = broker
        self._disk = disk
        self._states: dict[Partition, CleanerState] = {}
        self._busy: dict[Partition, asyncio.Future[None]] = {}
        self._is_stopping = False
        self._to_trim: set[Partition] = set()  # whose start has been raised since their first file was last looked at
        self._told_of_old: set[TopicId] = set()
        self.retention_messages_total = 0
        self.compaction_saved_bytes_total = 0

    def restart_times(self) -> None:
        for state in self._states.values():
            state.restart_times()

    def forget_gone(self) -> None:
        for partition in [one for one in self._states if one.is_gone]:
            del self._states[partition]
            self._to_trim.discard(partition)
            self._told_of_old.discard(partition.topic_id)

    def held(self) -> Iterator[tuple[TopicPartition, str, int]]:
        """Who has held deletion back at the last look, and how many bytes are there because of that."""
        for partition, state in list(self._states.items()):
            for holder in state.held_by:
                yield partition.tp, holder, state.held_bytes

    async def holders(self, partition: Partition, needs: Sequence[Need]) -> list[LogHolder]:
        """Who needs what of a partition: nothing is changed."""
        if not needs or not self._is_alive(partition):
            return []
        state = self._states.get(partition) or CleanerState()
        view, settings, now_ms = partition.view(), partition.settings, self._broker.clock.now_ms()
        return await in_thread(lambda: state.holders(view, settings, needs, now_ms))

    async def settle(self, partitions: Iterable[Partition]) -> None:
        """Returns when nothing is being done to these any longer."""
        if busy := [self._busy[one] for one in partitions if one in self._busy]:
            await asyncio.wait(busy)

    def _state_of(self, partition: Partition) -> CleanerState:
        state = self._states.setdefault(partition, CleanerState())
        state.follow_cuts(partition.truncations)
        return state

    def stop_soon(self) -> None:
        """What takes long in a thread ends at its next step."""
        self._is_stopping = True

    # Retention

    async def retain(
        self,
        partition: Partition,
        now_ms: int,
        needs: Sequence[Need] | None = (),
        *,
        by_time: bool = True,
        at_once: bool = False,
        whole_files: bool = False,
    ) -> bool:
        """What is over is no longer readable afterwards. True if files wait for `drop_expired`.

        `needs`: what anybody still needs of it; None if nothing may go, because that is not known here.
        `by_time`: whether the clock can be trusted with deletion; what is too large goes in any case.
        `at_once`: the disk has no room, so files go without `file.delete.delay.ms`.
        `whole_files`: only if a sealed file goes; the one that is being written stays.
        """
        if not self._may_touch(partition):
            return False
        state = self._state_of(partition)
        await self._remove_deleted(partition, now_ms, at_once)
        state.arrivals.note(partition.next_offset, now_ms, partition.settings.retention_grace_ms)
        is_decided = needs is not None and partition.settings.is_deleted
        if is_decided and not state.is_idle(partition, needs or (), now_ms, by_time):
            retaining = self._retain(partition, state, needs or (), now_ms, by_time, whole_files)
            await self._alone(partition, "retention", retaining)
        return self._is_alive(partition) and (partition.has_files_below_start or partition in self._to_trim)

    async def retain_read(
        self, partition: Partition, now_ms: int, needs: Sequence[Need] | None, *, by_time: bool = True
    ) -> bool:
        """Between two sweeps: the same if a file holds only what all have acknowledged. Else nothing is looked at."""
        if not self._may_touch(partition):
            return False
        if needs and partition.has_files_below(min(acknowledged_by_all(needs), partition.high_watermark.offset)):
            return await self.retain(partition, now_ms, needs, by_time=by_time, whole_files=True)
        await self._remove_deleted(partition, now_ms, at_once=False)
        return self._is_alive(partition) and partition.has_files_below_start

    async def drop_expired(
        self, partition: Partition, now_ms: int, *, is_start_saved: bool, at_once: bool = False
    ) -> None:
        """Take the files below the start. Once it is saved, a crash brings nothing back that nobody could read."""
        if self._may_touch(partition):
            await self._alone(partition, "retention", self._drop_expired(partition, is_start_saved))
            if at_once:
                await self._remove_deleted(partition, now_ms, at_once)

    async def _drop_expired(self, partition: Partition, is_start_saved: bool) -> None:
        partition.drop_below_start(is_start_saved=is_start_saved)
        self._to_trim.discard(partition)
        await self._trim(partition)

    async def _remove_deleted(self, partition: Partition, now_ms: int, at_once: bool) -> None:
        if deleted := partition.take_deleted(now_ms, at_once=at_once):
            await self._alone(partition, "removal", in_thread(partial(_remove, self._disk, deleted)))

    async def _retain(
        self,
        partition: Partition,
        state: CleanerState,
        needs: Sequence[Need],
        now_ms: int,
        by_time: bool,
        whole_files: bool,
    ) -> None:
        view = partition.view()
        settings = partition.settings
        limit, arrivals = partition.high_watermark.offset, state.arrivals

        def is_void() -> bool:
            """By now other settings hold, and somebody has been told so; or the clock was wrong; or the log was cut."""
            is_other = partition.settings is not settings or state.arrivals is not arrivals
            return is_other or partition.truncations != view.truncations or not self._is_alive(partition)

        plan, first_timestamp = await in_thread(lambda: state.look(view, settings, needs, now_ms, limit, by_time))
        if whole_files and len(view.segments) > 1 and plan.new_start_offset < view.segments[1].base_offset:
            return
        if is_void():
            return
        plan = replace(plan, roll=plan.roll and not whole_files and state.may_roll(plan, settings, view.next_offset))
        state.noticed, state.held_by = plan.noticed, plan.held_by
        if plan.arrived_expired:
            self._tell_of_old(partition)
        if plan.damage is not None and state.damage != str(plan.damage):
            state.damage = str(plan.damage)
            log.error("segment_damaged", partition=partition.tp, reason=state.damage)
        if plan.reason or plan.roll:
            if plan.roll:
                await self._sync_names(partition)
                if is_void():
                    return
            self._apply(partition, plan, now_ms)
            self._to_trim.add(partition)
        elif first_timestamp >= 0 and not plan.noticed and not plan.held_by:
            state.idle_mark = IdleMark(view, settings, first_timestamp)

    def _tell_of_old(self, partition: Partition) -> None:
        """Once per topic: whoever writes such messages should know that they will not stay."""
        if partition.topic_id not in self._told_of_old:
            self._told_of_old.add(partition.topic_id)
            log.warning(
                "messages_too_old_to_stay",
                topic=partition.tp.topic,
                retention_ms=partition.settings.retention_ms,
                grace_ms=partition.settings.retention_grace_ms,
                reason="their own timestamps are older than retention.ms; they go when the grace period is over",
            )

    def _apply(self, partition: Partition, plan: RetentionPlan, now_ms: int) -> None:
        before = partition.start_offset
        if plan.roll:
            try:
                partition.roll(now_ms)
            except OSError as error:
                # A full disk gets room by what goes now; the file that is being written waits for the next look.
                log.warning("roll_put_off", partition=partition.tp, reason=str(error))
        partition.raise_start(plan.new_start_offset)
        self.retention_messages_total += partition.start_offset - before
        log.info("retention", partition=partition.tp, start_offset=partition.start_offset, by=plan.reason)

    async def _trim(self, partition: Partition) -> None:
        """Rewrite the first file without its expired head, where that pays."""
        view = partition.view()
        if not is_worth_trimming(view, partition.high_watermark):
            return
        try:
            cleaned = await in_thread(partial(trim_first, view))
        except DamagedSegment:
            return  # its file goes as a whole
        await self._swap(partition, view, cleaned)

    # Compaction

    async def compact(self, partition: Partition, now_ms: int, *, by_time: bool = True) -> None:
        """`by_time`: whether the clock can be trusted with tombstones whose time is over.

        They stay as well while a replica is not in sync: it may have an older value of their keys, and would bring it
        back for good if it were never sent the tombstone.
        """
        if not self._may_touch(partition) or not partition.settings.is_compacted:
            return
        state = self._state_of(partition)
        drops_tombstones = by_time and partition.is_fully_in_sync
        if not self._is_clean(partition, state, now_ms, drops_tombstones):
            await self._alone(partition, "compaction", self._compact(partition, state, now_ms, drops_tombstones))

    @staticmethod
    def _is_clean(partition: Partition, state: CleanerState, now_ms: int, drops_tombstones: bool) -> bool:
        """Whether a look cannot find anything to do: no sealed segment is dirty, and nothing falls due by time."""
        end = partition.end
        may_roll = end.position > 0 and partition.settings.max_compaction_lag_ms <= now_ms
        is_horizon_due = drops_tombstones and state.next_horizon_ms is not None and state.next_horizon_ms <= now_ms
        has_dirty = partition.segment_count > 1 and partition.cleaned_to < end.segment
        return not (may_roll or is_horizon_due or has_dirty)

    async def _compact(self, partition: Partition, state: CleanerState, now_ms: int, drops_tombstones: bool) -> None:
        view, settings, limit = partition.view(), partition.settings, partition.high_watermark
        plan = await in_thread(
            lambda: plan_compaction(
                view,
                settings,
                now_ms,
                first_dirty=partition.cleaned_to,
                limit=limit,
                next_horizon_ms=state.next_horizon_ms if drops_tombstones else None,
            )
        )
        if plan.roll and self._is_alive(partition):
            await self._sync_names(partition)
        if plan.roll and self._is_alive(partition):
            partition.roll(now_ms)  # the next look finds it sealed
        if not plan.reason or not self._is_flushed(partition, plan.uncleanable):
            return
        result = CompactionResult(next_dirty=plan.first_dirty, unreadable=state.unreadable)
        tombstones = Tombstones(may_go=drops_tombstones)
        rewritten = compact(
            view,
            plan,
            settings,
            now_ms,
            result,
            keep_last_offsets=partition.producers.last_offsets(),
            tombstones=tombstones,
            give_way=partial(self._give_way, partition),
        )
        if await self._swap_all(partition, view, rewritten, tombstones) and result.is_done:
            partition.note_cleaned(view, result.next_dirty)
            state.next_horizon_ms = result.next_horizon_ms
            self.compaction_saved_bytes_total += max(0, result.bytes_read - result.bytes_written)
            log.info("compacted", partition=partition.tp, why=plan.reason, dropped=result.records_dropped)

    async def _swap_all(
        self, partition: Partition, view: LogView, rewritten: Iterator[CleanedSegment], tombstones: Tombstones
    ) -> bool:
        """False if the log has moved on meanwhile; the next look begins anew then. Who leaves the in-sync set, or is
        added, costs no more than what was dropped for good in one segment: the run goes on."""
        while (cleaned := await in_thread(partial(next, rewritten, None))) is not None:
            if not self._is_alive(partition):
                return False
            may_take = partial(_may_take, partition, cleaned, tombstones)
            if not await self._swap(partition, view, cleaned, may_take):
                if not cleaned.lacks_tombstones or tombstones.may_go:
                    return False
                tombstones.refuse()
        return True

    def _give_way(self, partition: Partition) -> None:
        """In the thread, for every batch."""
        if self._is_stopping or partition.is_gone or not partition.settings.is_compacted:
            raise Interrupted
        let_others_run()

    @staticmethod
    def _is_flushed(partition: Partition, offset: int) -> bool:
        """Whether what is going to be rewritten is on disk: a crash must find either the old files or the new ones."""
        if partition.is_flushed_to(offset):
            return True
        partition.flush_soon()
        return False

    # Both

    async def _swap(
        self, partition: Partition, view: LogView, cleaned: CleanedSegment, may_take: Callable[[], bool] = lambda: True
    ) -> bool:
        """False if it came to nothing. `may_take` is asked once more when the disk has been waited for."""
        swap = partition.swap(view, cleaned)
        if may_take() and self._is_alive(partition) and swap.is_possible:
            try:
                await in_thread(swap.announce)
            except OSError as error:
                swap.fail_to_announce(error)
                raise
            if may_take() and self._is_alive(partition) and swap.take():
                await in_thread(swap.sync)
                swap.finish()
                return True
        if not partition.is_gone:
            await in_thread(swap.withdraw)
        return False

    async def _sync_names(self, partition: Partition) -> None:
        """A roll begins a file, whose name must not last before those of the others do."""
        if (names := partition.begin_name_sync()) is not None:
            try:
                await in_thread(names.run)
            except OSError:
                pass  # `finish_name_sync` knows
            partition.finish_name_sync(names)

    async def _alone(self, partition: Partition, duty: str, work: Awaitable[object]) -> None:
        """One thing at a time is done to a partition, and its trouble is its own."""
        done = self._busy[partition] = asyncio.get_running_loop().create_future()
        try:
            await work
        except Interrupted:
            log.info("cleaning_interrupted", duty=duty, partition=partition.tp)
        except (OSError, KafkaError) as error:
            if not partition.is_gone:
                log.warning("cleaning_put_off", duty=duty, partition=partition.tp, reason=str(error))
        except Exception as error:
            # A mistake of ours in one partition must not keep the others from being cleaned.
            log.error("cleaning_failed", duty=duty, partition=partition.tp, error=error)
        finally:
            del self._busy[partition]
            done.set_result(None)

    def _may_touch(self, partition: Partition) -> bool:
        return self._is_alive(partition) and partition not in self._busy

    @staticmethod
    def _is_alive(partition: Partition) -> bool:
        return not partition.is_gone and partition.failure is None


def _may_take(partition: Partition, cleaned: CleanedSegment, tombstones: Tombstones) -> bool:
    """Not what lacks tombstones that a replica has not heard of, which may be added at any moment."""
    if not partition.is_fully_in_sync:
        tombstones.keep()
    return partition.settings.is_compacted and (tombstones.may_go or not cleaned.lacks_tombstones)


def _remove(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        remove_if_there(disk, path)
