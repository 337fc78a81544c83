"""One share-partition on the broker that leads its data: read from, acknowledged, written down, and woken.

What changes in a share-partition is told to the share coordinator in one write for all that happened in a turn of the
event loop, and while a write is under way the next one gathers. A write that is refused ends the share-partition here:
somebody else leads, or the group's offsets were altered; whoever comes next loads it anew.

Who finds nothing to fetch waits in line at the share-partition (`Waiter`). News wakes the first in the line, which
wakes the next when it has taken what it wants: a hundred consumers that wait cost one look for each batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from clarion.broker.dead_letters import DeadLetters
from clarion.broker.queue_rules import QueueRules
from clarion.broker.share_batches import READ_BYTES_MAX, ReadBatches, read_batches, read_headers
from clarion.broker.share_records import FAR_MS, Now, keys_at, look
from clarion.broker.share_states import ShareStates
from clarion.broker.threads import in_thread
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acknowledgements import Acknowledgement
from clarion.queues.acquisition import Acquired, AcquireMode, Readable
from clarion.queues.share_partition import SharePartition
from clarion.queues.state_coordinator import StateReply
from clarion.queues.state_records import ShareKey
from clarion.replication import Partition
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_READ_BYTES_MIN: Final = 16 * 1024  # beside what records take: a batch may begin before the first one wanted
_STILL_THERE_SECONDS: Final = 1.0  # after which it is seen that a client has gone that waits for minutes
_READS_MAX: Final = 8  # at a time, of records of which none is to be delivered now: some megabytes
_REST_SECONDS: Final = 1.0  # after a read that failed nobody is woken: each would find the same, at once
_CLOCK_MS: Final = 60_000  # so often it is seen whether the wall clock was set, while something waits for its time
_BAD_DISK: Final = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
_FENCED: Final = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)


class Waiter:
    """A fetch that waits for news of any of its share-partitions."""

    __slots__ = ("is_hurried", "leaders", "woken")

    def __init__(self, leaders: Iterable[ShareLeader]) -> None:
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaders = list(leaders)
        self.is_hurried = False
        for leader in self.leaders:
            leader.line_up(self)
        for leader in self.leaders:
            leader.tell()  # of what has come since it looked

    async def wait(self, seconds: float, has_left: Callable[[], bool]) -> None:
        while not self.woken.done() and seconds > 0 and not has_left():
            await asyncio.wait([self.woken], timeout=min(seconds, _STILL_THERE_SECONDS))
            seconds -= _STILL_THERE_SECONDS

    def hurry(self) -> None:
        """The client has gone on meanwhile."""
        self.is_hurried = True
        if not self.woken.done():
            self.woken.set_result(None)

    def leave(self) -> None:
        """Others may go on: whoever was woken has what it wants by now, or is tired of waiting."""
        for leader in self.leaders:
            leader.leave_line(self)


class ShareFetched:
    """Records that a member was given, and the parts of files that their batches are in."""

    __slots__ = ("acquired", "size_bytes", "slices")

    def __init__(self, acquired: list[Acquired], slices: list[FileSlice]) -> None:
        self.acquired = acquired
        self.slices = slices
        self.size_bytes = sum(one.length for one in slices)

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
        rules: QueueRules,
        start_offset: int,
        state: StateReply,
    ) -> None:
        self._broker = broker
        self._states = states
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state_epoch = state.state_epoch
        self.state_version = state.version  # as it is known to be; a write rests on it
        self.rules = rules
        self.failure: KafkaError | None = None
        self._loop = asyncio.get_running_loop()
        self.confirmed_at = self._loop.time()  # then the share coordinator knew the same
        self.share = SharePartition(
            rules.limits,
            start_offset,
            state.batches,
            now_ms=self._now_ms(),
            wall_ahead_ms=self._wall_ahead_ms(),
            fraction=lambda: int.from_bytes(broker.randomness.bytes(2), "big") / 65_536,
        )
        self._dead_letters = DeadLetters(broker, self)
        self._is_reading = False
        self._record_bytes = 0.0  # of a record, on average; 0 until some were read
        self._line: dict[Waiter, None] = {}
        self._resting: asyncio.Handle | None = None  # after a read that failed, until it ends
        self._timer: asyncio.Handle | None = None
        self._timer_ms = 0  # when it goes off; uvloop's own does not say so where that is at once
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
        self, member: str, rules: QueueRules, records_max: int, bytes_max: int, mode: AcquireMode
    ) -> ShareFetched | None:
        """What there is for a member now; None if nothing is. One reads at a time, and nobody waits for another."""
        self.use(rules)
        for _ in range(_READS_MAX):
            offset = self._readable_offset()
            if offset is None or self._is_reading:
                break
            try:
                read, readable = await self._read(offset, min(bytes_max, self._bytes_for(records_max)))
            except BaseException as error:  # those who have lined up meanwhile were told of nothing
                if isinstance(error, KafkaError) and error.code in _BAD_DISK:  # else cancelled, as a rule
                    self._rest()
                self.tell()
                raise
            if not self.is_current:
                raise self.failure or KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if readable is None or self.rules.is_paused:  # meanwhile
                break
            acquired = self.share.acquire(member, readable, records_max, mode, self._now_ms())
            self.changed()
            if acquired:
                return ShareFetched(acquired, read.holding(acquired))
        self.tell()  # gaps may have been passed over; who is next in line looks again
        return None

    def acknowledge(self, member: str, rules: QueueRules, batches: Sequence[Acknowledgement]) -> None:
        self.use(rules)
        self.share.acknowledge(member, batches, self._now_ms())
        self.changed()

    def end_session(self, member: str) -> None:
        """What it held was fetched and never worked on, as far as anybody knows; that is not enough where no delivery
        may be made again."""
        if self.rules.is_at_most_once:
            self.share.release(member, self._now_ms())
        else:
            self.share.give_back(member)
        self.changed()

    def give_back(self, member: str, acquired: Sequence[Acquired] | None = None) -> None:
        """All that it holds, or these."""
        self.share.give_back(member, acquired)
        self.changed()

    def use(self, rules: QueueRules) -> None:
        """The group's rules as they are now."""
        if rules != self.rules:
            self.rules = rules
            self.share.use(rules.limits)

    def confirm(self) -> None:
        self.confirmed_at = self._loop.time()

    def changed(self) -> None:
        """To be called after every change: it is written down, watched for its end, and told to who waits."""
        if self.share.has_changed and self._gathering is None:
            self._gathering = self._loop.create_future()
            if self._writing is None:
                self._loop.call_soon(self._write)
        self._dead_letters.look()
        self._set_timer()
        self.tell()

    def saved(self) -> asyncio.Future[None] | None:
        """Done when all that has changed until now is durable; None if that is so."""
        return self._gathering or self._writing

    async def wait_saved(self) -> None:
        """KafkaError says why it never will be."""
        saved = self.saved()
        if saved is not None:
            await asyncio.shield(saved)  # others wait for the same write

    # Reading

    def _readable_offset(self) -> int | None:
        """Where there is something that may be for somebody."""
        if self.rules.is_paused:
            return None
        self.share.delete_before(self.partition.start_offset)
        end = self.partition.high_watermark.offset
        offset = self.share.fetch_offset(self._now_ms(), end)
        return offset if offset is not None and offset < end else None

    def _bytes_for(self, records_max: int) -> int:
        """As many as so many records take, going by the last ones that were read, and some more. One batch is read in
        any case."""
        wanted = int(records_max * self._record_bytes * 1.25) + _READ_BYTES_MIN
        return wanted if self._record_bytes and not self.rules.needs_look else READ_BYTES_MAX

    async def _read(self, offset: int, bytes_max: int) -> tuple[ReadBatches, Readable | None]:
        rules = self.rules
        self._is_reading = True
        try:
            if rules.limits.keeps_key_order and self.share.keys is None:
                self.share.learn(await keys_at(self.partition, self.share.without_keys()))
            read_some = read_batches if rules.needs_look else read_headers
            read = await read_some(self.partition, max(offset, self.partition.start_offset), bytes_max)
            if not read.batches:
                return read, None
            self._record_bytes = read.size_bytes / (read.next - read.batches[0][0])
            if not rules.needs_look:
                return read, Readable(offset, read.next, read.spans)
            clock, trust = self._broker.clock, self._broker.clock_trust
            far_ms = 0 if self.share.is_crowded else FAR_MS
            now = Now(clock.now_ms(), trust.early_ms(), self._wall_ahead_ms(), far_ms)
            wanted = self.share.wanted(read.batches[0][0], read.next - 1)
            spans, fates = await in_thread(lambda: look(read, self.partition.tp, rules, now, wanted))
            return read, Readable(offset, read.next, spans, fates)
        finally:
            self._is_reading = False

    # Writing

    def _write(self) -> None:
        if self.failure is not None:
            return
        assert self._writing is None
        self._writing, self._gathering = self._gathering, None
        self._broker.turns.start(self._write_down(), lambda: self._end(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)))

    async def _write_down(self) -> None:
        self.share.follow_wall(self._wall_ahead_ms())
        writing, delta = self._writing, self.share.take_delta()
        assert writing is not None
        try:
            if delta is not None:
                epochs = self.state_epoch, self.leader_epoch
                self.state_version = await self._states.write(self.key, *epochs, self.state_version, delta)
        except KafkaError as error:
            self._end(error)
            return
        self._writing = None
        self.confirm()
        if not writing.done():
            writing.set_result(None)
        if self._gathering is not None:
            self._write()

    def _end(self, error: KafkaError) -> None:
        """What was told to nobody has not happened: the state as it was written holds, for whoever loads it next."""
        if self.failure is None:
            log.info("share_partition_ended", share=str(self.key), reason=error.message or error.code.name)
        self.stop(for_clients(error))

    def stop(self, reason: KafkaError | None = None) -> None:
        self.failure = self.failure or reason or KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for waiting in (self._writing, self._gathering):
            if waiting is not None and not waiting.done():
                waiting.set_exception(self.failure)
                waiting.exception()  # whoever waits has it; if nobody does, that is no mistake
        for timer in (self._timer, self._resting):
            if timer is not None:
                timer.cancel()
        self._dead_letters.stop()
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
        if not self.is_current or (self._resting is None and self._readable_offset() is not None):
            _wake(first)

    def _rest(self) -> None:
        if self._resting is None:
            self._resting = self._loop.call_later(_REST_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        self.tell()

    # Time

    def follow_clock(self) -> None:
        """If the wall clock was set, the times by it that are written down are others now."""
        self.share.follow_wall(self._wall_ahead_ms())
        if self.share.has_changed:
            self.changed()

    def _set_timer(self) -> None:
        deadline_ms = self.share.next_deadline_ms()
        if deadline_ms is not None and self.share.has_waits:
            deadline_ms = min(deadline_ms, self._now_ms() + _CLOCK_MS)
        if self._timer is not None:
            if deadline_ms is not None and self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None and self.failure is None:
            self._timer_ms = deadline_ms
            self._timer = self._loop.call_at(deadline_ms / 1000 + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.share.follow_wall(self._wall_ahead_ms())
        self.share.expire(self._now_ms())
        self.changed()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _wall_ahead_ms(self) -> int:
        return self._broker.clock.now_ms() - self._now_ms()


def _wake(waiter: Waiter) -> None:
    if not waiter.woken.done():
        waiter.woken.set_result(None)


def for_clients(error: KafkaError) -> KafkaError:
    """What clients of the data partition understand: ask again, here or elsewhere."""
    if error.code in _FENCED:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if error.code is ErrorCode.INVALID_REQUEST:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error.message)
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
