"""Messages on their way to topics, through confluent-kafka: acknowledged one by one, or many without waiting for each.

The library sends and retries in threads of its own. One more thread here serves its reports, as long as something is
under way. Everything may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from clarion.client.broker_links import LedTopic
from clarion.client.bus_settings import BusSettings
from clarion.client.errors import (
    ClarionError,
    ClosedError,
    InvalidRequest,
    MessageTooLarge,
    Timeout,
    UnknownTopic,
    deleted_topic,
)
from clarion.client.library_errors import library_error
from clarion.client.partitioners import Partitioner, by_key

if TYPE_CHECKING:
    from confluent_kafka import Producer

_LINGER_MS: Final = 1  # long enough for many writers' messages to travel together, too short for one to notice
_MESSAGE_BYTES_MAX: Final = 100 * 1024 * 1024  # topics say how much they take, mostly less: the broker refuses the rest
_BUFFER_KILOBYTES_MAX: Final = 256 * 1024  # of messages under way; writers wait beyond it
_SERVE_SECONDS: Final = 0.1  # at a time, before it is seen that the writer is closed, or has nothing to do
_BROKERS_HEAR_MS: Final = 5_000  # until every broker of a cluster has heard of a topic that was just made
_IDS_MAX: Final = 10_000  # topics of which it is known what they were when they were last written to
_ANY_PARTITION: Final = -1

OnWritten = Callable[[Any, Any], None]  # confluent-kafka's: an error or None, and its message


class Written(NamedTuple):
    """Where a message is now."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970


class NewMessage(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class BufferFullError(Exception):
    """Too much is under way: try again when some of it has arrived."""


class StaleTopicError(Exception):
    """What the library knows of a topic is out of date: it was made anew with fewer partitions, or has got more."""


class MessageWriter:
    def __init__(self, settings: BusSettings, partitioner: Partitioner) -> None:
        from confluent_kafka import KafkaException, Producer

        try:
            self._producer: Producer = Producer(settings.for_librdkafka(_producer_settings(settings)))
        except KafkaException as error:
            raise InvalidRequest(f"settings: {error.args[0].str()}") from error
        self._partitioner = partitioner
        self._timeout_seconds = settings.timeout_ms / 1000
        self._has_work = threading.Event()
        self._ids: dict[str, UUID] = {}  # of the topics that were written to, by name
        self._is_closed = False
        self._failure: ClarionError | None = None  # of a message whose future nobody need look at
        self._server = threading.Thread(target=self._serve, name="clarion-writer", daemon=True)
        self._server.start()

    def write(self, topic: LedTopic, message: NewMessage) -> Written:
        """Returns when the topic has it."""
        return self.write_soon(topic, message, is_awaited=True).result()

    def write_soon(self, topic: LedTopic, message: NewMessage, *, is_awaited: bool = False) -> Future[Written]:
        """The future of a message on its way; waits only while too much is under way."""
        found, on_written = self.pending(topic, message, is_awaited=is_awaited)
        self.post_waiting(topic, message, on_written)
        return found

    def pending(
        self, topic: LedTopic, message: NewMessage, *, is_awaited: bool = False
    ) -> tuple[Future[Written], OnWritten]:
        """A future, and who fulfils it. Where it is not awaited, `flush` tells of the failure."""
        found: Future[Written] = Future()

        def on_written(error: Any, sent: Any) -> None:
            if error is None:
                found.set_result(_written(sent))
                return
            failure = _failed(error, topic.name, message)
            if not is_awaited:
                self._failure = self._failure or failure
            found.set_exception(failure)

        return found, on_written

    def post_waiting(self, topic: LedTopic, message: NewMessage, on_written: OnWritten) -> None:
        has_looked = False
        while True:
            try:
                self.post(topic, message, on_written, has_looked=has_looked)
                return
            except BufferFullError:
                self._producer.poll(0.1)
            except StaleTopicError:
                self.look_at(topic)
                has_looked = True

    def post(self, topic: LedTopic, message: NewMessage, on_written: OnWritten, *, has_looked: bool = False) -> None:
        """Hand a message over, without waiting for anybody. BufferFullError where there is no room for it now,
        StaleTopicError where `look_at` has to come first, once."""
        from confluent_kafka import KafkaError, KafkaException

        if self._is_closed:
            raise ClosedError("the connection is closed; connect again to write")
        if not has_looked and self._ids.get(topic.name, topic.topic_id) != topic.topic_id:
            raise StaleTopicError
        partition = self._partition(topic, message)
        try:
            self._produce(topic.name, partition, message, on_written)
        except BufferError as full:
            raise BufferFullError from full
        except KafkaException as error:
            is_unknown = error.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
            if is_unknown and not has_looked:
                raise StaleTopicError from error
            raise _failed(error.args[0], topic.name, message) from error
        self._note_id(topic)
        if not self._has_work.is_set():
            self._has_work.set()

    def look_at(self, topic: LedTopic) -> None:
        """Have the library ask what it is now; waits for the answer."""
        from confluent_kafka import KafkaException

        try:
            self._producer.list_topics(topic.name, self._timeout_seconds)
        except KafkaException as error:
            raise library_error(error.args[0], f"write to {topic.name!r}") from error

    def _note_id(self, topic: LedTopic) -> None:
        if topic.name not in self._ids and len(self._ids) >= _IDS_MAX:
            self._ids.clear()
        self._ids[topic.name] = topic.topic_id

    def _produce(self, topic: str, partition: int, message: NewMessage, on_written: OnWritten) -> None:
        self._producer.produce(
            topic,
            message.value,
            message.key,
            partition,
            on_written,
            timestamp=message.timestamp_ms or 0,
            headers=message.headers,  # type: ignore[arg-type]  # a list of less than it takes
        )

    def _partition(self, topic: LedTopic, message: NewMessage) -> int:
        partition = message.partition
        if partition is None:
            if self._partitioner is by_key:
                return _ANY_PARTITION  # the library has the same rule, and is quicker
            partition = self._partitioner(topic.name, message.key, topic.partition_count)
            if partition == _ANY_PARTITION:
                return partition
            if not hasattr(partition, "__index__"):
                raise TypeError(f"the partitioner answered {partition!r}; it has to answer a partition, an int")
        if not 0 <= partition < topic.partition_count:
            last = topic.partition_count - 1
            raise UnknownTopic(f"{topic.name!r} has no partition {partition}: it has 0 to {last}")
        return partition

    def flush(self) -> None:
        """Returns when everything has arrived; raises what became of the first message that has not."""
        left = self._producer.flush(self._timeout_seconds)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if left:
            raise Timeout(f"{left} messages have not arrived yet; flush again to wait longer")

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._has_work.set()
            self._server.join()

    def _serve(self) -> None:
        """Call back what has arrived. Where nothing is under way it sleeps."""
        while not self._is_closed:
            self._has_work.wait()
            if self._is_closed:
                return
            self._producer.poll(_SERVE_SECONDS)
            if not len(self._producer):
                self._has_work.clear()
                if len(self._producer):  # handed over in between
                    self._has_work.set()


def _producer_settings(settings: BusSettings) -> dict[str, Any]:
    return {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": _LINGER_MS,
        "partitioner": "murmur2_random",
        "message.max.bytes": _MESSAGE_BYTES_MAX,
        "queue.buffering.max.kbytes": _BUFFER_KILOBYTES_MAX,
        "delivery.timeout.ms": settings.timeout_ms,
        "allow.auto.create.topics": False,  # one that was deleted stays so: `create` alone makes topics
        "topic.metadata.propagation.max.ms": _BROKERS_HEAR_MS,
    }


def _written(sent: Any) -> Written:
    return Written(sent.topic(), sent.partition(), sent.offset(), sent.timestamp()[1])


def _failed(error: Any, topic: str, message: NewMessage) -> ClarionError:
    failure = library_error(error, f"write to {topic!r}")
    if isinstance(failure, MessageTooLarge):
        size = len(message.value or b"") + len(message.key or b"")
        return MessageTooLarge(
            f"a message of {size:,} bytes is more than {topic!r} takes; make it smaller, or raise the topic's setting "
            "max.message.bytes",
            failure.code,
        )
    if isinstance(failure, UnknownTopic) or _is_partition_gone(error):
        return deleted_topic(f"write to {topic!r}", topic)
    return failure


def _is_partition_gone(error: Any) -> bool:
    """A message that waits while its topic is deleted ends with this error, as if the library were being closed."""
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._DESTROY)


class WriteBatch:
    """Many messages, and where each of them is now: reports come from the library's thread."""

    def __init__(self, count: int) -> None:
        self.done: Future[list[Written]] = Future()
        self._written: list[Written | None] = [None] * count
        self._left = count
        self._lock = threading.Lock()
        self._failure: ClarionError | None = None
        if not count:
            self.done.set_result([])

    def reporter(self, number: int, topic: str, message: NewMessage) -> OnWritten:
        def on_written(error: Any, sent: Any) -> None:
            if error is None:
                self._written[number] = _written(sent)
            else:
                self._failure = self._failure or _failed(error, topic, message)
            self._report(1)

        return on_written

    def abandon(self, count: int, failure: ClarionError) -> None:
        """So many were never handed over."""
        self._failure = self._failure or failure
        self._report(count)

    def _report(self, count: int) -> None:
        with self._lock:
            self._left -= count
            if self._left:
                return
        if self._failure is not None:
            arrived = sum(one is not None for one in self._written)
            self._failure.add_note(f"{arrived} of {len(self._written)} messages have arrived")
            self.done.set_exception(self._failure)
        else:
            self.done.set_result([one for one in self._written if one is not None])
