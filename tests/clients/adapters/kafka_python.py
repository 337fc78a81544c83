"""kafka-python 3: pure Python, idempotent by default."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps

import kafka
from kafka import codec
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import BrokerResponseError, KafkaConnectionError, KafkaError, for_code
from kafka.protocol.consumer import OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

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

_CODECS = {
    "snappy": (codec.has_snappy, "python-snappy"),
    "lz4": (codec.has_lz4, "lz4"),
    "zstd": (codec.has_zstd, "zstandard"),
}

# 3.0.12 loses its assignment when a poll's time runs out between SyncGroup and its answer (with any broker), so that a
# member's polls had better be long; they end as soon as there is a message.
UNDISTURBED_S = 2


def _refusing(verb: Callable) -> Callable:
    @wraps(verb)
    def refusing(*args: object, **named: object) -> object:
        try:
            return verb(*args, **named)
        except KafkaError as problem:
            raise _refused(problem) from problem

    return refusing


def _refused(problem: BaseException) -> Refused:
    return Refused(getattr(problem, "errno", None) or -1, f"{type(problem).__name__} {problem}")


class KafkaPython(Client):
    name = "kafka-python"
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
            "max-timestamp",
            "binary",
            "transactions",
        ]
    )

    def why_no_codec(self, compression: str) -> str:
        has, package = _CODECS.get(compression, (lambda: True, ""))
        return "" if has() else f"kafka-python needs the package {package} for {compression}"

    def settings(self, **more: object) -> dict[str, object]:
        return {"bootstrap_servers": self.bootstrap, "reconnect_backoff_max_ms": 500, **more}

    @cached_property
    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(**self.settings())

    def close(self) -> None:
        if "admin" in self.__dict__:
            self.admin.close()

    def stream(
        self, *, compression: str = "none", idempotent: bool = False, max_bytes: int | None = None
    ) -> ProducerStream:
        settings = self.settings(
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            linger_ms=2,
            max_request_size=max_bytes or 1_048_576,
        )
        return _Stream(kafka.KafkaProducer(**settings))

    def read(
        self, topic: str, partition: int, start: int, count: int, *, seconds: float = PATIENCE_S
    ) -> list[Incoming]:
        consumer = kafka.KafkaConsumer(**self.settings(group_id=None))
        try:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            self._seek(consumer, where, start)
            found: list[Incoming] = []

            def enough() -> bool:
                found.extend(_polled(consumer, 0.2))
                return len(found) >= count

            wait_for(enough, seconds=seconds, what=f"{count} messages of {where} from {start}")
            return found
        finally:
            consumer.close()

    @staticmethod
    def _seek(consumer: kafka.KafkaConsumer, where: TopicPartition, start: int) -> None:
        if start == EARLIEST:
            consumer.seek_to_beginning(where)
        elif start == LATEST:
            consumer.seek_to_end(where)
        else:
            consumer.seek(where, start)

    @_refusing
    def offset_for(self, topic: str, partition: int, timestamp_ms: int) -> int:
        spec = OffsetSpec(timestamp_ms) if timestamp_ms < 0 else timestamp_ms
        (found,) = self.admin.list_partition_offsets({TopicPartition(topic, partition): spec}).values()
        return found.offset

    def member(
        self, group: str, topics: Sequence[str], *, instance: str | None = None, **more: object
    ) -> "KafkaPythonMember":
        settings = self.settings(
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            # 3.0.12 may assign before it knows the topic, and then lose the refresh that would tell (with any broker).
            metadata_max_age_ms=500,
            **more,
        )
        return KafkaPythonMember(kafka.KafkaConsumer(*topics, **settings))

    @_refusing
    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self.admin.create_topics(
            {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}}
        )

    @_refusing
    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self.admin.list_topics())

    def partition_count(self, topic: str) -> int:
        return len(self._describe(topic)["partitions"])

    def topic_id(self, topic: str) -> str:
        return str(self._describe(topic)["topic_id"])

    @_refusing
    def _describe(self, topic: str) -> dict:
        (view,) = self.admin.describe_topics([topic])
        if view["error_code"]:
            raise for_code(view["error_code"])()
        return view

    @_refusing
    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions({topic: total})

    @_refusing
    def config(self, topic: str) -> dict[str, str]:
        views = self.admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return {name: entry["value"] for name, entry in views["topic"][topic].items()}

    @_refusing
    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        answer = self.admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if answer != "OK":
            raise Refused(int(answer.partition("[Error ")[2].partition("]")[0] or -1), answer)

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self.admin.list_groups()}

    @_refusing
    def describe_group(self, group: str) -> GroupView:
        view = self.admin.describe_groups([group])[group]
        return GroupView(view["group_state"], len(view["members"]))

    @_refusing
    def group_offsets(self, group: str) -> dict[tuple[str, int], Committed]:
        found = self.admin.list_group_offsets(group)[group]
        return {(at.topic, at.partition): Committed(entry.offset, entry.metadata or "") for at, entry in found.items()}

    @_refusing
    def delete_group(self, group: str) -> None:
        answer = self.admin.delete_groups([group])[group]
        if answer != "OK":
            raise getattr(kafka.errors, answer)()

    @_refusing
    def delete_records(self, topic: str, partition: int, before: int) -> int:
        (answer,) = self.admin.delete_records({TopicPartition(topic, partition): before}).values()
        return answer["low_watermark"]


class _Stream(ProducerStream):
    def __init__(self, producer: kafka.KafkaProducer) -> None:
        self._producer = producer
        self._futures: list = []

    @_refusing
    def send(self, topic: str, record: Outgoing) -> None:
        self._futures.append(
            self._producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
        )

    def acknowledged(self) -> int:
        return sum(future.succeeded() for future in self._futures)

    def finish(self) -> list[tuple[int, int]]:
        try:
            self._producer.flush(PATIENCE_S)
            results = [future.get(PATIENCE_S) for future in self._futures]
            return [(result.partition, result.offset) for result in results]
        except KafkaError as problem:
            raise _refused(problem) from problem
        finally:
            self._producer.close(1)


class KafkaPythonMember(Member):
    def __init__(self, consumer: kafka.KafkaConsumer) -> None:
        self.consumer = consumer

    def poll(self, seconds: float = 0.1) -> list[Incoming]:
        try:
            return _polled(self.consumer, max(seconds, UNDISTURBED_S))
        except KafkaConnectionError:  # the other libraries keep to themselves that the broker is away
            return []

    def commit(self) -> None:
        try:
            self.consumer.commit()
        except BrokerResponseError as problem:
            raise _refused(problem) from problem
        except KafkaError as problem:  # CommitFailedError: the group has moved on, and this member is to poll again
            raise Refused(-1, str(problem)) from problem

    def commit_with_metadata(self, topic: str, partition: int, offset: int, metadata: str) -> None:
        self.consumer.commit({TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata, -1)})

    def assignment(self) -> set[tuple[str, int]]:
        return {(at.topic, at.partition) for at in self.consumer.assignment()}

    def close(self) -> list[Incoming]:
        self.consumer.close(autocommit=False)
        return []


def _polled(consumer: kafka.KafkaConsumer, seconds: float) -> list[Incoming]:
    """kafka-python returns early and empty-handed while it is busy with its group; ask until the time is up."""
    deadline = time.monotonic() + seconds
    while not (batches := consumer.poll(timeout_ms=int(seconds * 1000))) and time.monotonic() < deadline:
        pass
    return [_incoming(message) for batch in batches.values() for message in batch]


def _incoming(message) -> Incoming:
    return Incoming(
        message.topic,
        message.partition,
        message.offset,
        message.timestamp,
        message.key,
        message.value,
        tuple((name, None if value is None else bytes(value)) for name, value in message.headers),
    )
