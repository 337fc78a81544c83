"""confluent-kafka (librdkafka)."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property

import confluent_kafka as ck
from confluent_kafka import admin as ca

from tests.clients.adapters.model import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
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

_SPECIAL_OFFSETS = {EARLIEST: ck.OFFSET_BEGINNING, LATEST: ck.OFFSET_END}


class Confluent(Client):
    name = "confluent"
    can = frozenset(
        [
            "acks",
            "admin",
            "topic-ids",
            "groups",
            "static",
            "members",
            "commit-metadata",
            "delete-group",
            "idempotence",
            "timestamps",
            "null-headers",
            "max-timestamp",
            "binary",
            "cooperative",
            "kip848",
            "transactions",
            "auto-create",
        ]
    )

    def settings(self, **more: object) -> dict[str, object]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500, **more}

    @cached_property
    def admin(self) -> ca.AdminClient:
        return ca.AdminClient(self.settings())

    def stream(
        self,
        *,
        compression: str = "none",
        idempotent: bool = False,
        max_bytes: int | None = None,
        batch_bytes: int = 1_000_000,
    ) -> ProducerStream:
        settings = self.settings(**{"compression.type": compression, "enable.idempotence": idempotent, "linger.ms": 2})
        settings["partitioner"] = "murmur2_random"  # Kafka's own default; librdkafka's is another one
        settings["batch.size"] = batch_bytes
        if max_bytes:
            settings["message.max.bytes"] = max_bytes
        return _Stream(ck.Producer(settings))

    def read(
        self, topic: str, partition: int, start: int, count: int, *, seconds: float = PATIENCE_S
    ) -> list[Incoming]:
        return self._read([ck.TopicPartition(topic, partition, _SPECIAL_OFFSETS.get(start, start))], count, seconds)

    def read_all(self, topic: str, partitions: int, count: int) -> list[Incoming]:
        """Every partition from its beginning, with one consumer."""
        return self._read(
            [ck.TopicPartition(topic, p, ck.OFFSET_BEGINNING) for p in range(partitions)], count, PATIENCE_S
        )

    def _read(self, places: list[ck.TopicPartition], count: int, seconds: float) -> list[Incoming]:
        consumer = ck.Consumer(
            self.settings(**{"group.id": "reads-by-assignment", "enable.auto.commit": False, "fetch.wait.max.ms": 20})
        )
        try:
            consumer.assign(places)
            found: list[Incoming] = []

            def enough() -> bool:
                found.extend(_polled(consumer, 0.2))
                return len(found) >= count

            wait_for(enough, seconds=seconds, what=f"{count} messages of {places}")
            return found
        finally:
            consumer.close()

    def offset_for(self, topic: str, partition: int, timestamp_ms: int) -> int:
        special = {
            EARLIEST: ca.OffsetSpec.earliest,
            LATEST: ca.OffsetSpec.latest,
            MAX_TIMESTAMP: ca.OffsetSpec.max_timestamp,
        }
        spec = special[timestamp_ms]() if timestamp_ms < 0 else ca.OffsetSpec.for_timestamp(timestamp_ms)
        return _answer(self.admin.list_offsets({ck.TopicPartition(topic, partition): spec})).offset

    def member(
        self, group: str, topics: Sequence[str], *, instance: str | None = None, **more: object
    ) -> "ConfluentMember":
        settings = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1000,
            **more,
        }
        if settings.get("group.protocol") != "consumer":
            settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
        if instance:
            settings["group.instance.id"] = instance
        return ConfluentMember(ck.Consumer(self.settings(**settings)), topics)

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        _answer(self.admin.create_topics([ca.NewTopic(topic, partitions, 1, config=dict(config or {}))]))

    def delete_topic(self, topic: str) -> None:
        _answer(self.admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=PATIENCE_S).topics)

    def partition_count(self, topic: str) -> int:
        return len(self._describe(topic).partitions)

    def topic_id(self, topic: str) -> str:
        return str(self._describe(topic).topic_id)

    def _describe(self, topic: str) -> ca.TopicDescription:
        return _answer(self.admin.describe_topics(ck.TopicCollection([topic])))

    def add_partitions(self, topic: str, total: int) -> None:
        _answer(self.admin.create_partitions([ca.NewPartitions(topic, total)]))

    def config(self, topic: str) -> dict[str, str]:
        entries = _answer(self.admin.describe_configs([ca.ConfigResource(ca.RESOURCE_TOPIC, topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def set_config(self, topic: str, name: str, value: str) -> None:
        change = ca.ConfigEntry(name, value, incremental_operation=ca.AlterConfigOpType.SET)
        _answer(
            self.admin.incremental_alter_configs(
                [ca.ConfigResource(ca.RESOURCE_TOPIC, topic, incremental_configs=[change])]
            )
        )

    def groups(self) -> set[str]:
        return {group.group_id for group in self.admin.list_consumer_groups().result(PATIENCE_S).valid}

    def describe_group(self, group: str) -> GroupView:
        view = _answer(self.admin.describe_consumer_groups([group]))
        return GroupView(view.state.name.title().replace("_", ""), len(view.members))

    def group_offsets(self, group: str) -> dict[tuple[str, int], Committed]:
        answer = _answer(self.admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group)]))
        return {(at.topic, at.partition): Committed(at.offset, at.metadata or "") for at in answer.topic_partitions}

    def delete_group(self, group: str) -> None:
        _answer(self.admin.delete_consumer_groups([group]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        return _answer(self.admin.delete_records([ck.TopicPartition(topic, partition, before)])).low_watermark


class _Stream(ProducerStream):
    def __init__(self, producer: ck.Producer) -> None:
        self._producer = producer
        self._results: list[tuple[int, int] | Refused | None] = []

    def send(self, topic: str, record: Outgoing) -> None:
        place = len(self._results)
        self._results.append(None)

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            self._results[place] = (
                Refused(error.code(), str(error)) if error else (message.partition(), message.offset())
            )

        optional: dict[str, object] = {} if record.partition is None else {"partition": record.partition}
        if record.timestamp_ms is not None:
            optional["timestamp"] = record.timestamp_ms
        try:
            self._producer.produce(
                topic, record.value, record.key, headers=list(record.headers) or None, on_delivery=delivered, **optional
            )
        except ck.KafkaException as problem:
            self._results[place] = Refused(problem.args[0].code(), str(problem))
        self._producer.poll(0)

    def acknowledged(self) -> int:
        self._producer.poll(0)
        return sum(isinstance(result, tuple) for result in self._results)

    def finish(self) -> list[tuple[int, int]]:
        left = self._producer.flush(PATIENCE_S)
        assert not left, f"{left} messages were neither acknowledged nor refused"
        for result in self._results:
            if isinstance(result, Refused):
                raise result
        return self._results


class ConfluentMember(Member):
    def __init__(self, consumer: ck.Consumer, topics: Sequence[str]) -> None:
        self.consumer = consumer
        self.events: list[tuple[str, int]] = []
        consumer.subscribe(list(topics), on_assign=self._note("assigned"), on_revoke=self._note("revoked"))

    def _note(self, what: str):
        return lambda _, partitions: self.events.append((what, len(partitions)))

    def poll(self, seconds: float = 0.1) -> list[Incoming]:
        return _polled(self.consumer, seconds)

    def commit(self) -> None:
        try:
            self.consumer.commit(asynchronous=False)
        except ck.KafkaException as problem:
            if problem.args[0].code() != ck.KafkaError._NO_OFFSET:
                raise Refused(problem.args[0].code(), str(problem)) from None

    def commit_with_metadata(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        self.consumer.commit(offsets=[ck.TopicPartition(topic, partition, offset, metadata)], asynchronous=False)

    def assignment(self) -> set[tuple[str, int]]:
        return {(at.topic, at.partition) for at in self.consumer.assignment()}

    def close(self) -> list[Incoming]:
        self.consumer.close()
        return []


def _polled(consumer: ck.Consumer, seconds: float) -> list[Incoming]:
    """What there is, as soon as there is something (`consume` alone would wait for the full count or the full time)."""
    first = consumer.poll(seconds)
    return [_incoming(message) for message in _good([first, *consumer.consume(500, 0)])] if first else []


def _good(messages: list[ck.Message]) -> list[ck.Message]:
    for message in messages:
        error = message.error()
        if (
            error
            and not error.retriable()
            and error.code() not in (ck.KafkaError._PARTITION_EOF, ck.KafkaError._ALL_BROKERS_DOWN)
        ):
            raise Refused(error.code(), str(error))
    return [message for message in messages if not message.error()]


def _incoming(message: ck.Message) -> Incoming:
    return Incoming(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def _answer(futures: dict[object, Future]):
    """The one answer of an admin call about one thing."""
    (future,) = futures.values()
    try:
        return future.result(PATIENCE_S)
    except ck.KafkaException as problem:
        raise Refused(problem.args[0].code(), str(problem)) from None
