"""A topic read as a stream, through confluent-kafka: in the order of each partition, from anywhere in the log.

With a subscription's name its readers share the partitions, and the broker keeps how far they are: a message counts
as read when the next ones are asked for, or when the application says so (`ack`). Without a name everything is read,
and nothing is kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from clarion.client.arguments import Moment, start_of
from clarion.client.broker_links import LedTopic
from clarion.client.bus_settings import BusSettings
from clarion.client.errors import ClosedError, InvalidRequest, NotAQueue, UnknownTopic, deleted_topic
from clarion.client.library_errors import library_error
from clarion.client.received import ReceivedMessage, Said, SettlementKind
from clarion.world import SystemClock, SystemRandomness, boot_seconds, new_uuid

if TYPE_CHECKING:
    from confluent_kafka import Consumer

log = logging.getLogger("clarion.client")

_MESSAGES_MAX: Final = 500  # taken at a time, as Kafka's max.poll.records
_POLL_SECONDS: Final = 0.25  # before it is seen that the reading was closed
_JOIN_SECONDS: Final = 10.0  # to become a member: three that a new group waits for others, and a slow machine's time
_LOOK_SECONDS: Final = 10.0  # while nothing comes: between two looks at what has become of the topic
OFFSET_LATEST, OFFSET_EARLIEST = -1, -2  # "times" that ListOffsets knows
_COMMIT_MS: Final = 1_000  # between two notes at the broker of how far it is read


def open_stream(
    settings: BusSettings,
    topic: LedTopic,
    group: str | None,
    start: str | Moment | timedelta,
    partition: int | None,
    offset: int | None,
) -> StreamSource:
    """As `read` was asked for it."""
    at = start_of(start, SystemClock().now_ms())
    if group is not None and (partition is not None or offset is not None or isinstance(at, int)):
        raise InvalidRequest(
            f"stream {group!r} goes on where its readers are: leave partition, offset and a time out, "
            f"or move it with `clarion subscription seek {group}`"
        )
    return StreamSource(settings, topic, group=group, start=at, partition=partition, offset=offset)


class StreamPartition:
    """Where a message of a stream is from."""

    def __init__(self, topic: str, partition: int, done: Callable[[StreamPartition, int], None]) -> None:
        self.topic = topic
        self.partition = partition
        self._done = done

    def settle(self, message: ReceivedMessage, said: Said) -> None:
        if said.what is not SettlementKind.ACK:
            raise NotAQueue(
                f"{said.what.name.lower()} is for queues; subscribe with mode='queue' to settle messages one by one"
            )
        self._done(self, message.offset + 1)


class StreamSource:
    """For one thread at a time; `close` may come from another one."""

    def __init__(
        self,
        settings: BusSettings,
        topic: LedTopic,
        *,
        group: str | None,
        start: str | int,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        from confluent_kafka import Consumer, KafkaException

        self._topic = topic
        self.group = group
        self._start = start
        self._timeout_seconds = settings.timeout_ms / 1000
        self._only = _only(topic, partition, offset)
        self._sources: dict[int, StreamPartition] = {}
        self._done: dict[int, int] = {}  # by partition: the offset behind what the application has done
        self._is_closed = False
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._looked = boot_seconds()
        self._has_joined = False
        self._early: list[ReceivedMessage] = []  # came while it joined its group
        self._assigned = 0
        try:
            self._consumer: Consumer = Consumer(settings.for_librdkafka(_consumer_settings(group, start)))
        except KafkaException as error:
            raise InvalidRequest(f"settings: {error.args[0].str()}") from error
        try:
            self._consumer.list_topics(topic.name, self._timeout_seconds)  # else its leaders are not looked for at once
            if group is not None:
                self._consumer.subscribe([topic.name], on_assign=self._joined)
                self._wait_to_join()
            else:
                self._assign_new(topic.partition_count)
        except KafkaException as error:
            self._consumer.close()
            raise library_error(error.args[0], f"read {topic.name!r}") from error
        except BaseException:
            self._consumer.close()
            raise

    def _wait_to_join(self) -> None:
        """So that a reading's `timeout` counts from when messages can come: a new group takes seconds to begin."""
        deadline = boot_seconds() + min(self._timeout_seconds, _JOIN_SECONDS)
        while not self._has_joined and boot_seconds() < deadline:
            self._early += self._poll(_POLL_SECONDS)

    def _joined(self, consumer: Any, partitions: Any) -> None:
        self._has_joined = True

    def more(self, handed_out: list[ReceivedMessage], seconds: float | None) -> list[ReceivedMessage]:
        """The next messages; nothing when so many seconds are over, or the reading is closed.

        `handed_out` is what came before: the application asks for more, so that it is done.
        """
        deadline = None if seconds is None else boot_seconds() + seconds
        self._note_done(handed_out)
        if self._early:
            found, self._early = self._early, []
            return found
        while True:
            with self._lock:
                if self._is_closed:
                    return []
                left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, max(0.0, deadline - boot_seconds()))
                found = self._poll(left)
            if found or (deadline is not None and boot_seconds() >= deadline):
                return found
            self._look_at_topic()

    def flush(self, handed_out: list[ReceivedMessage]) -> None:
        """Returns when the broker knows how far it is read; what was handed out last is not done yet."""
        from confluent_kafka import KafkaException, TopicPartition

        self._note_done(handed_out[:-1])
        with self._lock:
            if self.group is None or not self._done or self._is_closed:
                return
            try:
                own = {
                    one.partition for one in self._consumer.assignment()
                }  # others go on where they are with the rest
                done = [(index, offset) for index, offset in self._done.items() if index in own]
                if done:
                    offsets = [TopicPartition(self._topic.name, index, offset) for index, offset in done]
                    self._consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                raise library_error(error.args[0], f"note how far {self.group!r} is") from error

    def close(self, handed_out: list[ReceivedMessage]) -> None:
        """It has left its group when this returns, whoever closed it first."""
        with self._closing:
            if self._is_closed:
                return
            self._note_done(handed_out[:-1])
            self._is_closed = True
            with self._lock:
                self._consumer.close()

    def _poll(self, seconds: float) -> list[ReceivedMessage]:
        """Wait for one message, then take what has come with it. (`consume` alone would wait for all of them.)"""
        first = self._consumer.poll(seconds)
        found = [] if first is None else [first, *self._consumer.consume(_MESSAGES_MAX - 1, 0)]
        return [self._received(one) for one in found if not self._is_error(one)]

    def _is_error(self, one: Any) -> bool:
        from confluent_kafka import KafkaError

        error = one.error()
        if error is None:
            return False
        if error.retriable() or error.code() in (KafkaError._MAX_POLL_EXCEEDED, KafkaError._PARTITION_EOF):
            log.debug("stream read again: topic %s, reason %s", self._topic.name, error.str())
            return True
        raise library_error(error, f"read {self._topic.name!r}")

    def _received(self, one: Any) -> ReceivedMessage:
        index = one.partition()
        source = self._sources.get(index)
        if source is None:
            source = self._sources[index] = StreamPartition(self._topic.name, index, self._note)
        headers = one.headers()
        return ReceivedMessage(
            source, one.offset(), one.timestamp()[1], one.key(), one.value(), tuple(headers) if headers else (), 1
        )

    # How far it is read

    def _note(self, source: StreamPartition, next_offset: int) -> None:
        """By the application, in any thread."""
        if self.group is None or self._is_closed:
            return
        if next_offset > self._done.get(source.partition, -1):
            self._done[source.partition] = next_offset
            self._store({source.partition: next_offset})

    def _note_done(self, messages: list[ReceivedMessage]) -> None:
        if self.group is None or not messages:
            return
        last = {message.partition: message.offset + 1 for message in messages}
        further = {index: offset for index, offset in last.items() if offset > self._done.get(index, -1)}
        self._done.update(further)
        self._store(further)

    def _store(self, offsets: dict[int, int]) -> None:
        """It is sent soon, by the library."""
        from confluent_kafka import KafkaException, TopicPartition

        for index, offset in offsets.items():
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(self._topic.name, index, offset)])
            except KafkaException as error:  # the partition is another reader's by now, who will read it again
                log.debug("position not kept: topic %s, partition %s, reason %s", self._topic.name, index, str(error))
            except RuntimeError as error:
                raise ClosedError("the reading was closed") from error

    # What becomes of the topic

    def _look_at_topic(self) -> None:
        """Whether it is still there and, where no group looks after that, has more partitions."""
        now = boot_seconds()
        if now - self._looked < _LOOK_SECONDS:
            return
        from confluent_kafka import KafkaError, KafkaException

        self._looked = now
        with self._lock:
            if self._is_closed:
                return
            try:
                found = self._consumer.list_topics(self._topic.name, _POLL_SECONDS).topics[self._topic.name]
                if found.error is None and self.group is None and self._only is None:
                    self._assign_new(len(found.partitions))
            except KafkaException as error:  # nobody answers just now
                log.debug("no look at the topic: topic %s, reason %s", self._topic.name, str(error))
                return
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise deleted_topic(f"read {self._topic.name!r}", self._topic.name)

    def _assign_new(self, count: int) -> None:
        from confluent_kafka import OFFSET_BEGINNING

        if self._only is not None:
            index, at = self._only
            places = self._at_start([index]) if at is None else self._places({index: self._checked(index, at)})
        elif not self._assigned:
            places = self._at_start(list(range(count)))
        else:  # partitions that have come since are read from their beginning
            places = self._places(dict.fromkeys(range(self._assigned, count), OFFSET_BEGINNING))
        self._assigned = count
        if places:
            self._consumer.incremental_assign(places)

    def _at_start(self, partitions: list[int]) -> list[Any]:
        """Asked now, so that "latest" means now."""
        wanted = {"earliest": OFFSET_EARLIEST, "latest": OFFSET_LATEST}.get(str(self._start), self._start)
        found = self._offsets(partitions, int(wanted))
        behind = self._offsets([index for index, offset in found.items() if offset < 0], OFFSET_LATEST)  # all is older
        return self._places(found | behind)

    def _checked(self, partition: int, offset: int) -> int:
        """Behind the end nothing may ever come, and the library would begin anew without a word."""
        end = self._offsets([partition], OFFSET_LATEST)[partition]
        if offset > end:
            raise InvalidRequest(
                f"partition {partition} of {self._topic.name!r} ends at offset {end}; read from there, or from earlier"
            )
        return offset

    def _offsets(self, partitions: list[int], moment: int) -> dict[int, int]:
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(self._topic.name, index, moment) for index in partitions]
        found = self._consumer.offsets_for_times(asked, self._timeout_seconds) if asked else []
        for one in found:
            if one.error is not None:
                raise library_error(one.error, f"read {self._topic.name!r}")
        return {one.partition: one.offset for one in found}

    def _places(self, offsets: dict[int, int]) -> list[Any]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self._topic.name, index, offset) for index, offset in offsets.items()]


def _only(topic: LedTopic, partition: int | None, offset: int | None) -> tuple[int, int | None] | None:
    """The one partition that is read, and from where."""
    if partition is None:
        if offset is not None:
            raise InvalidRequest("an offset is a place in one partition: say which, with partition=")
        return None
    if not 0 <= partition < topic.partition_count:
        raise UnknownTopic(f"{topic.name!r} has no partition {partition}: it has 0 to {topic.partition_count - 1}")
    if offset is not None and offset < 0:
        raise InvalidRequest(f"offset {offset}: it is 0 or more")
    return partition, offset


def _consumer_settings(group: str | None, start: str | int) -> dict[str, Any]:
    return {
        "group.id": group or f"clarion-reading-{new_uuid(SystemRandomness())}",
        "auto.offset.reset": "latest" if start == "latest" else "earliest",
        "enable.auto.commit": group is not None,
        "auto.commit.interval.ms": _COMMIT_MS,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
    }
