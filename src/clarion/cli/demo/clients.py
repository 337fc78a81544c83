"""Who plays in the demo: one publisher of orders, and readers, each a real Kafka client in a thread of its own."""

from __future__ import annotations

import json
import math
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from clarion.cli.demo.ledger import OrderWatch, SeenCounts
from clarion.cli.link import Link, explain, poll_available

TOPIC = "orders"
PARTITIONS = 6
_SURGE_SECONDS = 8.0  # the rate swells and ebbs once in this time, so that there is something to see
_TICK_SECONDS = 0.04  # 25 small bursts a second: each costs every reader a fetch, and Spark starts beside them
_POLL_SECONDS = 0.1
_BATCH = 1_000
_COMMIT_SECONDS = 1.0
_RATE_SECONDS = 2.0

_CITIES = ("Lyon", "Porto", "Ghent", "Turin", "Graz", "Malmö", "Cork", "Brno", "Bergen", "Tartu")
_GOODS = (
    ("espresso machine", 249), ("trail shoes", 119), ("desk lamp", 39), ("rain jacket", 89), ("chess set", 29),
    ("headphones", 159), ("cast-iron pan", 45), ("bicycle bell", 12), ("sleeping bag", 99), ("fountain pen", 64),
)  # fmt: skip


class Meter:
    """A rate over the last few seconds, and the latencies of the last few hundred messages."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=64)
        self.latencies_ms: deque[float] = deque(maxlen=400)

    def mark(self, total: int, now: float) -> None:
        self._marks.append((now, total))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_SECONDS:
            self._marks.popleft()

    def rate(self, now: float) -> float:
        """0 also when nothing was marked for a while: nobody is at work any longer."""
        if len(self._marks) < 2 or now - self._marks[-1][0] > _RATE_SECONDS:
            return 0.0
        (begin, before), (end, after) = self._marks[0], self._marks[-1]
        return (after - before) / max(end - begin, 1e-9)

    def latency_ms(self, share: float = 0.5) -> float | None:
        ordered = sorted(self.latencies_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None


class Publisher(Thread):
    """Sends numbered events until it is told to stop, then waits until each is acknowledged."""

    topic = ""

    def __init__(self, link: Link, rate: float) -> None:
        super().__init__(name=f"publisher of {self.topic}", daemon=True)
        self._link = link
        self._rate = rate
        self._random = random.Random(7)
        self._producer = link.producer({"enable.idempotence": True, "linger.ms": 2, "client.id": "demo-publisher"})
        self._acked_now: list[int] = []
        self.stopping = Event()
        self.acknowledged = SeenCounts()
        self.sent = 0
        self.failed = 0
        self.error = ""
        self.meter = Meter()

    def run(self) -> None:
        started = before = time.monotonic()
        due = 0.0
        while not self.stopping.is_set():
            now = time.monotonic()
            due += self._rate_at(now - started) * (now - before)
            before = now
            while due >= 1 and not self.error:
                self._send()
                due -= 1
            self._settle(_TICK_SECONDS)
        self.flush()

    def flush(self) -> None:
        """Wait until every event has been acknowledged, or has failed."""
        self._producer.flush(30)
        self._settle(0)

    def _rate_at(self, seconds: float) -> float:
        return self._rate * (1 + 0.5 * math.sin(2 * math.pi * seconds / _SURGE_SECONDS))

    def compose(self, number: int) -> tuple[str, dict[str, Any]]:
        """The key and the content of the next event."""
        raise NotImplementedError

    def _send(self) -> None:
        number = self.sent
        key, event = self.compose(number)
        sent_at = time.perf_counter()
        try:
            self._producer.produce(
                self.topic,
                json.dumps(event).encode(),
                key.encode(),
                on_delivery=lambda error, _: self._on_delivery(error, number, sent_at),
            )
        except BufferError:
            return  # the queue is full: this one comes back later
        self.sent += 1
        self.on_sent(event)

    def on_sent(self, event: dict[str, Any]) -> None:
        """An event is on its way."""

    def _settle(self, seconds: float) -> None:
        """Take what is acknowledged within this time; a poll returns with the first that comes."""
        until = time.monotonic() + seconds
        self._producer.poll(seconds)
        while (left := until - time.monotonic()) > 0:
            self._producer.poll(left)
        acked, self._acked_now = self._acked_now, []
        self.acknowledged.see(acked)
        self.meter.mark(self.acknowledged.distinct, time.monotonic())

    def _on_delivery(self, error: Any, number: int, sent_at: float) -> None:
        if error is not None:
            self.failed += 1
            self.error = self.error or explain(error, self._link)
            return
        self._acked_now.append(number)
        self.meter.latencies_ms.append((time.perf_counter() - sent_at) * 1000)


class OrderPublisher(Publisher):
    """Orders keyed by customer, numbered per customer, so that readers can see whether their order was kept."""

    topic = TOPIC

    def __init__(self, link: Link, rate: float) -> None:
        super().__init__(link, rate)
        self._sequences: dict[str, int] = {}

    def compose(self, number: int) -> tuple[str, dict[str, Any]]:
        customer = f"c-{self._random.randrange(200):03d}"
        goods, price = self._random.choice(_GOODS)
        return customer, {
            "order": number,
            "customer": customer,
            "sequence": self._sequences.get(customer, 0),
            "goods": goods,
            "price": price,
            "city": self._random.choice(_CITIES),
            "at": time.time(),
        }

    def on_sent(self, event: dict[str, Any]) -> None:
        self._sequences[event["customer"]] = event["sequence"] + 1


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    what: str
    group: str | None  # None: reads everything on its own, without a group, from the first message


@dataclass
class OrderReader:
    """One consumer in a thread. Members of a group share a tally; they have no `watch`, for work moves on."""

    role: Role
    link: Link
    tally: SeenCounts
    say: Callable[[str], None]
    watch: OrderWatch | None
    meter: Meter = field(default_factory=Meter)
    received: int = 0
    partitions: tuple[int, ...] = ()
    last: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=self.role.name, daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(15)

    def _run(self) -> None:
        try:
            self._read_all()
        except Exception as error:  # shown, and fatal for the verdict: a thread must not die in silence
            self.error = " ".join(str(error).split()) or type(error).__name__

    def _read_all(self) -> None:
        consumer = self.link.consumer(self._settings())
        self._join(consumer)
        committed_at = time.monotonic()
        while not self._stopping.is_set():
            self._take([each for each in poll_available(consumer, _BATCH, _POLL_SECONDS) if self._is_message(each)])
            if self.role.group and time.monotonic() - committed_at > _COMMIT_SECONDS:
                self._commit(consumer, asynchronous=True)
                committed_at = time.monotonic()
        if self.role.group:
            self._commit(consumer, asynchronous=False)
        consumer.close()

    def _settings(self) -> dict[str, Any]:
        return {
            "group.id": self.role.group or f"demo-{self.role.name}",
            "client.id": self.role.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "fetch.wait.max.ms": 50,
            "heartbeat.interval.ms": 500,  # a rebalance is noticed at the next heartbeat
        }

    def _join(self, consumer: Any) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        if self.role.group is None:
            self.partitions = tuple(range(PARTITIONS))
            consumer.assign([TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in self.partitions])
        else:
            consumer.subscribe([TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _: Any, given: list[Any]) -> None:
        self._hold({*self.partitions, *(each.partition for each in given)})

    def _on_revoke(self, consumer: Any, taken: list[Any]) -> None:
        """Commit before the work moves on, so that the next owner repeats nothing."""
        self._commit(consumer, asynchronous=False)
        self._hold({*self.partitions} - {each.partition for each in taken})

    def _hold(self, partitions: set[int]) -> None:
        now = tuple(sorted(partitions))
        if now != self.partitions:
            self.partitions = now
            self.say(f"{self.role.name} now reads {partitions_text(now)}")

    def _commit(self, consumer: Any, *, asynchronous: bool) -> None:
        from confluent_kafka import KafkaError, KafkaException

        try:
            consumer.commit(asynchronous=asynchronous)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise

    def _is_message(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.fatal() or not error.retriable():
            self.error = explain(error, self.link)
        return False

    def _take(self, messages: list[Any]) -> None:
        now = time.time()
        orders = [json.loads(each.value()) for each in messages]
        for order in orders:
            self.meter.latencies_ms.append((now - order["at"]) * 1000)
            if self.watch is not None:
                self.watch.see(order["customer"], order["sequence"])
        self.tally.see([order["order"] for order in orders])
        self.received += len(orders)
        if orders:
            self.last = describe(orders[-1])
        self.meter.mark(self.received, time.monotonic())


def describe(order: dict[str, Any]) -> str:
    return f"#{order['order']} {order['customer']} {order['goods']} €{order['price']} {order['city']}"


def partitions_text(partitions: tuple[int, ...]) -> str:
    if not partitions:
        return "nothing"
    noun = "partition" if len(partitions) == 1 else "partitions"
    return f"{noun} {', '.join(map(str, partitions))}"
