"""The driver of the group coordinator: it appends what the coordinator decides, and sends replies once that is safe.

Groups are spread over the partitions of `__consumer_offsets`; each partition has a coordinator of its own (a shard).
The protocol between the two is in `clarion.groups.coordinator`: a request goes in with a ticket, an outcome of records
and replies comes out; the records are appended and replayed, and the replies leave when the watermark has passed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from clarion.broker.authorizer import Operation
from clarion.broker.broker import RequestContext
from clarion.broker.threads import in_thread
from clarion.broker.waiting import WaitingReplies
from clarion.cluster import BrokerRegistration, Topic
from clarion.groups.config import GroupConfig
from clarion.groups.coordinator import GroupCoordinator, GroupSummary
from clarion.groups.memory import Ledger
from clarion.groups.names import shortened
from clarion.groups.outcome import Call, Outcome
from clarion.groups.placement import partition_for
from clarion.groups.subscriptions import resolve, resolve_again
from clarion.groups.topics import TopicInfo, TopicsView
from clarion.model.errors import ErrorCode, KafkaError, MalformedError
from clarion.model.ids import TopicPartition
from clarion.model.names import OFFSETS_TOPIC
from clarion.replication import Partition
from clarion.wire.batch import read_header
from clarion.wire.records import Record, decode_batch, encode_batch
from clarion.world import Randomness, event_log, new_uuid

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

OFFSETS_TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "104857600",  # Kafka's offsets.topic.segment.bytes: compaction leaves the active segment alone
    "compression.type": "producer",
}
COMMIT_TIMEOUT_MS: Final = 5_000  # as Kafka's offsets.commit.timeout.ms
_TELL_TOPICS_SECONDS: Final = 0.05  # a thousand topics made in a row are told to the coordinators once
_READ_BYTES: Final = 1024 * 1024  # while loading: so much is read and decoded in a thread at a time
_RECORDS_PER_TURN: Final = 250  # while loading: others wait no longer than these take, a few milliseconds
_SKIPPED_SHOWN_MAX: Final = 10  # records that cannot be read, one by one in the log; then only how many
_RETRY_SECONDS: Final = (5, 15, 60)  # groups that could not be loaded are tried again: a disk may recover

Method = Callable[[GroupCoordinator, Any, Call], Outcome]


class GroupService:
    def __init__(self, broker: Broker, config: GroupConfig, randomness: Randomness) -> None:
        self._broker = broker
        self._config = config
        self._ledger = Ledger(config.memory_bytes_max)
        self._overrides: dict[str, GroupConfig] = {}
        self._randomness = randomness
        self._loop = asyncio.get_running_loop()
        self._shards: dict[int, Shard] = {}  # by the partition of `__consumer_offsets`; those that are led here
        self._creating = asyncio.Lock()
        self._telling: asyncio.TimerHandle | None = None
        self._told_in_order = asyncio.Lock()
        self._view = TopicsView({})  # what the shards were told last
        self._loading: asyncio.Task[None] | None = None
        broker.on_topics_changed(self._on_topics_changed)

    def start(self) -> None:
        """Begin to load the groups; until a shard is loaded its groups answer COORDINATOR_LOAD_IN_PROGRESS."""
        topic = self._broker.image.topic(OFFSETS_TOPIC)
        if topic is not None:
            self._make_shards(topic)
            self._loading = self._loop.create_task(self._load_until_done())

    async def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        for shard in self.shards:
            shard.stop()

    @property
    def shards(self) -> list[Shard]:
        return list(self._shards.values())

    def is_loading(self, partition: Partition) -> bool:
        return any(shard.partition is partition and shard.is_loading for shard in self.shards)

    def configure_group(self, group_id: str, **settings: int) -> None:
        """Give one group settings of its own (fields of `GroupConfig`); without any it has the broker's again."""
        if settings:
            self._overrides[group_id] = replace(self._config, **settings)
        else:
            self._overrides.pop(group_id, None)

    async def call(
        self, group_id: str, operation: Operation, method: Method, request: Any, context: RequestContext
    ) -> Any:
        """Ask the coordinator of a group for what is this operation on it. KafkaError if it cannot answer."""
        self._broker.resolver.require_group(context.principal, operation, group_id)
        shard = await self._shard_of(group_id)
        return await shard.call(method, request, context)

    async def call_all(self, method: Method, request: Any, context: RequestContext) -> list[Any]:
        """Ask every coordinator, for requests that are about all groups."""
        return [await shard.call(method, request, context) async for shard in self._broker.turns.each(self.shards)]

    def committed_offset(self, group_id: str, tp: TopicPartition) -> int | None:
        """What a group has committed, as far as it is known here and now; None also while its shard is loading."""
        shard = self._find_shard(group_id)
        if shard is None or not shard.is_loaded:
            return None  # what was read so far may be further than where the group has gone back to since
        return shard.coordinator.committed_offsets(group_id).get(tp)

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """Where a group has committed offsets, as far as it is known here and now."""
        shard = self._find_shard(group_id)
        return [] if shard is None else shard.coordinator.committed_partitions(group_id)

    def summaries(self) -> Iterator[GroupSummary]:
        for shard in self.shards:
            yield from shard.coordinator.summaries()

    def committed(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Every committed offset of every group."""
        for shard in self.shards:
            for summary in shard.coordinator.summaries():
                for tp, offset in shard.coordinator.committed_offsets(summary.group_id).items():
                    yield summary.group_id, tp, offset

    async def ensure_topic(self) -> None:
        """The internal topic is made when the first group appears."""
        if self._shards or self._is_led_elsewhere:
            return
        async with self._creating:
            if self._shards:
                return
            topic = self._broker.image.topic(OFFSETS_TOPIC) or await self._create_topic()
            self._make_shards(topic)
            await self._load()
            if any(shard.failure for shard in self.shards):
                self._loading = self._loop.create_task(self._retry())

    @property
    def _is_led_elsewhere(self) -> bool:
        """All of it."""
        topic = self._broker.image.topic(OFFSETS_TOPIC)
        return topic is not None and not self._broker.partitions.of_topic(topic)

    def coordinator_of(self, group_id: str) -> BrokerRegistration | None:
        """The broker that leads the group's partition; None while nobody does."""
        topic = self._broker.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return None
        state = topic.partitions[partition_for(group_id, topic.partition_count)]
        return self._broker.image.brokers.get(state.leader)

    async def _create_topic(self) -> Topic:
        count = self._broker.config.offsets_partitions
        try:
            return await self._broker.create_topic(OFFSETS_TOPIC, count, OFFSETS_TOPIC_SETTINGS)
        except OSError as error:
            log.error("offsets_topic_not_made", reason=str(error))
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error

    async def _shard_of(self, group_id: str) -> Shard:
        await self.ensure_topic()
        shard = self._find_shard(group_id)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates group {group_id!r}")
        return shard

    def _find_shard(self, group_id: str) -> Shard | None:
        topic = self._broker.image.topic(OFFSETS_TOPIC)
        return None if topic is None else self._shards.get(partition_for(group_id, topic.partition_count))

    def _make_shards(self, topic: Topic) -> None:
        def new_id() -> Any:
            return new_uuid(self._randomness)

        def new_coordinator() -> GroupCoordinator:
            return GroupCoordinator(self._config, new_id, self._overrides, self._ledger)

        there = frozenset(self._broker.image.topics)
        self._shards = {
            partition.tp.partition: Shard(self._broker, partition, new_coordinator, there)
            for partition in self._broker.partitions.of_topic(topic)
        }

    async def _load_until_done(self) -> None:
        await self._load()
        await self._retry()

    async def resolve_aside(self, group_id: str, regex: str | None) -> None:
        """Have a thread resolve what a heartbeat is going to need, unless that is known already."""
        shard = self._find_shard(group_id)
        if shard is None:
            return
        coordinator = shard.coordinator
        for one in {*coordinator.regexes(group_id), *([regex] if regex else [])}:
            if one not in self._view.resolved:
                await self._broker.turns.aside_slowly(resolve, one, self._view)

    async def _load(self) -> None:
        await self._tell_topics()
        for shard in self.shards:
            await shard.load()

    async def _retry(self) -> None:
        waits = chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1]))
        while failed := [shard for shard in self.shards if shard.failure]:
            await asyncio.sleep(next(waits))
            for shard in failed:
                shard.start_over()
                await self._tell_topics()
                await shard.load()

    def _on_topics_changed(self, deleted: Topic | None) -> None:
        if deleted is not None:
            for shard in self.shards:
                shard.forget_topics({deleted.name})
        if self._telling is None and self._shards:
            self._telling = self._loop.call_later(_TELL_TOPICS_SECONDS, self._tell_topics_soon)

    def _tell_topics_soon(self) -> None:
        self._telling = None
        self._broker.turns.start(self._tell_topics(), lambda: None)

    async def _tell_topics(self) -> None:
        async with self._told_in_order:
            topics = {one.name: TopicInfo(one.id, one.partition_count) for one in self._broker.image.topics.values()}
            view = TopicsView(topics, before=self._view)
            if view.resolved_before:
                await self._broker.turns.aside_slowly(resolve_again, view)
            self._view = view
            for shard in self.shards:
                shard.tell_topics(view)


class Shard:
    """One coordinator and the partition it writes to."""

    def __init__(
        self,
        broker: Broker,
        partition: Partition,
        new_coordinator: Callable[[], GroupCoordinator],
        topics: frozenset[str],
    ) -> None:
        """`topics`: the names of those that are there now, before any client can commit something."""
        self._broker = broker
        self.partition = partition
        self._topics_before = topics
        self._new_coordinator = new_coordinator
        self.coordinator = new_coordinator()
        self._loop = asyncio.get_running_loop()
        self._is_loaded = False
        self._unforgotten: set[str] = set()  # deleted topics whose offsets are not known to be gone yet
        self.failure = ""  # why its groups could not be loaded
        self._last_offset = -1  # of our own appends
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def is_loaded(self) -> bool:
        return self._is_loaded

    @property
    def is_loading(self) -> bool:
        return not self._is_loaded and not self.failure

    def start_over(self) -> None:
        """As if nothing had been read yet."""
        self.coordinator.resign()
        self.coordinator = self._new_coordinator()
        self._is_loaded = False
        self.failure = ""

    async def load(self) -> None:
        """Read every record. If that cannot be, the groups stay closed: half of them would be a lie about the rest."""
        try:
            records = await self._replay_all()
        except Exception as error:
            self.failure = str(error) or repr(error)
            log.error("groups_not_loaded", partition=self.partition.tp, error=error)
            return
        self._is_loaded = True
        if records:
            log.info("groups_loaded", partition=self.partition.tp, records=records)
        self._start_timers()
        self._forget_missing_topics()

    async def _replay_all(self) -> int:
        batches = self.partition.log.batches(self.partition.start_offset)
        replayed = skipped = 0
        while records := await in_thread(lambda: _decoded(batches)):
            for record in records:
                skipped += not self._replay_one(record, skipped)
                replayed += 1
                if replayed % _RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
        if skipped:
            log.error("group_records_skipped", partition=self.partition.tp, count=skipped)
        return replayed

    def _replay_one(self, record: Record, skipped: int) -> bool:
        """One that nobody can read is passed over: what was said before it holds, and the other groups can work."""
        try:
            self.coordinator.replay(record.key or b"", record.value)
        except MalformedError as error:
            if skipped < _SKIPPED_SHOWN_MAX:
                log.error("group_record_skipped", partition=self.partition.tp, offset=record.offset, reason=str(error))
            return False
        return True

    def _start_timers(self) -> None:
        self.coordinator.after_load(self._now_ms(), self._broker.clock.now_ms())
        self._set_timer()

    def _forget_missing_topics(self) -> None:
        """A topic may have been deleted just before a crash, or while we were loading, and made again since.

        Who was made since this life began is not the one of whom the log speaks: nobody could commit meanwhile.
        """
        named, there = self.coordinator.committed_topics(), self._broker.image.topics
        missing = {name for name in named if name not in self._topics_before or name not in there}
        self.forget_topics(missing)

    async def call(self, method: Method, request: Any, context: RequestContext) -> Any:
        if not self.is_loaded:
            raise KafkaError(_loading_error(self))
        self.forget_topics(frozenset())
        if self._unforgotten:
            # The topic may have been made again, and what its predecessor's readers committed is not about it.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "offsets of a deleted topic could not be removed yet")
        ticket: asyncio.Future[Any] = self._loop.create_future()
        call = Call(
            ticket,
            context.version,
            self._now_ms(),
            self._broker.clock.now_ms(),
            shortened(context.client_id),
            f"/{context.host}",
        )
        self._perform(method(self.coordinator, request, call))
        return await ticket

    def forget_topics(self, names: Set[str]) -> None:
        """When the groups are loaded, and when it can be written."""
        self._unforgotten |= names
        if not self.is_loaded or not self._unforgotten:
            return
        if self._perform(self.coordinator.delete_topic_offsets(self._unforgotten)):
            self._unforgotten.clear()

    def tell_topics(self, view: TopicsView) -> None:
        self.coordinator.on_topics_changed(view)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _perform(self, outcome: Outcome) -> bool:
        """False if the outcome could not be written; it has not happened then."""
        if outcome.records:
            try:
                self._append(outcome)
            except KafkaError as error:
                log.warning("group_append_failed", partition=self.partition.tp, reason=error.message)
                _fail(outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return False
        if outcome.replies:
            self._reply_when_safe(outcome)
        self._set_timer()
        return True

    def _append(self, outcome: Outcome) -> None:
        wall_ms = self._broker.clock.now_ms()
        batch = encode_batch([(record.key, record.value, (), wall_ms) for record in outcome.records])
        self._last_offset = self.partition.append_own(batch, wall_ms).last_offset
        for record in outcome.records:
            self.coordinator.replay(record.key, record.value)

    def _reply_when_safe(self, outcome: Outcome) -> None:
        """Also a reply without records waits: what it tells may rest on a change that is not committed yet."""
        unsafe = UnsafeReplies(outcome, self._broker.waiting_coordinators)
        if self.partition.when_committed(self._last_offset, unsafe.on_commit):
            unsafe.on_commit(ErrorCode.NONE)

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
        may_expire = self._broker.clock_trust.is_trusted()
        if self._perform(self.coordinator.on_tick(self._now_ms(), self._broker.clock.now_ms(), may_expire=may_expire)):
            self._set_timer()
        else:
            # What was due is lost. As after a restart, every member gets a whole session to show that it is there.
            self._start_timers()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


def _decoded(batches: Iterator[bytes]) -> list[Record]:
    """The next stretch of the log, in a thread; nothing at its end."""
    records: list[Record] = []
    size = 0
    for batch in batches:
        if not read_header(batch).is_control:
            records += decode_batch(batch)
        size += len(batch)
        if records and size >= _READ_BYTES:
            break
    return records


class UnsafeReplies:
    """Replies that wait for what they tell to be committed: at most so long that clients do not give up before.

    A full disk may hold up a flush for ever. What is not known by then may still come to be, and is asked for again.
    """

    __slots__ = ("_outcome", "_waiting", "deadline")

    def __init__(self, outcome: Outcome, waiting: WaitingReplies) -> None:
        self._outcome = outcome
        self._waiting = waiting
        self.deadline = waiting.add(self, COMMIT_TIMEOUT_MS)

    def on_commit(self, code: ErrorCode) -> None:
        self._waiting.discard(self)
        if code is ErrorCode.NONE:
            _reply(self._outcome)
        else:
            _fail(self._outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def time_out(self) -> None:
        self.on_commit(ErrorCode.REQUEST_TIMED_OUT)


def _loading_error(shard: Shard) -> ErrorCode:
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if shard.failure else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def _reply(outcome: Outcome) -> None:
    for ticket, response in outcome.replies:
        if not ticket.done():
            ticket.set_result(response)


def _fail(outcome: Outcome, code: ErrorCode) -> None:
    for ticket, _response in outcome.replies:
        if not ticket.done():
            ticket.set_exception(KafkaError(code))
