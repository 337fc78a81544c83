"""Clients that keep a broker busy while it dies and comes back, and write down what they saw.

Each client is a thread with a connection of its own (librdkafka). Producers are idempotent, wait for all acks and retry
through restarts, so in the end every message is acknowledged, once. Values are `key=producer/partition/number`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.history import Asked, Commit, Committed, Operation, Outcome, Poll, Send

PATIENCE_S = 60.0
UNDER_WAY_MAX = 300  # messages of one producer without an answer: enough to fill batches, few enough to finish soon
PER_SECOND_MAX = 2000  # of one producer: hundreds of kills must leave a history that can be read and judged
QUIET = {"log_level": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "socket.timeout.ms": 10_000}


class History:
    """Operations of many threads in one list."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.Lock()

    def add(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)

    def acked_since(self, begin: int) -> tuple[int, list[Send]]:
        """What is acknowledged behind the first `begin` operations, and up to where all of them are."""
        with self._lock:
            fresh = self.operations[begin:]
        sends = [(at, one, one.outcome is Outcome.ACKED) for at, one in enumerate(fresh) if isinstance(one, Send)]
        first_open = next((at for at, _, is_acked in sends if not is_acked), len(fresh))
        return begin + first_open, [one for _, one, is_acked in sends if is_acked]

    def acked(self, topic: str | None = None) -> list[Send]:
        with self._lock:
            return [
                one
                for one in self.operations
                if isinstance(one, Send)
                and one.outcome is Outcome.ACKED
                and (topic is None or one.partition.startswith(topic + "-"))
            ]


class Client:
    """Works in a thread of its own until `stop`; what it died of is raised there."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping = threading.Event()
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._error = error

    def work(self) -> None:
        raise NotImplementedError

    def begin_to_stop(self) -> None:
        self._stopping.set()

    def stop(self) -> None:
        self.begin_to_stop()
        self._thread.join(PATIENCE_S + 10)
        assert not self._thread.is_alive(), f"{self} does not end"
        if self._error is not None:
            raise self._error


class Publisher(Client):
    """Sends as fast as it gets answers; `stop` waits until every message has one."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        name: str,
        topic: str,
        partitions: int,
        *,
        seed: int = 0,
        keys: int = 0,
        per_second: int = PER_SECOND_MAX,
        **settings: object,
    ) -> None:
        super().__init__(history)
        self.name = name
        self._topic = topic
        self._partitions = partitions
        self._keys = keys
        self._per_second = per_second
        self._random = random.Random(seed)
        self._acked = 0
        self._sent = 0
        self.longest_wait_seconds = 0.0  # of a message, from the call to its acknowledgement
        self._fatal: KafkaError | None = None
        self._producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,
                "retry.backoff.ms": 20,
                "delivery.timeout.ms": int(PATIENCE_S * 1000),
                "error_cb": self._on_error,
                **settings,
            }
        )

    @property
    def acked(self) -> int:
        return self._acked

    def work(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            is_ahead = self._sent > (time.monotonic() - began) * self._per_second
            if is_ahead or self._sent - self._acked >= UNDER_WAY_MAX:
                self._producer.poll(0.005)
            else:
                self._send()
                self._producer.poll(0)
        left = self._producer.flush(PATIENCE_S)
        assert left == 0, f"{self.name}: {left} messages without an answer"
        assert self._fatal is None, f"{self.name}: {self._fatal}"

    def _send(self) -> None:
        partition = self._random.randrange(self._partitions)
        key = f"{self.name}-{partition}-{self._random.randrange(self._keys)}" if self._keys else ""
        value = f"{key}={self.name}/{partition}/{self._sent}" + "x" * self._random.randrange(200)
        send = Send(self.name, f"{self._topic}-{partition}", value)
        self.history.add(send)
        self._sent += 1
        self._producer.produce(self._topic, value, key or None, partition, on_delivery=self._on_delivery(send))

    def _on_delivery(self, send: Send) -> Callable[[KafkaError | None, Message], None]:
        began = time.monotonic()

        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None, f"{send.value}: {error}"
            send.acked(message.offset())
            self._acked += 1
            self.longest_wait_seconds = max(self.longest_wait_seconds, time.monotonic() - began)

        return note

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error


class Committer(Client):
    """A group of one: reads on and commits what it read, again and again."""

    def __init__(self, history: History, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        super().__init__(history)
        self._bootstrap = bootstrap
        self.group = group
        self._topic = topic
        self._partitions = partitions

    def work(self) -> None:
        consumer = group_member(self._bootstrap, self.group)
        try:
            consumer.assign([TopicPartition(self._topic, number, 0) for number in range(self._partitions)])
            while not self._stopping.is_set():
                self._commit(consumer, consumer.consume(200, 0.05))
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer, messages: list[Message]) -> None:
        ends = {one.partition(): one.offset() + 1 for one in messages if one.error() is None}
        wanted = [TopicPartition(self._topic, number, end) for number, end in ends.items()]
        for one in wanted:
            self.history.add(Commit(self.group, f"{self._topic}-{one.partition}", one.offset))
        try:
            answers = consumer.commit(offsets=wanted, asynchronous=False) if wanted else []
        except KafkaException:
            return  # nobody knows: the next commit goes further
        for one in answers:
            if one.error is None:
                self.history.add(Commit(self.group, f"{self._topic}-{one.partition}", one.offset, Outcome.ACKED))


def group_member(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "session.timeout.ms": 6000,
        }
    )


def read_committed(history: History, bootstrap: str, group: str, topic: str, partitions: int) -> None:
    """Ask a fresh client what the group has committed."""
    consumer = group_member(bootstrap, group)
    try:
        questions = [Asked(group, f"{topic}-{number}") for number in range(partitions)]
        for one in questions:
            history.add(one)
        answers = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], PATIENCE_S)
        for found in answers:
            asked, offset = questions[found.partition], found.offset if found.offset >= 0 else None
            history.add(Committed(group, asked.partition, offset, asked))
    finally:
        consumer.close()


class Overtaken(AssertionError):
    """What a reader was about to read has been deleted meanwhile."""


class Reader:
    """Reads a topic to its present end, from where it was the last time; each call is a fresh client."""

    def __init__(self, history: History, bootstrap: str, name: str, topic: str, partitions: int) -> None:
        self.history = history
        self.name = name
        self.next_offsets: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.start_offsets: dict[str, int] = {}
        self._bootstrap = bootstrap
        self._topic = topic

    def read_on(self) -> None:
        consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": self._bootstrap,
                "group.id": "readers",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        try:
            self._read(consumer)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> None:
        self._skip_deleted(consumer)
        consumer.assign([TopicPartition(self._topic, *at) for at in self.next_offsets.items()])
        unfinished = set(self.next_offsets)
        deadline = time.monotonic() + PATIENCE_S
        while unfinished:
            assert time.monotonic() < deadline, f"no end of {self._topic} {sorted(unfinished)} in sight"
            messages = consumer.consume(1000, 0.1)
            self._take([one for one in messages if one.error() is None])
            for message in messages:
                if message.error() is None:
                    deadline = time.monotonic() + PATIENCE_S
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                    raise Overtaken(message.error())
                else:
                    raise AssertionError(message.error())

    def _skip_deleted(self, consumer: Consumer) -> None:
        for number, at in self.next_offsets.items():
            start, _ = consumer.get_watermark_offsets(TopicPartition(self._topic, number), PATIENCE_S)
            self.start_offsets[f"{self._topic}-{number}"] = start
            self.next_offsets[number] = max(start, at)

    def _take(self, messages: list[Message]) -> None:
        polls: dict[int, Poll] = {}
        for one in messages:
            index = one.partition()
            poll = polls.setdefault(index, Poll(self.name, f"{self._topic}-{index}", []))
            poll.messages.append((one.offset(), (one.value() or b"").decode()))
            self.next_offsets[index] = one.offset() + 1
        for poll in polls.values():
            self.history.add(poll)


def make_topic(bootstrap: str, name: str, partitions: int, **settings: str) -> None:
    """Settings by Kafka's names, with `_` for `.`."""
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(PATIENCE_S)
