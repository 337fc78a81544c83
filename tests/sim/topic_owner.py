"""A simulated client that owns a name: it makes a topic, fills it, changes it, deletes it, makes it again.

Nobody else touches the topics of that name, and every step is repeated until its outcome is known. So at every step the
owner knows exactly what the broker must answer: whether the topic exists and under which id, its partitions and
settings, where each partition begins and ends, and every record in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.batch import read_header
from clarion.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from clarion.wire.messages.logs import (
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from clarion.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from clarion.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from clarion.wire.records import Record, decode_batch, encode_batch
from tests.sim.clients import BACKOFF_SECONDS, RECORD_MS, Violation, World
from tests.sim.link import LOST, Link

TOPIC = 2  # the resource type of DescribeConfigs
SET = 0  # the operation of IncrementalAlterConfigs
EARLIEST, LATEST = -2, -1
# Answers after which the same is asked again: the disk is full or failed, a flush took too long.
TRY_AGAIN = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR}
PARTITIONS_MAX = 4
TRIES_OUT_OF_ORDER = 20


class Sent(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None
    timestamp: int


@dataclass
class PartitionModel:
    """What a partition must hold."""

    start: int = 0
    end: int = 0
    sequence: int = 0
    records: list[Sent] = field(default_factory=list)

    def first_at(self, timestamp: int) -> int:
        """The offset of the first readable record that is as late as that; -1 without one."""
        return next((one.offset for one in self.records if one.offset >= self.start and one.timestamp >= timestamp), -1)

    def compare(self, read: list[tuple[int, bytes | None, bytes | None]], *, may_be_compacted: bool) -> str:
        """What is wrong with these records, read from start to end; empty if nothing is."""
        expected = {one.offset: (one.key, one.value) for one in self.records if one.offset >= self.start}
        found = {offset: (key, value) for offset, key, value in read if offset >= self.start}
        for offset, record in found.items():
            if expected.get(offset) != record:
                return f"{record} at {offset} instead of {expected.get(offset)}"
        latest = {one.key: one.offset for one in self.records}
        for offset, (key, value) in expected.items():
            if offset not in found and not (may_be_compacted and latest[key] > offset):
                return f"{(key, value)}, acknowledged at {offset}, is missing ({self.start}..{self.end})"
        return ""


@dataclass
class Incarnation:
    """A topic from its making to its deletion."""

    topic_id: UUID
    settings: dict[str, str]
    partitions: list[PartitionModel]
    may_be_compacted: bool


class Again(Exception):
    """Not now; the same once more."""


class TopicOwner:
    def __init__(self, world: World, name: str, pause_seconds: tuple[float, float], odd_times: tuple[int, ...]) -> None:
        self._world = world
        self._odd_times = odd_times
        self._chance = world.loop.random
        self.name = name
        self._pause_seconds = pause_seconds
        self._topic: Incarnation | None = None
        self._count = 0  # of records and changes: every value is another
        self._producer: tuple[int, int] | None = None

    async def run(self) -> None:
        """Until there is calm; then everything is looked at once more."""
        await self._make()
        while not self._world.is_calm:
            await self._one_of_the_steps()
            await self._world.pause(*self._pause_seconds)
        await self._look()
        await self._read_back()

    async def _one_of_the_steps(self) -> None:
        if self._topic is None:
            await self._chance.choice((self._make, self._make, self._look))()
            return
        steps: list[Callable[[], Awaitable[None]]] = [
            *[self._produce] * 24,
            *[self._delete_records, self._search, self._read_back, self._look] * 2,
            self._grow,
            self._configure,
            self._delete,
        ]
        await self._chance.choice(steps)()

    # Steps

    async def _make(self) -> None:
        count = self._chance.randrange(1, 3)
        settings = {
            "segment.bytes": self._chance.choice(("1100", "2500", "1048576")),
            "index.interval.bytes": "200",
            "min.cleanable.dirty.ratio": "0.01",
            "cleanup.policy": self._chance.choice(("delete", "delete", "compact")),
        }
        configs = tuple(CreatableTopicConfig(name=name, value=value) for name, value in settings.items())
        wanted = CreatableTopic(
            name=self.name, num_partitions=count, replication_factor=1, assignments=(), configs=configs
        )

        async def make(link: Link) -> None:
            answer = await link.ask(CreateTopicsRequest(topics=(wanted,), validate_only=False), 7)
            self._expect(answer.topics[0].error_code, 0, ErrorCode.TOPIC_ALREADY_EXISTS)
            self._note("made", answer.topics[0].error_code)
            found = await self._metadata(link)
            self._expect(found.error_code, 0)
            self._topic = Incarnation(
                found.topic_id,
                settings,
                [PartitionModel() for _ in range(count)],
                settings["cleanup.policy"] != "delete",
            )

        await self._until_known(make)
        if self._topic is not None and self._topic.topic_id in self._world.topic_ids:
            raise Violation(f"the id of {self.name} was another topic's: {self._topic.topic_id}")
        self._world.topic_ids.add(self._topic.topic_id)
        self._producer = None

    async def _delete(self) -> None:
        topic = self._known()

        async def delete(link: Link) -> None:
            state = DeleteTopicState(name=None, topic_id=topic.topic_id)
            answer = await link.ask(DeleteTopicsRequest(topics=(state,), timeout=1000), 6)
            self._expect(answer.responses[0].error_code, 0, ErrorCode.UNKNOWN_TOPIC_ID)
            self._note("deleted", answer.responses[0].error_code)
            self._topic = None

        await self._until_known(delete)

    async def _grow(self) -> None:
        topic = self._known()
        count = len(topic.partitions) + 1
        if count > PARTITIONS_MAX:
            return

        async def grow(link: Link) -> None:
            wanted = CreatePartitionsTopic(name=self.name, count=count)
            answer = await link.ask(CreatePartitionsRequest(topics=(wanted,), timeout=1000, validate_only=False), 3)
            # It may have grown by a request whose answer was lost.
            self._expect(answer.results[0].error_code, 0, ErrorCode.INVALID_PARTITIONS)
            self._note("grown", count, answer.results[0].error_code)

        await self._until_known(grow)
        topic.partitions.append(PartitionModel())

    async def _configure(self) -> None:
        topic = self._known()
        self._count += 1
        name, value = self._chance.choice(
            (
                ("max.message.bytes", str(200_000 + self._count)),
                ("retention.ms", str(10**11 + self._count)),
                ("segment.bytes", self._chance.choice(("1100", "3000"))),
                ("cleanup.policy", self._chance.choice(("delete", "compact", "compact,delete"))),
            )
        )

        async def change(link: Link) -> None:
            config = IncrementalConfig(name=name, config_operation=SET, value=value)
            resource = IncrementalConfigsResource(resource_type=TOPIC, resource_name=self.name, configs=(config,))
            answer = await link.ask(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)
            self._expect(answer.responses[0].error_code, 0)
            self._note("configured", name, value)

        topic.may_be_compacted |= "compact" in value
        await self._until_known(change)
        topic.settings[name] = value

    async def _produce(self) -> None:
        topic = self._known()
        index = self._chance.randrange(len(topic.partitions))
        model = topic.partitions[index]
        is_odd = self._chance.random() < 0.1
        sent = []
        for number in range(self._chance.randrange(1, 4)):
            self._count += 1
            key = b"k%d" % self._chance.randrange(4)
            value = None if self._chance.random() < 0.05 else b"%s/%d" % (self.name.encode(), self._count)
            timestamp = self._chance.choice(self._odd_times) if is_odd else RECORD_MS + self._count // 2
            sent.append(Sent(model.end + number, key, value, timestamp))
        padding = b"x" * self._chance.choice((0, 0, 300))
        out_of_order = 0

        async def produce(link: Link) -> None:
            nonlocal out_of_order
            producer_id, producer_epoch = await self._producer_id(link)
            batch = encode_batch(
                [(one.key, one.value, ((("pad", padding),) if padding else ()), one.timestamp) for one in sent],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=model.sequence,
            )
            answer = await link.produce(self.name, index, bytes(batch))
            self._note("produced", index, model.sequence, answer.error, answer.base_offset)
            if answer.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and out_of_order < TRIES_OUT_OF_ORDER:
                out_of_order += 1
                raise Again
            self._expect(answer.error, 0)
            if answer.base_offset != model.end:
                raise Violation(
                    f"{self.name}-{index}: a batch at {answer.base_offset}, but the log ends at {model.end}"
                )

        await self._until_known(produce)
        model.records += sent
        model.end += len(sent)
        model.sequence += len(sent)

    async def _producer_id(self, link: Link) -> tuple[int, int]:
        if self._producer is None:
            answer = await link.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout=1000), 1)
            self._expect(answer.error_code, 0)
            if answer.producer_id in self._world.producer_ids:
                raise Violation(f"producer id {answer.producer_id} was given to two producers")
            self._world.producer_ids.add(answer.producer_id)
            self._producer = (answer.producer_id, answer.producer_epoch)
        return self._producer

    async def _delete_records(self) -> None:
        topic = self._known()
        if topic.settings["cleanup.policy"] == "compact":
            return  # refused by rule
        index = self._chance.randrange(len(topic.partitions))
        model = topic.partitions[index]
        offset = self._chance.randrange(model.start, model.end + 1)

        async def delete(link: Link) -> None:
            place = DeleteRecordsPartition(partition_index=index, offset=offset)
            wanted = DeleteRecordsTopic(name=self.name, partitions=(place,))
            answer = await link.ask(DeleteRecordsRequest(topics=(wanted,), timeout=1000), 2)
            found = answer.topics[0].partitions[0]
            self._expect(found.error_code, 0)
            self._note("start", index, offset, found.low_watermark)
            if found.low_watermark != offset:
                raise Violation(
                    f"{self.name}-{index}: records deleted up to {offset}, and it says {found.low_watermark}"
                )

        await self._until_known(delete)
        model.start = offset

    # Looking

    async def _look(self) -> None:
        """The topic is as it was answered: there or not, its id, partitions, settings, starts and ends."""

        async def look(link: Link) -> None:
            found = await self._metadata(link)
            topic = self._topic
            if topic is None:
                if found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise Violation(f"{self.name} was deleted and is there again, as {found.topic_id}")
                return
            self._expect(found.error_code, 0)
            if (found.topic_id, len(found.partitions)) != (topic.topic_id, len(topic.partitions)):
                raise Violation(
                    f"{self.name} is {found.topic_id} with {len(found.partitions)} partitions, "
                    f"not {topic.topic_id} with {len(topic.partitions)}"
                )
            await self._compare_settings(link, topic)
            for index, model in enumerate(topic.partitions):
                await self._compare_offset(link, index, EARLIEST, model.start)
                await self._compare_offset(link, index, LATEST, model.end)

        await self._until_known(look)

    async def _compare_settings(self, link: Link, topic: Incarnation) -> None:
        resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=self.name)
        answer = await link.ask(DescribeConfigsRequest(resources=(resource,), include_synonyms=False), 4)
        self._expect(answer.results[0].error_code, 0)
        found = {one.name: one.value for one in answer.results[0].configs}
        for name, value in topic.settings.items():
            if found.get(name) != value:
                raise Violation(f"{self.name}: {name} is {found.get(name)}, and was set to {value}")

    async def _search(self) -> None:
        topic = self._known()
        index = self._chance.randrange(len(topic.partitions))
        model = topic.partitions[index]
        if topic.may_be_compacted or not model.records:
            return
        timestamp = max(1, self._chance.choice(model.records).timestamp + self._chance.randrange(-2, 3))
        await self._until_known(lambda link: self._compare_offset(link, index, timestamp, model.first_at(timestamp)))

    async def _compare_offset(self, link: Link, index: int, timestamp: int, offset: int) -> None:
        place = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        wanted = ListOffsetsTopic(name=self.name, partitions=(place,))
        answer = await link.ask(ListOffsetsRequest(replica_id=-1, topics=(wanted,)), 5)
        found = answer.topics[0].partitions[0]
        self._expect(found.error_code, 0)
        if found.offset != offset:
            raise Violation(f"{self.name}-{index}: the offset at time {timestamp} is {found.offset}, not {offset}")

    async def _read_back(self) -> None:
        for index in range(len(self._topic.partitions) if self._topic else 0):
            await self._until_known(lambda link, index=index: self._read_partition(link, index))

    async def _read_partition(self, link: Link, index: int) -> None:
        topic = self._known()
        model = topic.partitions[index]
        read: list[tuple[int, bytes | None, bytes | None]] = []
        terms: list[tuple[int, int]] = []  # of every batch its leader epoch and its offset
        offset = model.start
        while offset < model.end:
            found = (await link.fetch(self.name, {index: offset}, max_wait_ms=100, max_bytes=3000))[0]
            self._expect(found.error, 0)
            if found.high_watermark != model.end:
                raise Violation(f"{self.name}-{index} ends at {found.high_watermark}, not at {model.end}")
            for batch in _batches(found.records):
                terms.append((read_header(batch).leader_epoch, read_header(batch).base_offset))
                for record in self._decoded(batch, index):
                    if record.offset >= offset:
                        read.append((record.offset, record.key, record.value))
                        offset = record.offset + 1
            if not found.records:
                break  # what is left of it may have been compacted away
        wrong = model.compare(read, may_be_compacted=topic.may_be_compacted)
        if wrong:
            raise Violation(f"{self.name}-{index} ({topic.topic_id}): {wrong}")
        if not topic.may_be_compacted:
            await self._compare_terms(link, index, terms, model.start)

    def _decoded(self, batch: bytes, index: int) -> list[Record]:
        try:
            return decode_batch(batch)
        except KafkaError as error:
            raise Violation(f"{self.name}-{index} serves damage: {error}") from error

    async def _compare_terms(self, link: Link, index: int, terms: list[tuple[int, int]], start: int) -> None:
        """A leader's term ends where the next one that wrote something begins, and none comes after a later one."""
        for (epoch, _), (next_epoch, begin) in pairwise(terms):
            if next_epoch < epoch:
                raise Violation(f"{self.name}-{index}: epoch {next_epoch} at {begin} comes after epoch {epoch}")
            if next_epoch == epoch or begin <= start:
                continue
            asked = OffsetForLeaderPartition(partition=index, leader_epoch=epoch)
            wanted = OffsetForLeaderTopic(topic=self.name, partitions=(asked,))
            answer = await link.ask(OffsetForLeaderEpochRequest(topics=(wanted,)), 3)
            found = answer.topics[0].partitions[0]
            self._expect(found.error_code, 0)
            if found.end_offset != begin:
                raise Violation(f"{self.name}-{index}: epoch {epoch} ended at {begin}, not at {found.end_offset}")

    async def _metadata(self, link: Link) -> MetadataResponseTopic:
        wanted = MetadataRequestTopic(name=self.name)
        answer = await link.ask(MetadataRequest(topics=(wanted,), allow_auto_topic_creation=False), 12)
        return answer.topics[0]

    # How

    async def _until_known(self, step: Callable[[Link], Awaitable[None]]) -> None:
        while True:
            try:
                async with Link.alone() as link:
                    await step(link)
                return
            except (*LOST, Again):
                await self._world.pause(*BACKOFF_SECONDS)

    def _expect(self, code: int, *expected: int) -> None:
        if code in TRY_AGAIN and code not in expected:
            raise Again
        if code not in expected:
            raise Violation(f"{self.name} ({self._topic and self._topic.topic_id}) was answered {ErrorCode(code).name}")

    def _known(self) -> Incarnation:
        assert self._topic is not None
        return self._topic

    def _note(self, *words: Any) -> None:
        self._world.loop.trace.note(self.name, *words)


def _batches(records: bytes) -> Iterator[bytes]:
    """The whole ones; the last may be cut."""
    while len(records) >= 12 and len(records) >= (size := 12 + int.from_bytes(records[8:12], "big")):
        yield records[:size]
        records = records[size:]
