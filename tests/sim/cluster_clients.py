"""Clients of whole clusters: how they find who leads, one who asks anybody, one whose topic comes, goes, comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from clarion.model.errors import ErrorCode
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from clarion.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from clarion.wire.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from clarion.wire.records import decode_batch, encode_batch
from tests.history import Poll, Send
from tests.sim.clients import BACKOFF_SECONDS, RECORD_MS, Violation, World
from tests.sim.link import LOST, PATIENCE_SECONDS, Link

LATEST = -1
MESSAGES = (1, 12)  # of one life of a topic


class Routes:
    """How clients find who leads and who coordinates: by what a broker, any broker, tells them."""

    def __init__(self, world: World, ports: list[int]) -> None:
        self._world = world
        self._ports = ports

    async def anybody(self) -> Link:
        return await self._open(self._world.loop.random.choice(self._ports))

    async def metadata(self, topic: str | None = None) -> MetadataResponse:
        link = await self.anybody()
        try:
            topics = (MetadataRequestTopic(name=topic or self._world.topic),)
            return await link.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
        finally:
            link.close()

    async def leader(self, index: int, topic: str | None = None) -> Link:
        answer = await self.metadata(topic)
        ports = {one.node_id: one.port for one in answer.brokers}
        leaders = {one.partition_index: one.leader_id for one in answer.topics[0].partitions}
        if (port := ports.get(leaders.get(index, -1))) is None:
            raise ConnectionError(f"nobody leads {index}")
        return await self._open(port)

    @asynccontextmanager
    async def coordinator_alone(self, group: str) -> AsyncIterator[Link]:
        link = await self.anybody()
        try:
            answer = await link.ask(FindCoordinatorRequest(key=group, key_type=0), 1)
        finally:
            link.close()
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionError("there is no coordinator")
        async with Link.alone(answer.port) as found:
            yield found

    async def _open(self, port: int) -> Link:
        return await asyncio.wait_for(Link.open(port), PATIENCE_SECONDS)


class Asker:
    """Asks brokers how things are, whether they lead or not: whoever answers must know what others have said before.

    So one that was deposed, and does not know, must not answer with what was true before its successor (KIP-207).
    """

    def __init__(self, world: World, routes: Routes, group: str) -> None:
        self._world = world
        self._routes = routes
        self._group = group

    async def run(self) -> None:
        while True:
            await self._world.pause(0.05, 0.5)
            try:
                link = await self._routes.anybody()
                try:
                    await self._ask_for_end(link)
                    await self._ask_for_commit(link)
                finally:
                    link.close()
            except LOST:
                pass

    async def _ask_for_end(self, link: Link) -> None:
        world, index = self._world, self._world.loop.random.randrange(self._world.partitions)
        known = world.ends.get(index, 0)
        place = ListOffsetsPartition(partition_index=index, timestamp=LATEST, current_leader_epoch=-1)
        topics = (ListOffsetsTopic(name=world.topic, partitions=(place,)),)
        answer = (await link.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 5)).topics[0].partitions[0]
        if answer.error_code == 0:
            world.loop.trace.note("asker", index, answer.offset)
            if answer.offset < known:
                raise Violation(f"{world.topic}-{index} ends at {answer.offset}, when somebody had heard of {known}")
            world.heard_of(index, answer.offset - 1)

    async def _ask_for_commit(self, link: Link) -> None:
        world, known = self._world, self._world.committed
        wanted = (OffsetFetchRequestTopic(name=world.topic, partition_indexes=(0,)),)
        answer = await link.ask(OffsetFetchRequest(group_id=self._group, topics=wanted), 3)
        if not answer.error_code and not answer.topics[0].partitions[0].error_code:
            offset = answer.topics[0].partitions[0].committed_offset
            world.loop.trace.note("asker", self._group, offset)
            if offset < known:
                raise Violation(f"{self._group} has committed {offset}, when somebody had heard of {known}")
            world.committed = max(world.committed, offset)


class TopicThatComesAndGoes:
    """Made, filled, read, deleted, and made again under its name: nothing of one life is seen in the next."""

    def __init__(self, world: World, routes: Routes, name: str, replicas: int) -> None:
        self._world = world
        self._routes = routes
        self._name = name
        self._replicas = replicas
        self._life = 0
        self._count = 0
        self._end = 0  # behind the last message that was acknowledged in this life

    async def run(self) -> None:
        """Until there is calm, and what was begun is done."""
        while not self._world.is_calm:
            self._life, self._end = self._life + 1, 0
            topic_id = await self._make()
            for _ in range(self._world.loop.random.randrange(*MESSAGES)):
                await self._produce()
            await self._read_back()
            await self._delete(topic_id)

    @property
    def _where(self) -> str:
        return f"{self._name} of life {self._life}"

    async def _make(self) -> UUID:
        wanted = CreatableTopic(
            name=self._name, num_partitions=1, replication_factor=self._replicas, assignments=(), configs=()
        )
        while True:
            try:
                link = await self._routes.anybody()
                try:
                    await link.ask(CreateTopicsRequest(topics=(wanted,), validate_only=False), 7)
                finally:
                    link.close()
                found = await self._found()
            except LOST:
                found = None
            if found is not None and found.error_code == 0:
                self._note("made", found.topic_id)
                if found.topic_id in self._world.topic_ids:
                    # Before its deletion was known everywhere: ask again.
                    await self._world.pause(*BACKOFF_SECONDS)
                    continue
                self._world.topic_ids.add(found.topic_id)
                return found.topic_id
            await self._world.pause(*BACKOFF_SECONDS)

    async def _produce(self) -> None:
        """Until one attempt is acknowledged; each has a value of its own."""
        while True:
            self._count += 1
            sent = Send(self._name, self._where, f"{self._name}/{self._count}")
            self._world.history.append(sent)
            try:
                link = await self._routes.leader(0, self._name)
                try:
                    batch = bytes(encode_batch([(None, sent.value.encode(), (), RECORD_MS)]))
                    answer = await link.produce(self._name, 0, batch)
                finally:
                    link.close()
                self._note("produced", answer.error, answer.base_offset)
                if answer.error == 0:
                    sent.acked(answer.base_offset)
                    self._end = answer.base_offset + 1
                    return
            except LOST:
                pass
            await self._world.pause(*BACKOFF_SECONDS)

    async def _read_back(self) -> None:
        offset, reader = 0, f"reader of {self._where}"
        while offset < self._end:
            try:
                link = await self._routes.leader(0, self._name)
                try:
                    (found,) = await link.fetch(self._name, {0: offset}, max_wait_ms=200, max_bytes=100_000)
                finally:
                    link.close()
            except LOST:
                await self._world.pause(*BACKOFF_SECONDS)
                continue
            records = found.records if found.error == 0 else b""
            while len(records) >= 12 and len(records) >= (size := 12 + int.from_bytes(records[8:12], "big")):
                read = [(one.offset, (one.value or b"").decode()) for one in decode_batch(records[:size])]
                records = records[size:]
                if read[-1][0] >= offset:
                    offset = read[-1][0] + 1
                    self._world.history.append(Poll(reader, self._where, read))

    async def _delete(self, topic_id: UUID) -> None:
        """Until every broker that is asked in a row says that there is none of this id."""
        quiet = 0
        while quiet < 3:
            try:
                link = await self._routes.anybody()
                try:
                    state = DeleteTopicState(name=None, topic_id=topic_id)
                    await link.ask(DeleteTopicsRequest(topics=(state,), timeout=1000), 6)
                finally:
                    link.close()
                found = await self._found()
                quiet = quiet + 1 if found.topic_id != topic_id else 0
            except LOST:
                await self._world.pause(*BACKOFF_SECONDS)
        self._note("deleted", topic_id)

    async def _found(self) -> MetadataResponseTopic:
        return (await self._routes.metadata(self._name)).topics[0]

    def _note(self, *words: object) -> None:
        self._world.loop.trace.note(self._name, *words)
