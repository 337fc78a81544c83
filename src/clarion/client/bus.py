"""`connect`: the six verbs for a program that blocks."""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from weakref import finalize

from clarion.client.arguments import Content, Duration, Headers, Moment
from clarion.client.broker_links import LedTopic
from clarion.client.bus_core import BusCore, check_read, check_whole_queue, subscription_fields
from clarion.client.bus_settings import BusSettings
from clarion.client.errors import ClarionError, ClosedError
from clarion.client.loop_thread import LoopThread
from clarion.client.message_tray import MessageTray
from clarion.client.new_messages import Draft, drafts_of, last_partition, new_message
from clarion.client.partitioners import Partitioner, partitioner_of
from clarion.client.queue_reader import PREFETCH_DEFAULT
from clarion.client.reading import BlockingQueue, BlockingSource, MessageReading
from clarion.client.stream_source import open_stream
from clarion.client.topics import CreatedTopic
from clarion.client.writer import MessageWriter, WriteBatch, Written
from clarion.model.subscription import QUEUE, Subscription

T = TypeVar("T")

_left_by_fork: Final[list[object]] = []  # what a parent's threads serve: never closed here, where they are not


def connect(
    bootstrap: str = "127.0.0.1:9092",
    *,
    client_id: str = "clarion-python",
    timeout: Duration = "30s",
    partitioner: str | int | Mapping[int, float] | Partitioner = "key",
    settings: Mapping[str, Any] | None = None,
) -> Bus:
    """A connection to a cluster, by the address of one of its brokers or several, with commas.

    timeout: how long an answer is waited for, also while brokers restart.
    partitioner: where messages go that name no partition: "key" (Kafka's rule), "round-robin", "random", a partition,
        weights by partition (`{0: 5, 1: 1}`), or a function of topic, key and number of partitions.
    settings: of librdkafka, by its names; TLS too: `{"security.protocol": "ssl", "ssl.ca.location": "ca.pem"}`.

    NotConnected where no broker answers.
    """
    return Bus(BusSettings.of(bootstrap, client_id, timeout, settings), partitioner_of(partitioner))


class Bus:
    """Made by `connect`. Any thread may call its methods; after a fork the child has connections of its own."""

    def __init__(self, settings: BusSettings, partitioner: Partitioner) -> None:
        self._settings = settings
        self._partitioner = partitioner
        self._lock = threading.RLock()
        self._is_closed = False
        self._begin()
        try:
            self._run(self._core.open())
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._process = os.getpid()
        self._core = BusCore(self._settings)
        self._loop = LoopThread("clarion-client")
        self._writer: MessageWriter | None = None
        self._open: dict[BlockingSource, MessageTray] = {}  # what is being read, whether somebody holds it or not

    # Topics

    def create(
        self,
        topic_id: str,
        topic_name: str | None = None,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> CreatedTopic:
        """Make a topic; its name and its id come back, and either can be used wherever a topic is named.

        What is not said is as the broker decides. settings: by Kafka's names, with times and sizes as
        people write them, too: `{"retention.ms": "7d", "segment.bytes": "64MiB"}`.
        """
        return self._run(self._live().create(topic_id, topic_name, partitions, replication, settings))

    def delete_topic(self, topic_id: str) -> None:
        """Delete a topic and every message in it."""
        self._run(self._live().topics.delete(topic_id))

    # Writing

    @overload
    def write(
        self,
        topic_id: str,
        message: Content,
        *,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
    ) -> Written: ...

    @overload
    def write(
        self,
        topic_id: str,
        partition_id: int,
        message: Content,
        *,
        key: Content = None,
        headers: Headers | None = None,
        timestamp: Moment | None = None,
    ) -> Written: ...

    def write(self, topic_id: str, *what: Any, **more: Any) -> Written:
        """Write a message, `write(topic, message)` or `write(topic, partition, message)`; returns when it is durable.

        Where it is, is what comes back: topic, partition, offset, timestamp.
        """
        message = new_message(*what, **more)
        return self._writing().write(self._find(topic_id, message.partition), message)

    def write_soon(self, topic_id: str, *what: Any, **more: Any) -> Future[Written]:
        """As `write`, without waiting: the future of where it is. `flush` waits for all of them.

        Where too much is under way it waits until there is room.
        """
        message = new_message(*what, **more)
        return self._writing().write_soon(self._find(topic_id, message.partition), message)

    def write_many(self, topic_id: str, messages: Iterable[Draft]) -> list[Written]:
        """Write messages: values, (key, value) pairs or what `write` takes as a dict; returns when all are durable."""
        drafts = drafts_of(messages)
        topic, writer = self._find(topic_id, last_partition(drafts)), self._writing()
        batch = WriteBatch(len(drafts))
        for number, draft in enumerate(drafts):
            try:
                writer.post_waiting(topic, draft, batch.reporter(number, topic.name, draft))
            except ClarionError as error:
                batch.abandon(len(drafts) - number, error)
                break
        return batch.done.result()

    def flush(self) -> None:
        """Returns when everything that was written so far is durable; raises what became of the first that is not."""
        if self._writer is not None and self._process == os.getpid():
            self._writer.flush()

    # Reading

    def read(
        self,
        topic_id: str,
        *,
        subscription: str | None = None,
        start: str | Moment | timedelta = "earliest",
        partition: int | None = None,
        offset: int | None = None,
        timeout: Duration | None = None,
        mode: str | None = None,
        prefetch: int = PREFETCH_DEFAULT,
        renew: bool = False,
    ) -> MessageReading:
        """Messages of a topic, one after the other.

        Without a subscription: all of it, or one partition, from its `start` ("earliest", "latest", a datetime, or how
        long ago, "1h") or from an offset of one partition. Nothing is remembered.
        With one: shared with its other readers, as a stream or as a queue, as the subscription says.

        timeout: the iteration ends when no message has come for so long; without one it waits for ever.
        mode: "stream" or "queue", for a group that has not been made by `subscribe`.
        prefetch: of a queue, how many messages may be fetched ahead.
        renew: of a queue, whether messages stay this reader's own for as long as it lives, however long each takes.
        """
        check_read(subscription, timeout, mode, prefetch, partition)
        core, topic = self._live(), self._find(topic_id)
        tray = MessageTray()
        if subscription is not None and (mode or self._run(core.mode_of(subscription, topic))) == QUEUE:
            check_whole_queue(subscription, start, partition, offset)
            queue = BlockingQueue(self._loop)
            queue.begin(self._run(core.open_queue(topic, subscription, prefetch, renew, queue.on_news)), tray)
            source: BlockingSource = queue
        else:
            source = open_stream(self._settings, topic, subscription, start, partition, offset)
        self._open[source] = tray
        reading = MessageReading(source, tray, timeout, self._forget)
        finalize(reading, self._abandon, source).atexit = False
        return reading

    def _forget(self, source: BlockingSource) -> None:
        self._open.pop(source, None)

    def _abandon(self, source: BlockingSource) -> None:
        """Nobody holds the reading any more: a loop that was left, for example. In any thread, and without waiting."""
        if source in self._open and not self._is_closed and self._process == os.getpid():
            self._loop.in_a_thread(self._close_source, source)

    def _close_source(self, source: BlockingSource) -> None:
        tray = self._open.get(source)
        if tray is not None:
            source.close(tray.handed_out())
            self._forget(source)

    # Subscriptions

    def subscribe(
        self,
        topic_id: str,
        name: str | None = None,
        *,
        mode: str = QUEUE,
        retention: Duration | None = None,
        ack_timeout: Duration = "30s",
        dead_letter_after: int = 5,
        dead_letter_topic: str | None = None,
        backoff: Duration | tuple[Duration, Duration] | None = None,
        filter: str | None = None,
        start: str | timedelta = "earliest",
        per_key_order: bool = False,
        window: int = 1_000,
        message_ttl: Duration | None = None,
        push: Mapping[str, Any] | str | None = None,
        guarantee: str = "at-least-once",
    ) -> Subscription:
        """Make a subscription of a topic, which keeps its place whether somebody reads or not.

        name: the topic's own unless given. The same again does no harm.
        mode: "queue", whose messages are settled one by one, or "stream", in the order of each partition.
        retention: how long messages are kept for it, "14d"; "consumed" only until it has them; else as the topic says.
        ack_timeout: how long a message of a queue is its reader's own.
        dead_letter_after: so many deliveries, then a message goes to `dead_letter_topic` (`<name>.dead-letters`).
        backoff: how long a released message waits, or the least and the most, doubling in between.
        filter: an expression over key, headers and value (CEL); other messages are passed over.
        push: a URL, or a dict with its settings, to which messages are posted.
        """
        told = subscription_fields(
            mode=mode,
            retention=retention,
            ack_timeout=ack_timeout,
            dead_letter_after=dead_letter_after,
            dead_letter_topic=dead_letter_topic,
            backoff=backoff,
            filter=filter,
            start=start,
            per_key_order=per_key_order,
            window=window,
            message_ttl=message_ttl,
            push=push,
            guarantee=guarantee,
        )
        return self._run(self._live().subscribe(topic_id, name, told))

    def unsubscribe(self, name: str) -> None:
        """End a subscription, by its name: what only it needed can be deleted. Readings of it on this bus end first.

        One that was made without a name has its topic's, and can be called by the topic's id too.
        """
        core = self._live()
        called = self._run(core.subscription_called(name))
        for source in [source for source in list(self._open) if source.group == called]:
            self._close_source(source)
        self._run(core.unsubscribe(called))

    def subscription(self, name: str) -> Subscription:
        """A subscription's rules."""
        return self._run(self._live().subscription(name))

    def subscriptions(self) -> list[str]:
        """Their names."""
        return self._run(self._live().subscriptions())

    # Life

    def close(self) -> None:
        """What is written and said arrives first. Called when the `with` block is left."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._process != os.getpid():
            _left_by_fork.extend([self._loop, self._core, self._writer, *self._open])
            return
        try:
            for source in list(self._open):
                self._close_source(source)
            if self._writer is not None:
                self._writer.close()
        finally:
            self._loop.run(self._core.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _live(self) -> BusCore:
        if self._is_closed:
            raise ClosedError("the connection is closed; connect again")
        if self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    _left_by_fork.extend([self._loop, self._core, self._writer, *self._open])
                    self._begin()
        return self._core

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def _find(self, topic: str, partition: int | None = None) -> LedTopic:
        core = self._live()
        known = core.topics.known(topic)
        if known is not None and (partition is None or partition < known.partition_count):
            return known
        return self._run(core.find(topic, partition))

    def _writing(self) -> MessageWriter:
        self._live()
        if self._writer is None:
            with self._lock:
                if self._writer is None:
                    self._writer = MessageWriter(self._settings, self._partitioner)
        return self._writer
