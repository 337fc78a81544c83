"""Share-partitions on the broker that leads their data: loaded, read from, written down, and woken.

    find(group, topic, partition) → loaded from `share_states` in this leader's epoch → fetch, acknowledge → saved

What changes in a share-partition is told to the share coordinator in one write for all that happened in a turn of the
event loop, and while a write is under way the next one gathers. A write that is refused ends the share-partition here:
somebody else leads, or the group's offsets were altered; whoever comes next loads it anew.

Who finds nothing to fetch waits in line at the share-partition (`Waiter`). News wakes the first in the line, which
wakes the next when it has taken what it wants: a hundred consumers that wait cost one look for each batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from clarion.broker.apis.k02_list_offsets import search_time
from clarion.broker.messages import check_offset, slices_of
from clarion.broker.share_states import ShareStates
from clarion.broker.threads import in_thread
from clarion.groups.config import GroupConfig
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.group_settings import reset_duration_ms
from clarion.model.ids import TopicId
from clarion.queues.acknowledgements import Acknowledgement
from clarion.queues.share_partition import Acquired, AcquireMode, Readable, ShareLimits, SharePartition
from clarion.queues.state_records import UNINITIALIZED, ShareKey
from clarion.replication import Partition
from clarion.wire.batch import HEADER_BYTES, read_header
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_LEADERS_MAX: Final = 100_000  # share-partitions in memory; each takes a few kilobytes while it is idle
_READ_BYTES_MAX: Final = 1024 * 1024  # at a time, as `max.partition.fetch.bytes`: it is for some hundred records
_BATCHES_MAX: Final = 2_000  # looked at after a read, in a few milliseconds
_STILL_THERE_SECONDS: Final = 1.0  # after which it is seen that a client has gone that waits for minutes
_FENCED: Final = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)


class Waiter:
    """A fetch that waits for news of any of its share-partitions."""

    __slots__ = ("leaders", "woken")

    def __init__(self, leaders: Iterable[ShareLeader]) -> None:
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaders = list(leaders)
        for leader in self.leaders:
            leader.line_up(self)
        for leader in self.leaders:
            leader.tell()  # of what has come since it looked

    async def wait(self, seconds: float, has_left: Callable[[], bool]) -> None:
        while not self.woken.done() and seconds > 0 and not has_left():
            await asyncio.wait([self.woken], timeout=min(seconds, _STILL_THERE_SECONDS))
            seconds -= _STILL_THERE_SECONDS

    def leave(self) -> None:
        """Others may go on: whoever was woken has what it wants by now, or is tired of waiting."""
        for leader in self.leaders:
            leader.leave_line(self)


class ShareFetched:
    """Records that a member was given, and the bytes they are in."""

    __slots__ = ("acquired", "records")

    def __init__(self, acquired: list[Acquired], records: bytes) -> None:
        self.acquired = acquired
        self.records = records

    @property
    def count(self) -> int:
        return sum(one.last - one.first + 1 for one in self.acquired)


class ShareLeader:
    """One share-partition that this broker leads."""

    def __init__(
        self,
        broker: Broker,
        states: ShareStates,
        key: ShareKey,
        partition: Partition,
        share: SharePartition,
        epoch: int,
    ) -> None:
        self._broker = broker
        self._states = states
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state_epoch = epoch
        self.share = share
        self.failure: KafkaError | None = None
        self._loop = asyncio.get_running_loop()
        self._is_reading = False
        self._line: dict[Waiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None  # what is being written
        self._gathering: asyncio.Future[None] | None = None  # what comes next

    @property
    def is_current(self) -> bool:
        return (
            self.failure is None
            and not self.partition.is_gone
            and self.partition.is_leader
            and self.partition.leader_epoch == self.leader_epoch
        )

    # What members do

    async def fetch(
        self, member: str, limits: ShareLimits, records_max: int, bytes_max: int, mode: AcquireMode
    ) -> ShareFetched | None:
        """What there is for a member now; None if nothing is. One reads at a time, and nobody waits for another."""
        self.share.limits = limits
        self.share.delete_before(self.partition.start_offset)
        offset = self.share.fetch_offset(self._now_ms())
        if self._is_reading or offset is None or offset >= self.partition.high_watermark.offset:
            return None
        self._is_reading = True
        try:
            found = await self._read(max(offset, self.partition.start_offset), bytes_max)
        finally:
            self._is_reading = False
        if not self.is_current:
            raise self.failure or KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        batches = _batches(found)
        if not batches:
            self.tell()
            return None
        data = [(first, last) for first, last, _at, is_empty in batches if not is_empty]
        read = Readable(offset, batches[-1][1] + 1, data)
        acquired = self.share.acquire(member, read, records_max, mode, self._now_ms())
        self.changed()
        if not acquired:
            self.tell()  # gaps may have been passed over; who is next in line looks again
            return None
        return ShareFetched(acquired, _holding(found, batches, acquired))

    def acknowledge(self, member: str, limits: ShareLimits, batches: list[Acknowledgement]) -> None:
        self.share.limits = limits
        self.share.acknowledge(member, batches, self._now_ms())
        self.changed()

    def give_back(self, member: str) -> None:
        self.share.give_back(member)
        self.changed()

    def changed(self) -> None:
        """To be called after every change: it is written down, watched for its end, and told to who waits."""
        if self.share.has_changed and self._gathering is None:
            self._gathering = self._loop.create_future()
            if self._writing is None:
                self._loop.call_soon(self._write)
        self._set_timer()
        self.tell()

    def saved(self) -> asyncio.Future[None] | None:
        """Done when all that has changed until now is durable; None if that is so."""
        return self._gathering or self._writing

    # Reading

    async def _read(self, offset: int, bytes_max: int) -> bytes:
        check_offset(self.partition, offset)
        slices: list[FileSlice] = await slices_of(self.partition, offset, min(bytes_max, _READ_BYTES_MAX))
        found: bytes = await in_thread(lambda: b"".join([one.read() for one in slices])) if slices else b""
        return found

    # Writing

    def _write(self) -> None:
        if self.failure is not None:
            return
        assert self._writing is None
        self._writing, self._gathering = self._gathering, None
        self._broker.turns.start(self._write_down(), lambda: self._end(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)))

    async def _write_down(self) -> None:
        writing, delta = self._writing, self.share.take_delta()
        assert writing is not None
        try:
            if delta is not None:
                await self._states.write(self.key, self.state_epoch, self.leader_epoch, delta)
        except KafkaError as error:
            self._end(error)
            return
        self._writing = None
        if not writing.done():
            writing.set_result(None)
        if self._gathering is not None:
            self._write()

    def _end(self, error: KafkaError) -> None:
        """What was told to nobody has not happened: the state as it was written holds, for whoever loads it next."""
        if self.failure is None:
            log.info("share_partition_ended", share=str(self.key), reason=error.message or error.code.name)
        self.stop(_for_clients(error))

    def stop(self, reason: KafkaError | None = None) -> None:
        self.failure = self.failure or reason or KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for waiting in (self._writing, self._gathering):
            if waiting is not None and not waiting.done():
                waiting.set_exception(self.failure)
                waiting.exception()  # whoever waits has it; if nobody does, that is no mistake
        if self._timer is not None:
            self._timer.cancel()
        self.partition.watchers.pop(self, None)
        for waiter in list(self._line):
            _wake(waiter)

    # The line

    def line_up(self, waiter: Waiter) -> None:
        self._line[waiter] = None
        self.partition.watchers[self] = None

    def leave_line(self, waiter: Waiter) -> None:
        self._line.pop(waiter, None)
        if not self._line:
            self.partition.watchers.pop(self, None)
        self.tell()

    def on_progress(self, partition: Partition) -> None:
        """Implements `replication.Watcher`."""
        self.tell()

    def tell(self) -> None:
        """The first in the line looks, if there may be something for it and nobody is looking already."""
        first = next(iter(self._line), None)
        if first is None or first.woken.done() or self._is_reading:
            return
        offset = self.share.fetch_offset(self._now_ms())
        if not self.is_current or (offset is not None and offset < self.partition.high_watermark.offset):
            _wake(first)

    # Time

    def _set_timer(self) -> None:
        deadline_ms = self.share.next_deadline_ms()
        if self._timer is not None:
            if deadline_ms is not None and self._timer.when() <= deadline_ms / 1000:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None and self.failure is None:
            self._timer = self._loop.call_at(deadline_ms / 1000 + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.share.expire(self._now_ms())
        self.changed()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


class ShareLeaders:
    """All share-partitions of this broker, loaded when they are first asked for."""

    def __init__(self, broker: Broker, states: ShareStates) -> None:
        self._broker = broker
        self._states = states
        self._leaders: dict[ShareKey, ShareLeader] = {}
        self._locks: WeakValueDictionary[ShareKey, asyncio.Lock] = WeakValueDictionary()  # as long as somebody loads
        self._loading: set[ShareKey] = set()  # and their state is still what it was when they were read

    def __len__(self) -> int:
        return len(self._leaders)

    async def get(self, group_id: str, topic_id: TopicId, partition: Partition) -> ShareLeader:
        key = ShareKey(group_id, topic_id, partition.tp.partition)
        known = self._leaders.get(key)
        if known is not None and known.is_current and known.partition is partition:
            return known
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._leaders.get(key)
            if known is None or not known.is_current or known.partition is not partition:
                known = await self._load(key, partition)
            return known

    def known(self, group_id: str, topic_id: TopicId, index: int) -> ShareLeader | None:
        """One that is loaded: whoever has nothing of it need not load it."""
        leader = self._leaders.get(ShareKey(group_id, topic_id, index))
        return leader if leader is not None and leader.is_current else None

    def forget(self, key: ShareKey) -> None:
        """Its state is another's from now on, or nobody's."""
        self._loading.discard(key)
        leader = self._leaders.pop(key, None)
        if leader is not None:
            leader.stop()

    def forget_topic(self, topic_id: TopicId) -> None:
        for key in [key for key in (*self._leaders, *self._loading) if key.topic_id == topic_id]:
            self.forget(key)

    def stop(self) -> None:
        for key in list(self._leaders):
            self.forget(key)

    async def _load(self, key: ShareKey, partition: Partition) -> ShareLeader:
        self.forget(key)
        if len(self._leaders) >= _LEADERS_MAX:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many share-partitions are in use")
        config = self._broker.groups.config_of(key.group_id)
        self._loading.add(key)
        try:
            state = await self._states.read(key, partition.leader_epoch)
            start = state.start_offset
            if start == UNINITIALIZED:
                start = await first_offset(self._broker, partition, config)
            if key not in self._loading:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its state began anew while it was read")
        except KafkaError as error:
            raise _for_clients(error) from error
        finally:
            self._loading.discard(key)
        share = SharePartition(limits_of(config), start, state.batches)
        leader = ShareLeader(self._broker, self._states, key, partition, share, state.state_epoch)
        if state.start_offset == UNINITIALIZED:
            share.begin()  # where a group begins is decided once, and not anew after the next restart
        leader.changed()
        self._leaders[key] = leader
        log.info("share_partition_loaded", share=str(key), start=share.start_offset, next=share.next_offset)
        return leader


def limits_of(config: GroupConfig) -> ShareLimits:
    return ShareLimits(
        config.share_record_lock_duration_ms,
        config.share_delivery_count_limit,
        config.share_partition_max_record_locks,
    )


async def first_offset(broker: Broker, partition: Partition, config: GroupConfig) -> int:
    """Where a share group begins in a partition it has not read yet: `share.auto.offset.reset`."""
    match config.share_auto_offset_reset:
        case "earliest":
            return partition.start_offset
        case "latest":
            return partition.high_watermark.offset
        case by_duration:
            since_ms = broker.clock.now_ms() - reset_duration_ms(by_duration)
            found = await search_time(broker, partition, since_ms)
            return partition.high_watermark.offset if found is None or found[1] < 0 else found[1]


def _wake(waiter: Waiter) -> None:
    if not waiter.woken.done():
        waiter.woken.set_result(None)


def _for_clients(error: KafkaError) -> KafkaError:
    """What clients of the data partition understand: ask again, here or elsewhere."""
    if error.code in _FENCED:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if error.code is ErrorCode.INVALID_REQUEST:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.message)
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)


def _batches(found: bytes) -> list[tuple[int, int, int, bool]]:
    """First and last offset, where it ends in what was read, and whether it has nothing for readers: a transaction's
    marker, or a batch that compaction has emptied."""
    batches: list[tuple[int, int, int, bool]] = []
    at = 0
    while len(found) - at >= HEADER_BYTES and len(batches) < _BATCHES_MAX:
        header = read_header(found, at)
        at += header.size_bytes
        if at > len(found):
            break  # cut off by the limit
        last = header.base_offset + header.last_offset_delta
        batches.append((header.base_offset, last, at, header.is_control or header.record_count == 0))
    return batches


def _holding(found: bytes, batches: list[tuple[int, int, int, bool]], acquired: list[Acquired]) -> bytes:
    """From the first batch that has an acquired record to the last."""
    first, last = acquired[0].first, acquired[-1].last
    begin = max((ends_at for _, batch_last, ends_at, _ in batches if batch_last < first), default=0)
    end = max(ends_at for base, _, ends_at, _ in batches if base <= last)
    return found[begin:end]
