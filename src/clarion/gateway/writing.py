"""Messages from HTTP into partitions: which one each goes to, in which batches, and what became of each.

A message goes where it says, or where its key says (murmur2, as with every other way to write), or where its
idempotency key says; others go round the partitions, a batch at a time. What goes to one partition is written in the
order in which it came. Each message has its own result: one that is refused holds up none of the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from clarion.broker.authorizer import Principal
from clarion.cluster import Topic
from clarion.gateway.brokers import Brokers
from clarion.gateway.idempotency import KeyedProducer, keyed_producer, partition_of_idempotency_key
from clarion.gateway.message_forms import MessageToWrite
from clarion.gateway.problems import HttpProblem, problem_of
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.model.key_hash import partition_of_key
from clarion.wire.batch import HEADER_BYTES
from clarion.wire.records import NewRecord, encode_batch

ENCODED_AT_ONCE_BYTES: Final = 64 * 1024  # more is put together in a thread
_RECORD_BYTES: Final = 40  # of a record beside what the client has sent: its lengths, attributes and deltas, at most
_HEADER_BYTES: Final = 10
_TOPICS_REMEMBERED: Final = 10_000  # whose next partition is known; of others it is the first
_NO_PRODUCER: Final = KeyedProducer(-1, -1, -1)


class PlacedMessage(NamedTuple):
    """Where a message is."""

    partition: int
    offset: int

    def to_json(self) -> dict[str, Any]:
        return {"partition": self.partition, "offset": self.offset}


Outcome = PlacedMessage | HttpProblem


class _BatchToWrite(NamedTuple):
    partition: int
    numbers: list[int]  # which messages of the request these are
    records: list[NewRecord]
    producer: KeyedProducer


class PartitionWriter:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._next: OrderedDict[TopicId, int] = OrderedDict()

    async def write(
        self,
        who: Principal,
        topic: Topic,
        messages: Sequence[MessageToWrite | HttpProblem],
        first_partition: int | None,
    ) -> list[Outcome]:
        """`first_partition`: the one that all go to, whatever they say; None: each has its own. A thousand messages at
        a time, at most: they are placed in one go."""
        outcomes: dict[int, Outcome] = {}
        placed: dict[int, list[_BatchToWrite]] = {}
        for batch in self._batches(who, topic, messages, first_partition, outcomes):
            placed.setdefault(batch.partition, []).append(batch)
        await asyncio.gather(*(self._write_all(who, topic, batches, outcomes) for batches in placed.values()))
        return [outcomes[number] for number in range(len(messages))]

    # Which partition, which batch

    def _batches(
        self,
        who: Principal,
        topic: Topic,
        messages: Iterable[MessageToWrite | HttpProblem],
        first_partition: int | None,
        outcomes: dict[int, Outcome],
    ) -> Iterable[_BatchToWrite]:
        now_ms, bytes_max = self._brokers.broker.clock.now_ms(), max_message_bytes(self._brokers, topic)
        keyless: int | None = None  # the partition of all that name none and have no key
        open_batches: dict[int, tuple[_BatchToWrite, int]] = {}
        for number, message in enumerate(messages):
            if isinstance(message, HttpProblem):
                outcomes[number] = message
                continue
            try:
                partition = _told_partition(topic, message, first_partition)
            except KafkaError as error:
                outcomes[number] = problem_of(error)
                continue
            if partition is None:
                keyless = partition = self._next_partition(topic) if keyless is None else keyless
            timestamp_ms = now_ms if message.timestamp_ms is None else message.timestamp_ms
            record = (message.key, message.value, message.headers, timestamp_ms)
            if message.idempotency_key is not None:
                producer = keyed_producer(who, message.idempotency_key, message)
                if partition in open_batches:
                    yield open_batches.pop(partition)[0]  # what came before it goes before it
                yield _BatchToWrite(partition, [number], [record], producer)
                continue
            size = _size(record)
            known = open_batches.pop(partition, None)
            if known is not None and HEADER_BYTES + known[1] + size > bytes_max:
                yield known[0]
                known = None
            batch, held = known or (_BatchToWrite(partition, [], [], _NO_PRODUCER), 0)
            batch.numbers.append(number)
            batch.records.append(record)
            open_batches[partition] = batch, held + size
        for batch, _ in open_batches.values():
            yield batch

    def _next_partition(self, topic: Topic) -> int:
        """Round and round, past those that nobody leads."""
        following = self._next.pop(topic.id, 0)
        count = topic.partition_count
        led = self._brokers.broker.image.brokers
        chosen = following % count
        for step in range(count):
            one = (following + step) % count
            if self._brokers.broker.node is None or topic.partitions[one].leader in led:
                chosen = one
                break
        self._next[topic.id] = chosen + 1
        if len(self._next) > _TOPICS_REMEMBERED:
            self._next.popitem(last=False)
        return chosen

    # Writing

    async def _write_all(
        self, who: Principal, topic: Topic, batches: Iterable[_BatchToWrite], outcomes: dict[int, Outcome]
    ) -> None:
        async for batch in self._brokers.broker.turns.each(batches):  # a write here may be done without any pause
            try:
                await self._write(who, topic, batch, outcomes)
            except KafkaError as error:
                problem = refusal(error, batch.producer is not _NO_PRODUCER)
                for number in batch.numbers:
                    outcomes.setdefault(number, problem)

    async def _write(self, who: Principal, topic: Topic, batch: _BatchToWrite, outcomes: dict[int, Outcome]) -> None:
        try:
            await self._write_once(who, topic, batch, outcomes)
        except KafkaError as error:
            if not error.records or len(error.records) == len(batch.records):
                raise
            problem, bad = problem_of(error), set(error.records)  # these alone: the others are written without them
            for at in error.records:
                outcomes[batch.numbers[at]] = problem
            good = [at for at in range(len(batch.records)) if at not in bad]
            rest = batch._replace(
                numbers=[batch.numbers[at] for at in good], records=[batch.records[at] for at in good]
            )
            await self._write_once(who, topic, rest, outcomes)

    async def _write_once(
        self, who: Principal, topic: Topic, batch: _BatchToWrite, outcomes: dict[int, Outcome]
    ) -> None:
        encode = partial(encode_batch, batch.records, **batch.producer._asdict())
        is_large = sum(map(_size, batch.records)) > ENCODED_AT_ONCE_BYTES
        encoded = await self._brokers.broker.turns.aside(encode) if is_large else encode()
        may_repeat = batch.producer is not _NO_PRODUCER
        base_offset = await self._brokers.write(who, topic, batch.partition, encoded, may_repeat=may_repeat)
        for at, number in enumerate(batch.numbers):
            outcomes[number] = PlacedMessage(batch.partition, base_offset + at)


def _told_partition(topic: Topic, message: MessageToWrite, first_partition: int | None) -> int | None:
    told = message.partition if first_partition is None else first_partition
    if told is not None:
        if told >= topic.partition_count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {topic.name}-{told}: it has {topic.partition_count}, from 0 on",
            )
        return told
    if message.key is not None:
        return partition_of_key(message.key, topic.partition_count)
    if message.idempotency_key is not None:
        return partition_of_idempotency_key(message.idempotency_key, topic.partition_count)
    return None


def max_message_bytes(brokers: Brokers, topic: Topic) -> int:
    """Never more than a request of Kafka's protocol may have, whatever the topic says."""
    told = topic.overrides.get("max.message.bytes")
    allowed = brokers.broker.partitions.defaults.max_message_bytes if told is None else int(told)
    return min(allowed, brokers.broker.config.limits.frame_bytes_max)


def _size(record: NewRecord) -> int:
    key, value, headers, _ = record
    named = sum(len(name) * 3 + len(content or b"") + _HEADER_BYTES for name, content in headers)
    return _RECORD_BYTES + len(key or b"") + len(value or b"") + named


def refusal(error: KafkaError, is_keyed: bool) -> HttpProblem:
    if is_keyed and error.code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
        return HttpProblem(
            422,
            "this idempotency key was used for another message: repeat a write as it was, or take a new key",
            kind="idempotency-key-reused",
        )
    return problem_of(error)
