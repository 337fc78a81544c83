"""What a broker does when nobody asks: retention, compaction, checkpoints, forgetting what is over.

Each duty is one small step, run again and again by a task of its own. The steps yield between partitions, so that ten
thousand of them are swept without anybody noticing; what reads much runs in a thread (`cleaning`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from clarion.broker.retention_needs import RetentionNeeds
from clarion.broker.scrubbing import Scrubber
from clarion.broker.threads import in_thread
from clarion.log.clock_trust import ClockTrust
from clarion.model.retention_settings import BY_SUBSCRIPTIONS, RETENTION_BY
from clarion.replication.producers import KEYED_KEPT_MS
from clarion.world import NO_ROOM, Disk, event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.cluster import Topic
    from clarion.replication import Partition

log = event_log("broker")

_PARTITIONS_PER_TURN: Final = 50  # between two of these others get their turn
_SHORTEST_PAUSE_SECONDS: Final = 0.05  # between two rounds of a duty, also for who asks for none
_ACKNOWLEDGED_SECONDS: Final = 1.0  # what a gigabyte per second writes meanwhile is as much as a segment
_REST: Final = 10  # times as long as it took: many groups, or far ones, are asked less often
_EXPIRY_SECONDS: Final = 60.0
_ROOM_SECONDS: Final = 1.0  # a fast disk takes a gigabyte in that time, which is what the reserve has


class Housekeeping:
    def __init__(self, broker: Broker, disk: Disk) -> None:
        self._broker = broker
        self._disk = disk
        broker.needs = self._needs = RetentionNeeds(broker)
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._acknowledged_seconds = _ACKNOWLEDGED_SECONDS
        self._seen: tuple[object, object] = (None, None)  # the image and the defaults in which these were found:
        self._by_subscriptions: list[Topic] = []
        self.scrubber = Scrubber(broker)
        self._scrub_seconds = 0.0

    def start(self) -> None:
        free, total = _room_of(self._disk, self._broker.config.data_dir)
        self._tell_room(self._broker.partitions.room.note(free, total), free)
        if self._broker.clock_trust.is_first_life:
            self._save_clock()  # who dies before the first checkpoint would believe any clock at the next start
        config = self._broker.config
        self._broker.clock_trust.when_right_again(self._restart_times)
        self._every(lambda: config.retention_check_seconds, self.retain)
        self._every(lambda: self._acknowledged_seconds, self.retain_acknowledged)
        self._every(lambda: self._broker.config.compaction_check_seconds, self.compact)  # may change meanwhile
        self._every(lambda: config.checkpoint_seconds, self.save_checkpoints)
        self._every(lambda: _EXPIRY_SECONDS, self.expire)
        self._every(lambda: self._scrub_seconds, self.scrub)
        self._every(lambda: _ROOM_SECONDS, self.watch_room)

    def _restart_times(self) -> None:
        """The wall clock was wrong, and is trusted again: nothing goes because of what it said meanwhile."""
        now_ms = self._broker.clock.now_ms()
        for partition in self._broker.partitions:
            partition.restart_times(now_ms)
        self._broker.cleaner.restart_times()

    async def stop(self) -> None:
        """Returns when no thread of ours works on any file."""
        self._broker.cleaner.stop_soon()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._needs.close()
        self._save_clock()

    def _save_clock(self) -> None:
        """Not in a thread: at a program's end there may be none to have, and nobody waits for the loop then."""
        try:
            self._look_at_clock().save()
        except OSError as error:
            log.warning("clock_not_saved", reason=str(error))

    def _every(self, seconds: Callable[[], float], duty: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(self._loop.create_task(self._repeat(seconds, duty)))  # which lets no error out

    async def _repeat(self, seconds: Callable[[], float], duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(max(seconds(), _SHORTEST_PAUSE_SECONDS))
            try:
                await duty()
            except OSError as error:
                log.warning("duty_put_off", duty=getattr(duty, "__name__", "?"), reason=str(error))
            except Exception as error:
                # The boundary of a duty: it is tried again next time, and the others go on.
                log.error("duty_failed", duty=getattr(duty, "__name__", "?"), error=error)

    async def retain(self) -> None:
        """What is beyond its size goes, and what is past its time, unless the clock cannot be trusted with that."""
        now_ms = self._broker.clock.now_ms()
        by_time = self._broker.clock_trust.is_trusted()
        cleaner, room = self._broker.cleaner, self._broker.partitions.room
        partitions = list(self._broker.partitions)
        found = await self._needs.look(partitions)
        raised = []
        for number, partition in enumerate(partitions, start=1):
            needs = found.of(partition)
            if await cleaner.retain(partition, now_ms, needs, by_time=by_time, at_once=room.is_short):
                raised.append(partition)
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._drop_expired(raised, now_ms)
        cleaner.forget_gone()

    async def _drop_expired(self, raised: list[Partition], now_ms: int) -> None:
        if raised:
            # One file for all of them, before any other goes: a crash brings back nothing that was gone for readers.
            is_saved, at_once = await self._save_starts(), self._broker.partitions.room.is_short
            for partition in raised:
                await self._broker.cleaner.drop_expired(partition, now_ms, is_start_saved=is_saved, at_once=at_once)

    async def retain_acknowledged(self) -> None:
        """Where subscriptions decide, files go soon after all have read what is in them."""
        partitions = [
            one for topic in self._topics_by_subscriptions() for one in self._broker.partitions.of_topic(topic)
        ]
        if not partitions:
            return
        began, now_ms, cleaner = self._loop.time(), self._broker.clock.now_ms(), self._broker.cleaner
        by_time = self._broker.clock_trust.is_trusted()
        found = await self._needs.look(partitions)
        raised = [one for one in partitions if await cleaner.retain_read(one, now_ms, found.of(one), by_time=by_time)]
        await self._drop_expired(raised, now_ms)
        self._acknowledged_seconds = max(_ACKNOWLEDGED_SECONDS, _REST * (self._loop.time() - began))

    def _topics_by_subscriptions(self) -> list[Topic]:
        """Found anew only when topics or their defaults have changed: most brokers have none, and look every second."""
        image, defaults = self._broker.image, self._broker.partitions.defaults
        if self._seen[0] is not image or self._seen[1] is not defaults:
            self._seen = image, defaults
            said = ((one, one.overrides.get(RETENTION_BY, defaults.retention_by)) for one in image.topics.values())
            self._by_subscriptions = [topic for topic, by in said if by == BY_SUBSCRIPTIONS]
        return self._by_subscriptions

    async def _save_starts(self) -> bool:
        """False on a full disk, which gets room only by what goes now."""
        try:
            await self._broker.checkpoints.save_now()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("starts_not_saved", reason=str(error))
            return False
        return True

    async def watch_room(self) -> None:
        """How much of the disk is free. While it is too little, what may go goes at once."""
        room = self._broker.partitions.room
        free, total = await in_thread(partial(_room_of, self._disk, self._broker.config.data_dir))
        self._tell_room(room.note(free, total), free)
        await in_thread(lambda: self._broker.ballast.make(free, room.reserve_bytes))
        if room.is_short:
            await self.retain()

    def _tell_room(self, has_changed: bool, free: int) -> None:
        room = self._broker.partitions.room
        if has_changed and room.is_short:
            log.error("disk_nearly_full", free_bytes=free, reserve_bytes=room.reserve_bytes, reason=room.sentence)
        elif has_changed:
            log.info("disk_has_room", free_bytes=free, reserve_bytes=room.reserve_bytes)

    async def compact(self) -> None:
        """Of every key the newest value stays. A tombstone has its time, which only a clock that is trusted can end."""
        trust = self._broker.clock_trust
        by_time, now_ms = trust.is_trusted(), trust.late_ms()
        for partition in [one for one in self._broker.partitions if one.settings.is_compacted]:
            if self._broker.groups.is_loading(partition):
                continue  # it is being read from the first segment to the last
            await self._broker.cleaner.compact(partition, now_ms, by_time=by_time)

    async def scrub(self) -> None:
        """Whether sealed files still are what was written."""
        self._scrub_seconds = await self.scrubber.step()

    async def save_checkpoints(self) -> None:
        """How far the logs are known to be good: a start after a crash looks only at what came later."""
        await self._broker.checkpoints.save_now()
        await self._note_alive()

    async def _note_alive(self) -> None:
        await in_thread(self._look_at_clock().save)

    def _look_at_clock(self) -> ClockTrust:
        """What is saved is when the clock was last looked at."""
        trust = self._broker.clock_trust
        trust.is_trusted()
        return trust

    async def expire(self) -> None:
        """Forget readers' sessions and producers that have been silent for long."""
        self._broker.sessions.expire(self._loop.time())
        if not self._broker.clock_trust.is_trusted():
            return
        now_ms = self._broker.clock.now_ms()
        before_ms = now_ms - self._broker.config.producer_id_expiration_ms
        for partition in list(self._broker.partitions):
            partition.producers.expire(before_ms)
            partition.producers.expire_keys(now_ms - KEYED_KEPT_MS)


def _room_of(disk: Disk, data_dir: str) -> tuple[int, int]:
    return disk.free_bytes(data_dir), disk.total_bytes(data_dir)
