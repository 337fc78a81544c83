"""Simulated members of a share group, what they are told, and what must hold between them.

A record that was accepted, or rejected, and whose consumer has heard so is never delivered again, and nobody else hears
that he has accepted it. Its deliveries are counted, and no count comes again or falls. In the end, when there is calm,
the group has worked off everything, and of every message it is known why it is done: somebody has accepted or rejected
it, or has tried to and never heard; or it was delivered as often as it may be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from clarion.model.errors import ErrorCode
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from clarion.wire.messages.share_groups import (
    AcknowledgementBatch,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
)
from tests.sim.clients import BACKOFF_SECONDS, Connect, ConnectAlone, Violation, World
from tests.sim.link import LOST, Link

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
FINAL = frozenset({ACCEPT, REJECT})
LOCK_MS = 1_500  # shorter than a link's patience, so that locks end while their holders are still waiting
HEARTBEAT_SECONDS = 1.0
ROUNDS_MAX = 8  # of one session
NOBODYS = 1_000_000  # so far beyond there is no record
LATEST = -1

Place = tuple[int, int]  # partition and offset


@dataclass
class Delivery:
    at: float  # when it was heard of
    to: str
    count: int
    was_given_back: bool = False


@dataclass
class Record:
    """What is known of one message, as the group sees it."""

    deliveries: list[Delivery] = field(default_factory=list)
    done_at: float | None = None  # when somebody heard that it is
    accepted_by: str = ""
    tried: bool = False  # to accept or to reject it; nobody has heard whether it is done


@dataclass
class Queue:
    """One share group of the world's topic, and what its members were told."""

    world: World
    group: str
    deliveries_max: int
    leader: Callable[[int], Awaitable[Link]]
    alone: ConnectAlone = Link.alone  # to the group's coordinator
    anybody: Connect = Link.open
    records: dict[Place, Record] = field(default_factory=dict)
    unheard: dict[int, int] = field(default_factory=dict)  # by partition: fetches whose answers were lost, or errors
    late_closes: set[tuple[str, int]] = field(default_factory=set)  # member and partition: it may be on its way still
    topic_id: UUID = NO_TOPIC_ID

    def record(self, place: Place) -> Record:
        return self.records.setdefault(place, Record())

    def delivered(self, who: str, place: Place, count: int, asked_at: float) -> None:
        known, now = self.record(place), self.world.loop.time()
        if known.done_at is not None and known.done_at < asked_at:
            raise Violation(f"{place} was done and is delivered again, to {who}")
        kept = (one.count for one in known.deliveries if one.at < asked_at and not one.was_given_back)
        before = max(kept, default=0)
        if count <= before:
            raise Violation(f"{place} is delivered to {who} for the {count}. time, after it was for the {before}.")
        if count > self.deliveries_max:
            raise Violation(f"{place} is delivered for the {count}. time")
        known.deliveries.append(Delivery(now, who, count, (who, place[0]) in self.late_closes))

    def settled(self, who: str, place: Place, kind: int, code: int) -> None:
        """A member has heard what became of its acknowledgement."""
        if kind not in FINAL:
            return
        known = self.record(place)
        if code == ErrorCode.NONE:
            if known.done_at is not None:
                raise Violation(f"{place} was acknowledged twice as done: to {known.accepted_by} and to {who}")
            known.done_at, known.accepted_by = self.world.loop.time(), who
        elif code != ErrorCode.INVALID_RECORD_STATE:
            known.tried = True  # who is told this may have been too late, or another leader may have heard of it

    def lost(self, place: Place, kind: int) -> None:
        if kind in FINAL:
            self.record(place).tried = True

    def given_back(self, who: str, index: int) -> None:
        for (at, _), known in self.records.items():
            for one in known.deliveries if at == index else ():
                one.was_given_back |= one.to == who

    # In the end

    async def worked_off(self) -> None:
        """Returns when nothing is left; every message must have come to its end by then."""
        while True:
            await self.world.pause(0.2, 0.5)
            try:
                ends = await self._ends()
                if await self._starts() == ends:
                    break
            except LOST:
                pass
        for index, end in ends.items():
            for offset in range(end):
                self._judge((index, offset))

    def _judge(self, place: Place) -> None:
        known = self.record(place)
        if known.done_at is None and not known.tried:
            deliveries = len(known.deliveries) + self.unheard.get(place[0], 0)
            if deliveries < self.deliveries_max:
                raise Violation(f"{place} is done, and nobody has done it; {known}")

    async def _ends(self) -> dict[int, int]:
        ends = {}
        for index in range(self.world.partitions):
            link = await self.leader(index)
            try:
                place = ListOffsetsPartition(partition_index=index, timestamp=LATEST, current_leader_epoch=-1)
                topics = (ListOffsetsTopic(name=self.world.topic, partitions=(place,)),)
                told = (await link.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 5)).topics[0].partitions[0]
            finally:
                link.close()
            if told.error_code:
                raise ConnectionError("not now")
            ends[index] = told.offset
        return ends

    async def _starts(self) -> dict[int, int]:
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=self.group, topics=None)
        async with self.alone() as link:
            (told,) = (await link.ask(DescribeShareGroupOffsetsRequest(groups=(asked,)), 1)).groups
        return {one.partition_index: one.start_offset for topic in told.topics for one in topic.partitions}

    async def find_topic(self) -> None:
        while not self.topic_id.int:
            try:
                link = await self.anybody()
                try:
                    topics = (MetadataRequestTopic(name=self.world.topic),)
                    found = await link.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
                finally:
                    link.close()
                if found.topics[0].error_code == 0:
                    self.topic_id = found.topics[0].topic_id
            except LOST:
                await self.world.pause(*BACKOFF_SECONDS)


class QueueMember:
    """Joins, fetches from one of its partitions for a while, says something of what it got, goes on with another one.

    Now and then it vanishes with what it holds, or says nothing of a record, or says something of one that it does not
    hold: then nothing of what it says with it may happen.
    """

    def __init__(self, queue: Queue, name: str) -> None:
        self._queue = queue
        self._world = queue.world
        self._chance = queue.world.loop.random
        self._life = 0
        self._name = name
        self.member_id = name
        self._epoch = 0
        self._partitions: tuple[int, ...] = ()
        self._beaten_at = -HEARTBEAT_SECONDS

    async def run(self) -> None:
        await self._world.has_topic.wait()
        await self._queue.find_topic()
        while True:
            try:
                await self._beat()
                if self._partitions:
                    await self._work(self._chance.choice(self._partitions))
            except LOST:
                pass
            await self._world.pause(*BACKOFF_SECONDS)

    async def _beat(self) -> None:
        if self._world.loop.time() < self._beaten_at + HEARTBEAT_SECONDS:
            return
        request = ShareGroupHeartbeatRequest(
            group_id=self._queue.group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=(self._world.topic,) if self._epoch == 0 else None,
        )
        async with self._queue.alone() as link:
            answer = await link.ask(request, 1)
        self._note("beat", answer.error_code, answer.member_epoch)
        if answer.error_code:
            self._epoch = 0
            return
        self._epoch, self._beaten_at = answer.member_epoch, self._world.loop.time()
        if answer.assignment is not None:
            self._partitions = tuple(at for one in answer.assignment.topic_partitions for at in one.partitions)

    async def _work(self, index: int) -> None:
        link = await self._queue.leader(index)
        session = Session(self._queue, self.member_id, index, link)
        try:
            for _ in range(self._chance.randrange(1, ROUNDS_MAX)):
                if not await self._round(session):
                    return
            if self._chance.random() < 0.5:
                await session.close()
        finally:
            link.close()
        if self._chance.random() < 0.1:  # a new one takes its place
            self._life += 1
            self.member_id, self._epoch, self._partitions = f"{self._name}.{self._life}", 0, ()
            self._beaten_at = -HEARTBEAT_SECONDS

    async def _round(self, session: Session) -> bool:
        if not await session.fetch(self._chance.choice((1, 5, 50)), max_wait_ms=300):
            return False
        await self._world.pause(*self._chance.choice(((0.0, 0.05), (0.0, 0.5))))
        words = {offset: kind for offset in sorted(session.held) if (kind := self._word())}
        for some in _in_pieces(words, self._chance.randrange(1, 4)):
            if not self._world.is_calm and self._chance.random() < 0.05:
                some[max(some) + NOBODYS] = ACCEPT
            if not await session.acknowledge(some):
                return False
        return True

    def _word(self) -> int:
        """What it says of a record; 0: nothing, for now."""
        if self._world.is_calm:
            return ACCEPT
        kinds = (ACCEPT, RELEASE, REJECT, RENEW, 0)
        return self._chance.choices(kinds, weights=(12, 2, 1, 1, 1))[0]

    def _note(self, *words: object) -> None:
        self._world.loop.trace.note(self._name, *words)


class Session:
    """A share session of one member with the leader of one partition."""

    def __init__(self, queue: Queue, member_id: str, index: int, link: Link) -> None:
        self._queue = queue
        self._world = queue.world
        self._member_id = member_id
        self._index = index
        self._link = link
        self._epoch = 0
        self.held: dict[int, int] = {}  # offset and delivery count, as far as the member knows

    async def fetch(self, records_max: int, *, max_wait_ms: int) -> bool:
        """Whether it may go on."""
        asked_at = self._world.loop.time()
        request = ShareFetchRequest(
            group_id=self._queue.group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait=max_wait_ms,
            max_bytes=1 << 20,
            max_records=records_max,
            share_acquire_mode=1,
            topics=self._topics({}) if self._epoch == 0 else (),
        )
        try:
            answer = await self._link.ask(request, 2)
        except LOST:
            self._unheard()
            raise
        self._world.loop.trace.note(self._member_id, "fetched", self._index, answer.error_code)
        if answer.error_code:
            return False
        self._epoch += 1
        for offset, count in _acquired(answer):
            self._world.loop.trace.note(self._member_id, "got", self._index, offset, count)
            self._queue.delivered(self._member_id, (self._index, offset), count, asked_at)
            self.held[offset] = count
        is_refused = any(one.error_code for topic in answer.responses for one in topic.partitions)
        if is_refused:  # after it was acquired, where the write of that is known only to another coordinator
            self._unheard()
        return not is_refused

    def _unheard(self) -> None:
        """Something may have been acquired all the same: that delivery counts."""
        self._queue.unheard[self._index] = self._queue.unheard.get(self._index, 0) + 1

    async def acknowledge(self, words: dict[int, int]) -> bool:
        """Whether it may go on."""
        request = ShareAcknowledgeRequest(
            group_id=self._queue.group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            is_renew_ack=RENEW in words.values(),
            topics=self._topics(words),
        )
        try:
            answer = await self._link.ask(request, 2)
        except LOST:
            for offset, kind in words.items():
                self._queue.lost((self._index, offset), kind)
            raise
        if answer.error_code:
            return False
        self._epoch += 1
        (told,) = [one for topic in answer.responses for one in topic.partitions]
        self._world.loop.trace.note(self._member_id, "said", self._index, *words.items(), told.error_code)
        for offset, kind in words.items():
            self._queue.settled(self._member_id, (self._index, offset), kind, told.error_code)
            if kind != RENEW and told.error_code == ErrorCode.NONE:
                self.held.pop(offset, None)  # else it may still hold it
        return told.error_code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE)

    async def close(self) -> None:
        """What the member holds, also from a session that it has left, it gives back: that delivery does not count."""
        self._queue.given_back(self._member_id, self._index)
        request = ShareAcknowledgeRequest(
            group_id=self._queue.group, member_id=self._member_id, share_session_epoch=-1, topics=()
        )
        try:
            await self._link.ask(request, 2)
        except LOST:
            # It has no session's number: should it come late, it ends the member's next one.
            self._queue.late_closes.add((self._member_id, self._index))
            raise

    def _topics(self, words: dict[int, int]) -> tuple[ShareFetchTopic, ...]:
        batches = tuple(
            AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=(kind,))
            for offset, kind in sorted(words.items())
        )
        one = ShareFetchPartition(partition_index=self._index, acknowledgement_batches=batches)
        return (ShareFetchTopic(topic_id=self._queue.topic_id, partitions=(one,)),)


def _acquired(answer: ShareFetchResponse) -> Iterable[tuple[int, int]]:
    for topic in answer.responses:
        for one in topic.partitions:
            for run in one.acquired_records:
                for offset in range(run.first_offset, run.last_offset + 1):
                    yield offset, run.delivery_count


def _in_pieces(words: dict[int, int], count: int) -> list[dict[int, int]]:
    """Every so many-th together: not in the order of the log."""
    items = list(words.items())
    return [dict(items[at::count]) for at in range(count) if items[at::count]]


def queue_members(queue: Queue, count: int) -> list[QueueMember]:
    return [QueueMember(queue, f"q{number}") for number in range(count)]
