"""The driver of one coordinator: it loads it, appends what it decides, and replies on commit.

The protocol between the two is in `clarion.groups.coordinator`: a request goes in with a ticket, an outcome of records
and replies comes out; the records are appended and replayed, and the replies leave when the watermark has passed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from clarion.broker.threads import in_thread
from clarion.broker.waiting import UnsafeReplies, fail_all, reply_to_all
from clarion.groups.names import shortened
from clarion.groups.outcome import Call, Outcome
from clarion.model.errors import ErrorCode, KafkaError, MalformedError
from clarion.replication import Partition
from clarion.wire.batch import read_header
from clarion.wire.records import Record, decode_batch, encode_batch
from clarion.world import event_log
from clarion.world.events import Repeats

if TYPE_CHECKING:
    from clarion.broker.broker import Broker, RequestContext

log = event_log("broker")

_READ_BYTES: Final = 1024 * 1024  # while loading: so much is read and decoded in a thread at a time
_RECORDS_PER_TURN: Final = 250  # while loading: others wait no longer than these take, a few milliseconds
_SKIPPED_SHOWN_MAX: Final = 10  # records that cannot be read, one by one in the log; then only how many
SAID_AGAIN_SECONDS: Final = 60.0  # on a full disk every client of a group has its request refused once a second


class Coordinator(Protocol):
    """Pure: events in, outcomes out."""

    def replay(self, key: bytes, value: bytes | None, offset: int = -1) -> None:
        """Apply one record of the log. MalformedError if it cannot be read; the state is then as before."""
        ...

    def after_load(self, now_ms: int, wall_ms: int) -> None:
        """The whole log is replayed; also called when what was due could not be written: time begins anew."""
        ...

    def next_deadline_ms(self) -> int | None: ...

    def on_tick(self, now_ms: int, wall_ms: int, *, may_expire: bool) -> Outcome:
        """`may_expire`: whether the wall clock can be trusted with forgetting things."""
        ...

    def resign(self) -> Outcome:
        """Another broker leads this partition now: answers to all who wait. Nothing follows."""
        ...


C = TypeVar("C", bound=Coordinator)


class User(Protocol[C]):
    """Who has things coordinated."""

    async def before_load(self) -> None:
        """Coordinators, new ones among them, are about to be loaded."""
        ...

    def after_load(self, shard: CoordinatorShard[C]) -> None: ...


Method = Callable[[Any, Any, Call], Outcome]  # of a coordinator: (itself, request, circumstances)


class CoordinatorShard(Generic[C]):
    """One coordinator and the partition it writes to."""

    def __init__(self, broker: Broker, partition: Partition, new_coordinator: Callable[[], C], user: User[C]) -> None:
        self._broker = broker
        self.partition = partition
        self.taken_over_in = broker.image  # before anybody could ask for something here
        self._new_coordinator = new_coordinator
        self._user = user
        self.coordinator = new_coordinator()
        self._loop = asyncio.get_running_loop()
        self._not_appended = Repeats(lines_max=1, seconds=SAID_AGAIN_SECONDS)
        self._is_loaded = False
        self._is_over = False
        self.failure = ""  # why it could not be loaded
        self._last_offset = -1  # of our own appends
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def is_loaded(self) -> bool:
        return self._is_loaded

    @property
    def is_loading(self) -> bool:
        return not self._is_loaded and not self.failure

    def check_loaded(self) -> None:
        if not self._is_loaded:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if self.failure else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            raise KafkaError(code)
        try:
            self.partition.check_leads()
        except KafkaError as error:  # another broker may know better by now, and have said so
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error

    async def call(self, method: Method, request: Any, context: RequestContext) -> Any:
        """What the coordinator answers, once it is safe to say."""
        self.check_loaded()
        ticket: asyncio.Future[Any] = self._loop.create_future()
        call = Call(
            ticket,
            context.version,
            self._now_ms(),
            self._broker.clock_trust.late_ms(),
            shortened(context.client_id),
            f"/{context.host}",
        )
        self.perform(method(self.coordinator, request, call))
        return await ticket

    def perform(self, outcome: Outcome) -> bool:
        """False if the outcome could not be written; it has not happened then."""
        if outcome.records:
            try:
                self._append(outcome)
            except KafkaError as error:
                if self._not_appended.allow(self._loop.time()):
                    fields = {"partition": self.partition.tp, "reason": error.message}
                    log.warning("coordinator_append_failed", **fields, **self._not_appended.take_left_out())
                is_deposed = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
                fail_all(outcome, ErrorCode.NOT_COORDINATOR if is_deposed else ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return False
        if outcome.replies:
            self._reply_when_safe(outcome)
        self._set_timer()
        return True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def resign(self) -> None:
        self._is_over = True
        self._is_loaded = False
        self.stop()
        reply_to_all(self.coordinator.resign())

    # Loading

    def start_over(self) -> None:
        """As if nothing had been read yet."""
        self.coordinator.resign()
        self.coordinator = self._new_coordinator()
        self._is_loaded = False
        self.failure = ""

    async def load(self) -> None:
        """Read every record. If that cannot be, the shard stays closed: half of it would be a lie about the rest."""
        try:
            records = await self._replay_all()
        except Exception as error:  # also a mistake of ours in one record: the other shards open all the same
            self.failure = str(error) or repr(error)
            log.error("coordinator_not_loaded", partition=self.partition.tp, error=error)
            return
        if self._is_over:
            return  # another broker's, meanwhile
        self._is_loaded = True
        self._last_offset = self.partition.next_offset - 1  # what another leader wrote may not be committed yet
        if records:
            log.info("coordinator_loaded", partition=self.partition.tp, records=records)
        self._start_timers()
        self._user.after_load(self)

    async def _replay_all(self) -> int:
        batches = self.partition.batches()
        replayed = skipped = 0
        while records := await in_thread(lambda: _decoded(batches)):
            for record in records:
                skipped += not self._replay_one(record, skipped)
                replayed += 1
                if replayed % _RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if self._is_over:
                break
        if skipped:
            log.error("coordinator_records_skipped", partition=self.partition.tp, count=skipped)
        return replayed

    def _replay_one(self, record: Record, skipped: int) -> bool:
        """One that nobody can read is passed over: what was said before it holds, and all else can work."""
        try:
            self.coordinator.replay(record.key or b"", record.value, record.offset)
        except MalformedError as error:
            if skipped < _SKIPPED_SHOWN_MAX:
                tp, offset = self.partition.tp, record.offset
                log.error("coordinator_record_skipped", partition=tp, offset=offset, reason=str(error))
            return False
        return True

    # Appending and replying

    def _append(self, outcome: Outcome) -> None:
        wall_ms = self._broker.arrival_ms()
        batch = encode_batch([(record.key, record.value, (), wall_ms) for record in outcome.records])
        self._last_offset = self.partition.append_own(batch, wall_ms).last_offset
        first_offset = self._last_offset - len(outcome.records) + 1
        for offset, record in enumerate(outcome.records, first_offset):
            self.coordinator.replay(record.key, record.value, offset)

    def _reply_when_safe(self, outcome: Outcome) -> None:
        """Also a reply without records waits: what it tells may rest on a change that is not committed yet."""
        unsafe = UnsafeReplies(outcome, self._broker.waiting_coordinators)
        if self.partition.when_committed(self._last_offset, unsafe.on_commit):
            # What is committed may be old: of a broker whose lease is over, another one may have changed it since.
            unsafe.on_commit(ErrorCode.NONE if self._may_answer() else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _may_answer(self) -> bool:
        membership = self.partition.membership
        return membership is None or membership.lease_is_valid()

    # Timers

    def _start_timers(self) -> None:
        self.coordinator.after_load(self._now_ms(), self._broker.clock_trust.late_ms())
        self._set_timer()

    def _set_timer(self) -> None:
        deadline_ms = self.coordinator.next_deadline_ms()
        if deadline_ms is None:
            self.stop()
            self._timer = None
            return
        at = deadline_ms / 1000
        if self._timer is None or at < self._timer_at:
            self.stop()
            self._timer_at = at
            self._timer = self._loop.call_at(max(at, self._loop.time() + 0.001), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        trust = self._broker.clock_trust
        may_expire, wall_ms = trust.is_trusted(), trust.late_ms()
        if self.perform(self.coordinator.on_tick(self._now_ms(), wall_ms, may_expire=may_expire)):
            self._set_timer()
        else:
            # What was due is lost. As after a restart, every member gets a whole session to show that it is there.
            self._start_timers()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


def _decoded(batches: Iterator[bytes]) -> list[Record]:
    """The next megabyte of the log, in a thread; nothing at its end."""
    records: list[Record] = []
    size = 0
    for batch in batches:
        if not read_header(batch).is_control:
            records += decode_batch(batch)
        size += len(batch)
        if records and size >= _READ_BYTES:
            break
    return records
