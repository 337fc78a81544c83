"""aiokafka, on an event loop in a thread of its own, so that scenarios stay plain functions."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from functools import cached_property
from typing import Any

import aiokafka
from aiokafka import admin as aa
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.clients.adapters.model import (
    EARLIEST,
    LATEST,
    PATIENCE_S,
    Client,
    Committed,
    GroupView,
    Incoming,
    Member,
    Outgoing,
    ProducerStream,
    Refused,
)
from tests.waiting import wait_for


class _Loop:
    """Runs coroutines for threads that have no loop; every call is bounded."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any], seconds: float = PATIENCE_S + 5) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)
        except KafkaError as problem:
            raise _refused(problem) from problem

    def start(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class Aio(Client):
    name = "aiokafka"
    can = frozenset(
        [
            "acks",
            "admin",
            "groups",
            "static",
            "members",
            "commit-metadata",
            "idempotence",
            "timestamps",
            "binary",
            "transactions",
        ]
    )

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._loop = _Loop()

    def close(self) -> None:
        if "admin" in self.__dict__:
            self._loop.run(self.admin.close())
        self._loop.stop()

    @cached_property
    def admin(self) -> aa.AIOKafkaAdminClient:
        async def started() -> aa.AIOKafkaAdminClient:
            admin = aa.AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            return admin

        return self._loop.run(started())

    def stream(
        self, *, compression: str = "none", idempotent: bool = False, max_bytes: int | None = None
    ) -> ProducerStream:
        settings = {
            "compression_type": None if compression == "none" else compression,
            "enable_idempotence": idempotent,
            "acks": "all",
            "linger_ms": 2,
            "max_request_size": max_bytes or 1_048_576,
        }
        return _Stream(self._loop, self._loop.run(self._producer(settings)))

    async def _producer(self, settings: dict[str, Any]) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap, **settings)
        await producer.start()
        return producer

    def read(
        self, topic: str, partition: int, start: int, count: int, *, seconds: float = PATIENCE_S
    ) -> list[Incoming]:
        where = TopicPartition(topic, partition)
        consumer = self._loop.run(self._reader(where, start))
        found: list[Incoming] = []

        def enough() -> bool:
            found.extend(self._loop.run(_polled(consumer, 0.2)))
            return len(found) >= count

        try:
            wait_for(enough, seconds=seconds, what=f"{count} messages of {where} from {start}")
            return found
        finally:
            self._loop.run(consumer.stop())

    async def _reader(self, where: TopicPartition, start: int) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None, auto_offset_reset="none")
        await consumer.start()
        consumer.assign([where])
        if start == EARLIEST:
            await consumer.seek_to_beginning(where)
        elif start == LATEST:
            await consumer.seek_to_end(where)
        else:
            consumer.seek(where, start)
        return consumer

    def offset_for(self, topic: str, partition: int, timestamp_ms: int) -> int:
        return self._loop.run(self._offset_for(TopicPartition(topic, partition), timestamp_ms))

    async def _offset_for(self, where: TopicPartition, timestamp_ms: int) -> int:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None)
        await consumer.start()
        try:
            if timestamp_ms == EARLIEST:
                return (await consumer.beginning_offsets([where]))[where]
            if timestamp_ms == LATEST:
                return (await consumer.end_offsets([where]))[where]
            found = (await consumer.offsets_for_times({where: timestamp_ms}))[where]
            return -1 if found is None else found.offset
        finally:
            await consumer.stop()

    def member(self, group: str, topics: Sequence[str], *, instance: str | None = None) -> "AioMember":
        async def joined() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=6000,
                heartbeat_interval_ms=200,
                retry_backoff_ms=50,
            )
            consumer.subscribe(list(topics))
            await consumer.start()
            return consumer

        return AioMember(self._loop, self._loop.run(joined()))

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        answer = self._loop.run(
            self.admin.create_topics([aa.NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))])
        )
        for _, code, *_ in answer.topic_errors:
            _raise_if(code)

    def delete_topic(self, topic: str) -> None:
        for _, code in self._loop.run(self.admin.delete_topics([topic])).topic_error_codes:
            _raise_if(code)

    def topics(self) -> set[str]:
        return set(self._loop.run(self.admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        (view,) = self._loop.run(self.admin.describe_topics([topic]))
        _raise_if(view["error_code"])
        return len(view["partitions"])

    def add_partitions(self, topic: str, total: int) -> None:
        self._loop.run(self.admin.create_partitions({topic: aa.NewPartitions(total)}))

    def config(self, topic: str) -> dict[str, str]:
        (answer,) = self._loop.run(self.admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        ((code, _, _, _, entries),) = answer.resources
        _raise_if(code)
        return {name: value for name, value, *_ in entries}

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        for answer in self._loop.run(self.admin.alter_configs([resource])):
            for code, *_ in answer.resources:
                _raise_if(code)

    def groups(self) -> set[str]:
        return {group for group, _ in self._loop.run(self.admin.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupView:
        (answer,) = self._loop.run(self.admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = answer.groups
        _raise_if(code)
        return GroupView(state, len(members))

    def group_offsets(self, group: str) -> dict[tuple[str, int], Committed]:
        found = self._loop.run(self.admin.list_consumer_group_offsets(group))
        return {(at.topic, at.partition): Committed(entry.offset, entry.metadata) for at, entry in found.items()}

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        where = TopicPartition(topic, partition)
        return self._loop.run(self.admin.delete_records({where: aa.RecordsToDelete(before_offset=before)}))[where]


class _Stream(ProducerStream):
    def __init__(self, loop: _Loop, producer: aiokafka.AIOKafkaProducer) -> None:
        self._loop = loop
        self._producer = producer
        self._waiting: list = []

    def send(self, topic: str, record: Outgoing) -> None:
        async def sent() -> Any:
            return await self._producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )

        self._waiting.append(self._loop.run(sent()))

    def acknowledged(self) -> int:
        return sum(waiting.done() and not waiting.exception() for waiting in self._waiting)

    def finish(self) -> list[tuple[int, int]]:
        async def results() -> list[tuple[int, int]]:
            try:
                return [(found.partition, found.offset) for found in [await waiting for waiting in self._waiting]]
            finally:
                await self._producer.stop()

        return self._loop.run(results())


class AioMember(Member):
    def __init__(self, loop: _Loop, consumer: aiokafka.AIOKafkaConsumer) -> None:
        self._loop = loop
        self.consumer = consumer

    def poll(self, seconds: float = 0.1) -> list[Incoming]:
        return self._loop.run(_polled(self.consumer, seconds))

    def commit(self) -> None:
        self._loop.run(self.consumer.commit())

    def commit_with_metadata(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        self._loop.run(self.consumer.commit({TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata)}))

    def assignment(self) -> set[tuple[str, int]]:
        return {(at.topic, at.partition) for at in self.consumer.assignment()}

    def close(self) -> list[Incoming]:
        self._loop.run(self.consumer.stop())
        return []


async def _polled(consumer: aiokafka.AIOKafkaConsumer, seconds: float) -> list[Incoming]:
    batches = await consumer.getmany(timeout_ms=int(seconds * 1000), max_records=500)
    return [_incoming(message) for batch in batches.values() for message in batch]


def _incoming(message: Any) -> Incoming:
    return Incoming(
        message.topic,
        message.partition,
        message.offset,
        message.timestamp,
        message.key,
        message.value,
        tuple(message.headers),
    )


def _raise_if(code: int) -> None:
    if code:
        raise _refused(for_code(code)())


def _refused(problem: BaseException) -> Refused:
    code = getattr(problem, "errno", None)
    return Refused(-1 if code is None else code, f"{type(problem).__name__} {problem}")
