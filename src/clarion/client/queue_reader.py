"""Reading a queue: a member of its share group, with a session at every broker that leads one of its partitions.

Lives on an event loop; `take` and what messages say of themselves may come from any thread. A lost connection, a new
leader and a restarted broker are survived: what was held of a leader that is gone comes again, to whoever is there.

How much is fetched ahead follows the application: twice as much each time it had to wait, half as much when messages
lie unread for a second. What lies here unread is kept by renewal, and is given back in the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

from clarion.client.broker_links import GROUP_SETTINGS, NO_LEADER, BrokerLinks, LedTopic
from clarion.client.errors import (
    ClarionError,
    NotConnected,
    Timeout,
    Unsupported,
    deleted_topic,
    not_acknowledged,
)
from clarion.client.held_partition import HeldPartition
from clarion.client.queue_chunk import QueueChunk
from clarion.client.queue_member import QueueMember
from clarion.client.queue_session import PartitionKey, QueueSession
from clarion.client.received import ReceivedMessage
from clarion.world import SystemRandomness, new_uuid
from clarion.world.tasks import start_task

log = logging.getLogger("clarion.client")

PREFETCH_DEFAULT: Final = 1_000  # messages: some hundred milliseconds of work for an application that is quick
_FIRST_FETCH: Final = 32
_UNREAD_SECONDS_MAX: Final = 1.0  # after which fewer are fetched: others could have worked on them
_RENEWALS_PER_LOCK: Final = 3
_RENEWALS: Final = "share.renew.acknowledge.enable"
_LOOK_PAUSE_SECONDS: Final = 0.1  # between two looks at who leads what
_MISSED_SECONDS: Final = 5.0  # after which a topic was deleted: until then a broker may not have heard of it
_LOCK_SECONDS: Final = 30.0  # until a broker has said how long it is


class QueueReader:
    def __init__(
        self,
        links: BrokerLinks,
        topics: Iterable[str],
        group: str,
        *,
        prefetch: int,
        renews: bool,
        on_news: Callable[[], None],
    ) -> None:
        self.links = links
        self.group = group
        self.member_id = str(new_uuid(SystemRandomness()))
        self.sources: dict[PartitionKey, HeldPartition] = {}
        self.is_ending = False
        self.is_leaving_in_haste = False
        self.failure: ClarionError | None = None
        self.unread: Callable[[], list[ReceivedMessage]] = list  # of what was taken last, for renewal
        self._topics = tuple(topics)
        self._member = QueueMember(links, group, self.member_id, self._topics, self._assigned)
        self._prefetch = prefetch
        self._renews = renews
        self._may_renew = True  # unless a broker says that this group's locks are not renewed
        self._on_news = on_news
        self._wanted = min(_FIRST_FETCH, prefetch)
        self._was_full = False  # what was taken last: there may be as much again
        self._chunks: deque[QueueChunk] = deque()
        self._assignment: frozenset[PartitionKey] = frozenset()
        self._leaders: dict[PartitionKey, int] = {}
        self._missed: dict[UUID | str, float] = {}  # topics that nobody knows, by id and by name, and since when
        self._sessions: dict[int, tuple[QueueSession, asyncio.Task[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._must_look = asyncio.Event()
        self._settling = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._lock_seconds = _LOCK_SECONDS
        self._loop = asyncio.get_running_loop()

    # Life

    async def start(self) -> None:
        """Returns when the group has taken the reader in."""
        await self._member.join()
        self._may_renew = await self.links.setting(GROUP_SETTINGS, self.group, _RENEWALS) != "false"
        if self._renews and not self._may_renew:
            raise Unsupported(f"queue {self.group!r} renews no locks ({_RENEWALS}): leave renew out, or switch it on")
        self._tasks = [
            start_task(self._member.stay(self.fail), "queue membership"),
            start_task(self._look_again_and_again(), "queue leaders"),
            start_task(self._renew_again_and_again(), "queue renewal"),
        ]

    async def flush(self) -> None:
        """Returns when everything that was said until now is durable. NotAcknowledged tells what did not count."""
        await self._settle(self.links.settings.timeout_ms / 1000)
        if lost := [place for source in self.sources.values() for place in source.take_lost()]:
            raise not_acknowledged(lost)

    async def close(self) -> None:
        """What was said is durable, and what is still held goes to others."""
        if self.is_ending:
            await self._has_ended.wait()
            return
        self.is_ending = True
        self._wake_all()
        running = [task for _, task in self._sessions.values()]
        patience = self.links.settings.timeout_ms / 1000
        try:
            if running:
                _, late = await asyncio.wait(running, timeout=patience)
                if late:
                    log.warning("queue %s was left in haste: %s brokers did not answer", self.group, len(late))
            await self._member.leave()
        finally:
            self.is_leaving_in_haste = True
            for task in [*running, *self._tasks]:
                task.cancel()
            await asyncio.gather(*running, *self._tasks, return_exceptions=True)
            for source in self.sources.values():
                source.end()
            self._has_ended.set()
        if lost := [place for source in self.sources.values() for place in source.take_lost()]:
            log.warning("acknowledgements lost: %s", not_acknowledged(lost))

    def fail(self, error: ClarionError) -> None:
        """Reading cannot go on; whoever reads is told."""
        self.failure = self.failure or error
        self._settling.set()
        self._on_news()

    # What was fetched

    def take(self) -> QueueChunk | None:
        """The next messages, in any thread; None where there are none."""
        while self._chunks:
            chunk = self._chunks.popleft()
            now = self._loop.time()
            if now - chunk.arrived > _UNREAD_SECONDS_MAX:
                self._wanted = max(1, self._wanted // 2)
            self._was_full = chunk.count >= self._wanted
            self._loop.call_soon_threadsafe(self._wake_all)
            if now < chunk.until:
                return chunk
        if self._was_full:
            self._was_full = False
            self._wanted = min(self._prefetch, 2 * self._wanted)
        return None

    @property
    def has_room(self) -> bool:
        return sum(chunk.count for chunk in list(self._chunks)) <= self._wanted // 2

    def records_wanted(self) -> tuple[int, bool]:
        """How many to ask for, and whether it may be more, as whole batches are: where few are wanted, it may not."""
        return self._wanted, self._wanted >= PREFETCH_DEFAULT

    def received(self, chunk: QueueChunk) -> None:
        self._lock_seconds = chunk.until - chunk.arrived
        self._chunks.append(chunk)
        self._on_news()

    # What is said of it

    def sources_at(self, broker: int) -> list[PartitionKey]:
        return [key for key, leader in self._leaders.items() if leader == broker]

    def source_at(self, broker: int, key: PartitionKey) -> HeldPartition | None:
        """If that broker leads it, as far as is known."""
        return self.sources.get(key) if self._leaders.get(key) == broker else None

    def is_in_use_at(self, broker: int) -> bool:
        return any(self.sources[key].is_in_use for key in self.sources_at(broker))

    def renew_no_more(self) -> None:
        """A broker has refused it: others would too."""
        self._may_renew = False
        for source in self.sources.values():
            source.may_renew = False

    def was_settled(self) -> None:
        self._settling.set()

    def _tell(self, source: HeldPartition) -> None:
        """In any thread: something was said."""
        self._loop.call_soon_threadsafe(self._speak, source)

    def _speak(self, source: HeldPartition) -> None:
        leader = self._leaders.get((source.topic_id, source.partition), NO_LEADER)
        if leader in self._sessions:
            self._sessions[leader][0].wake_to_speak()
        else:
            self.look_for_leaders()

    async def _settle(self, patience_seconds: float) -> None:
        try:
            async with asyncio.timeout(patience_seconds):
                while not all(source.is_settled for source in self.sources.values()):
                    if self.failure is not None:
                        raise self.failure
                    self._settling.clear()
                    for session, _ in self._sessions.values():
                        session.wake_to_speak()
                    await self._settling.wait()
        except TimeoutError:
            raise Timeout(f"what was said of messages of {self.group!r} is not known to have arrived") from None

    async def _renew_again_and_again(self) -> None:
        """What the application has not got yet; and, where that is wanted, all that it has not settled."""
        while True:
            await asyncio.sleep(self._lock_seconds / _RENEWALS_PER_LOCK)
            if not self._may_renew:
                return
            now = self._loop.time()
            offsets: dict[HeldPartition, list[int]] = {}
            for chunk in list(self._chunks):
                offsets.setdefault(chunk.source, []).extend(chunk.offsets())
                chunk.until = now + self._lock_seconds
            for message in self.unread():
                source = message._source
                if isinstance(source, HeldPartition):
                    offsets.setdefault(source, []).append(message.offset)
            for source in self.sources.values():
                source.extend(list(source.held) if self._renews else offsets.get(source, ()))
                if source.has_something_to_say:
                    self._speak(source)

    # Who leads what

    def look_for_leaders(self) -> None:
        self._must_look.set()

    def _assigned(self, assignment: Mapping[UUID, Iterable[int]]) -> None:
        self._assignment = frozenset((topic, index) for topic, indexes in assignment.items() for index in indexes)
        self.look_for_leaders()

    async def _look_again_and_again(self) -> None:
        while True:
            await self._must_look.wait()
            self._must_look.clear()
            held = [key for key, source in self.sources.items() if not source.has_ended]
            wanted = {topic_id for topic_id, _ in [*self._assignment, *held]}
            try:
                found = await self.links.describe(list(wanted)) if wanted else {}
                self.learn(found)
                await self._look_for_deleted(wanted - {one.topic_id for one in found.values()})
            except NotConnected as error:
                log.debug("leaders unknown: group %s, reason %s", self.group, str(error))
                self.look_for_leaders()
            except ClarionError as error:
                self.fail(error)
                return
            await asyncio.sleep(_LOOK_PAUSE_SECONDS)

    async def _look_for_deleted(self, missing: set[UUID]) -> None:
        """What is said of messages of a deleted topic cannot count any more. One that is made anew under its name is
        read on; where there is none, nothing would ever come, and whoever waits is told."""
        names = await self.links.describe(self._topics) if missing or not self._assignment else self._topics
        now = self._loop.time()
        unknown: list[UUID | str] = [*missing, *(name for name in self._topics if name not in names)]
        self._missed = {one: self._missed.get(one, now) for one in unknown}
        gone = {one for one, since in self._missed.items() if now - since >= _MISSED_SECONDS}
        for key in [key for key in self.sources if key[0] in gone]:
            self.sources[key].end()
            self._leaders.pop(key, None)
        self._settling.set()
        if gone.issuperset(self._topics):
            self.fail(deleted_topic(f"read {self._topics[0]!r} for {self.group!r}", self._topics[0]))
        elif len(gone) < len(unknown):
            self.look_for_leaders()

    def learn(self, topics: Mapping[str, LedTopic]) -> None:
        """Who leads what now; every partition goes to the session at its leader."""
        by_id = {one.topic_id: one for one in topics.values()}
        for key in [*self._assignment, *self.sources]:
            topic = by_id.get(key[0])
            if topic is None or key[1] >= topic.partition_count:
                continue
            leader, epoch = topic.leaders[key[1]]
            if key not in self.sources or self.sources[key].has_ended:
                self.sources[key] = HeldPartition(topic.name, *key, self._tell)
                self.sources[key].may_renew = self._may_renew
            if epoch < self.sources[key].term:
                continue  # who told us has not heard of it yet
            self._leaders[key] = leader
            if leader != NO_LEADER:
                self.sources[key].begin_term(epoch)
        self._settling.set()
        self._route()

    def _route(self) -> None:
        for broker, (_, task) in list(self._sessions.items()):
            if task.done():
                del self._sessions[broker]
        led: dict[int, dict[PartitionKey, HeldPartition]] = {broker: {} for broker in self._sessions}
        is_unknown = False
        for key in self._assignment:
            leader = self._leaders.get(key, NO_LEADER)
            is_unknown = is_unknown or leader not in self.links.brokers
            if leader in self.links.brokers:
                led.setdefault(leader, {})[key] = self.sources[key]
        for broker in {leader for leader in self._leaders.values() if leader in self.links.brokers}:
            if self.is_in_use_at(broker):
                led.setdefault(broker, {})
        for broker, partitions in led.items():
            if broker not in self._sessions and not self.is_ending:
                session = QueueSession(self, broker)
                session.partitions = partitions
                self._sessions[broker] = session, start_task(session.run(), "queue session")
            elif broker in self._sessions:
                self._sessions[broker][0].partitions = partitions
        if is_unknown:
            self.look_for_leaders()
        self._wake_all()

    def _wake_all(self) -> None:
        for session, _ in self._sessions.values():
            session.wake()
            if self.is_ending or not session.partitions:
                session.wake_to_speak()
