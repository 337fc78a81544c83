"""Simulated clients: an idempotent producer, a consumer that follows, a group that commits. They write a history."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from uuid import UUID

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.logs import InitProducerIdRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from clarion.wire.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from clarion.wire.records import Record, decode_batch, encode_batch
from tests.history import Asked, Commit, Committed, Operation, Outcome, Poll, Send
from tests.sim.link import LOST, Link
from tests.sim.loop import SimLoop
from tests.sim.machine import EPOCH_MS

BACKOFF_SECONDS = (0.01, 0.3)
RECORD_MS = EPOCH_MS - 2 * 86_400_000  # old enough not to lie in the future when the broker's clock jumps back
# Answers after which a producer tries again; a refused batch also makes those behind it come out of order.
TRY_AGAIN = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
LEADS_NO_LONGER = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.FENCED_LEADER_EPOCH}
MESSAGES_MAX = 600  # of one producer: enough for many rolls, few enough for many seeds
OUT_OF_ORDER_MAX = 20  # in a row and with nothing before it under way: the broker has forgotten or invented something


Connect = Callable[[], Awaitable[Link]]
ConnectAlone = Callable[[], AbstractAsyncContextManager[Link]]


class Violation(Exception):
    """A client was told something that cannot be."""


class Refused(Exception):
    """Not now; try again."""


@dataclass
class World:
    """What all clients share."""

    loop: SimLoop
    topic: str
    partitions: int
    history: list[Operation] = field(default_factory=list)
    is_calm: bool = False
    has_topic: asyncio.Event = field(default_factory=asyncio.Event)  # as metadata would tell a producer
    topic_ids: set[UUID] = field(default_factory=set)  # every one that was ever made
    producer_ids: set[int] = field(default_factory=set)
    ends: dict[int, int] = field(default_factory=dict)  # by partition: how far it goes at least, by what clients heard

    committed: int = -1  # in partition 0, by the one group whose offsets are asked for everywhere

    def heard_of(self, partition: int, offset: int) -> None:
        """Somebody was told that there is a committed message at the offset."""
        self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)

    def chance(self, *of: float) -> float:
        return self.loop.random.uniform(*of)

    async def pause(self, *seconds: float) -> None:
        await asyncio.sleep(self.chance(*seconds))


@dataclass
class Batch:
    partition: int
    sequence: int
    sends: list[Send]
    padding: bytes = b""
    out_of_order: int = 0


class Producer:
    """Keeps some batches under way until there is calm, and sends all again, in order, when one of them fails."""

    def __init__(
        self,
        world: World,
        name: str,
        window: int,
        gap_seconds: tuple[float, float],
        *,
        connect: Connect = Link.open,
        partitions: Sequence[int] | None = None,
        messages_max: int = MESSAGES_MAX,
    ) -> None:
        """`connect`: to the leader of these partitions."""
        self._world = world
        self.name = name
        self._connect = connect
        self._messages_max = messages_max
        self._partitions = partitions or range(world.partitions)
        self._gap_seconds = gap_seconds
        self._window = window
        self._number = 0
        self._sequences = dict.fromkeys(self._partitions, 0)
        self._unacked: deque[Batch] = deque()
        self._id: tuple[int, int] | None = None

    async def run(self) -> None:
        await self._world.has_topic.wait()
        while self._has_more or self._unacked:
            try:
                link = await self._connect()
                try:
                    await self._produce(link)
                finally:
                    link.close()
            except (*LOST, Refused):
                await self._world.pause(*BACKOFF_SECONDS)

    @property
    def _has_more(self) -> bool:
        return not self._world.is_calm and self._number < self._messages_max

    async def _produce(self, link: Link) -> None:
        if self._id is None:
            answer = await link.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout=1000), 1)
            if answer.error_code:
                raise Refused
            if answer.producer_id in self._world.producer_ids:
                raise Violation(f"producer id {answer.producer_id} was given to two producers")
            self._world.producer_ids.add(answer.producer_id)
            self._id = (answer.producer_id, answer.producer_epoch)
        under_way = deque((batch, self._send(link, batch)) for batch in self._unacked)
        try:
            while self._has_more or under_way:
                if self._has_more and len(under_way) < self._window:
                    batch = self._next_batch()
                    under_way.append((batch, self._send(link, batch)))
                    await self._world.pause(*self._gap_seconds)
                else:
                    await self._settle(*under_way[0])
                    under_way.popleft()
        finally:
            for _, answer in under_way:
                answer.cancel()

    def _next_batch(self) -> Batch:
        partition = self._world.loop.random.choice(self._partitions)
        batch = Batch(partition, self._sequences[partition], [])
        for _ in range(self._world.loop.random.randrange(1, 4)):
            self._number += 1
            batch.sends.append(Send(self.name, f"{self._world.topic}-{partition}", f"{self.name}/{self._number}"))
        batch.padding = b"x" * self._world.loop.random.choice((0, 10, 500))
        self._world.history += batch.sends
        self._sequences[partition] += len(batch.sends)
        self._unacked.append(batch)
        return batch

    def _send(self, link: Link, batch: Batch) -> asyncio.Task[tuple[int, int]]:
        assert self._id is not None
        data = encode_batch(
            [(None, send.value.encode() + batch.padding, (), RECORD_MS) for send in batch.sends],
            producer_id=self._id[0],
            producer_epoch=self._id[1],
            base_sequence=batch.sequence,
        )
        return self._world.loop.create_task(link.produce(self._world.topic, batch.partition, bytes(data)))

    async def _settle(self, batch: Batch, answer: asyncio.Task[tuple[int, int]]) -> None:
        error, offset = await answer
        self._world.loop.trace.note(self.name, batch.partition, batch.sequence, error, offset)
        if error:
            self._judge(batch, error)
            raise Refused
        for number, send in enumerate(batch.sends):
            send.acked(offset + number)
        self._world.heard_of(batch.partition, offset + len(batch.sends) - 1)
        assert self._unacked.popleft() is batch

    def _judge(self, batch: Batch, error: int) -> None:
        if error not in TRY_AGAIN:
            raise Violation(f"{self.name} got {ErrorCode(error).name} for sequence {batch.sequence}")
        if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            batch.out_of_order += 1
            if batch.out_of_order > OUT_OF_ORDER_MAX:
                raise Violation(f"{self.name} cannot go on with sequence {batch.sequence}: out of order for ever")


class Consumer:
    """Follows all partitions from the start; `until` ends it when it has read so far."""

    def __init__(
        self, world: World, name: str, *, connect: Connect = Link.open, partitions: Sequence[int] | None = None
    ) -> None:
        self._world = world
        self._name = name
        self._connect = connect
        self.offsets = dict.fromkeys(partitions or range(world.partitions), 0)
        self.high_watermarks = dict.fromkeys(self.offsets, -1)

    async def follow(self) -> None:
        while True:
            await self._with_link(self._fetch)
            await self._world.pause(0, 0.2)

    async def read_to_end(self) -> None:
        """Everything that is committed now."""
        self.high_watermarks = dict.fromkeys(self.high_watermarks, -1)
        while any(offset != self.high_watermarks[index] for index, offset in self.offsets.items()):
            if not await self._with_link(self._fetch):
                await self._world.pause(*BACKOFF_SECONDS)

    async def _with_link(self, work) -> bool:
        try:
            link = await self._connect()
            try:
                for _ in range(20):
                    await work(link)
            finally:
                link.close()
        except LOST:
            return False
        return True

    async def _fetch(self, link: Link) -> None:
        max_bytes = self._world.loop.random.choice((300, 3000, 100_000))
        for found in await link.fetch(self._world.topic, self.offsets, max_wait_ms=200, max_bytes=max_bytes):
            if found.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise Violation(f"{self._name} had read up to {self.offsets[found.index]}, and the log ends before")
            if found.error in LEADS_NO_LONGER:
                raise ConnectionResetError("another broker leads")
            if found.error == 0 and found.high_watermark < self.offsets[found.index]:
                at = self.offsets[found.index]
                raise Violation(
                    f"{self._name} has read up to {at}, and is told of the watermark {found.high_watermark}"
                )
            if found.error == 0:
                self.high_watermarks[found.index] = found.high_watermark
                self._take(found.index, found.records)

    def _take(self, index: int, records: bytes) -> None:
        messages = []
        while len(records) >= 12 and len(records) >= (size := 12 + int.from_bytes(records[8:12], "big")):
            for record in self._decoded(index, records[:size]):
                if record.offset >= self.offsets[index]:
                    messages.append((record.offset, (record.value or b"").rstrip(b"x").decode()))
                    self.offsets[index] = record.offset + 1
            records = records[size:]
        if messages:
            self._world.heard_of(index, messages[-1][0])
            self._world.loop.trace.note(self._name, index, messages[-1][0])
            self._world.history.append(Poll(self._name, f"{self._world.topic}-{index}", messages))

    def _decoded(self, index: int, batch: bytes) -> list[Record]:
        try:
            return decode_batch(batch)
        except KafkaError as error:
            raise Violation(
                f"{self._name} was given a bad batch of {index} at {self.offsets[index]}: {error}"
            ) from None


class Committer:
    """Commits rising offsets of one partition, and asks now and then what is committed."""

    def __init__(self, world: World, group: str, *, alone: ConnectAlone = Link.alone) -> None:
        """`alone`: to the group's coordinator."""
        self._world = world
        self._group = group
        self._alone = alone
        self._offset = 0
        self._where = f"{world.topic}-0"

    async def run(self) -> None:
        while True:
            try:
                async with self._alone() as link:
                    for _ in range(5):
                        # First: a commit would hide that the one before it is lost.
                        await ask_for_committed(self._world, link, self._group, 0)
                        await self._commit(link)
                        await self._world.pause(0, 0.3)
            except LOST:
                await self._world.pause(*BACKOFF_SECONDS)

    async def _commit(self, link: Link) -> None:
        self._offset += 1
        tried = Commit(self._group, self._where, self._offset)
        self._world.history.append(tried)
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=self._offset, committed_metadata="")
        topics = (OffsetCommitRequestTopic(name=self._world.topic, partitions=(place,)),)
        answer = await link.ask(OffsetCommitRequest(group_id=self._group, topics=topics), 5)
        code = answer.topics[0].partitions[0].error_code
        self._world.loop.trace.note(self._group, "commit", self._offset, code)
        if code == 0:
            self._world.history.append(Commit(self._group, self._where, self._offset, Outcome.ACKED))
            self._world.committed = max(self._world.committed, self._offset)


async def ask_for_committed(world: World, link: Link, group: str, index: int) -> None:
    """What a group has committed, for the history; nothing where the broker cannot say."""
    asked = Asked(group, f"{world.topic}-{index}")
    world.history.append(asked)
    wanted = (OffsetFetchRequestTopic(name=world.topic, partition_indexes=(index,)),)
    answer = await link.ask(OffsetFetchRequest(group_id=group, topics=wanted), 3)
    if not answer.error_code and not answer.topics[0].partitions[0].error_code:
        offset = answer.topics[0].partitions[0].committed_offset
        world.loop.trace.note(group, "committed", index, offset)
        world.history.append(Committed(group, asked.partition, offset if offset >= 0 else None, asked))


async def make_topic(
    world: World, *, connect: Connect = Link.open, replication_factor: int = 1, **settings: str
) -> None:
    """Until it is there, whatever happens meanwhile."""
    configs = tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items())
    wanted = CreatableTopic(
        name=world.topic,
        num_partitions=world.partitions,
        replication_factor=replication_factor,
        assignments=(),
        configs=configs,
    )
    while True:
        try:
            link = await connect()
            answer = await link.ask(CreateTopicsRequest(topics=(wanted,), validate_only=False), 4)
            link.close()
            if answer.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                world.has_topic.set()
                return
        except LOST:
            pass
        await world.pause(*BACKOFF_SECONDS)
