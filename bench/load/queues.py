"""A queue: consumers that share the messages of a topic, and acknowledge each of them by itself, out of order.

Kafka's wire: share consumers (KIP-932). JetStream: one pull consumer for all, with explicit acknowledgements. RabbitMQ:
consumers of one quorum queue, which are sent the next messages as they acknowledge. Of the
messages that one answer brings, every other one is acknowledged first, and then the rest; no ranges, one for each. All
consumers are there before the messages are written; measured is from then until the server has the last one's.
"""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from bench import amqp, share_frames
from bench.load.admin import receive_frame
from bench.load.dialects import Dialect, dialect_named
from bench.load.meter import Meter
from bench.load.pump import DRAIN_WITHIN_S, Line, Writer, pump
from bench.peers.nats import NatsConnection

IN_FLIGHT_MAX = 2_000  # Kafka's default, of a partition; JetStream is asked for the same


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueJob:
    dialect: str
    port: int
    pids: Sequence[int]
    topic: str
    messages: int
    value_bytes: int = 100
    batch_bytes: int = 65536
    acks: int = 1
    consumers: int = 4
    records_max: int = 500  # of one answer: Kafka's `max.poll.records`


def run(job: QueueJob) -> dict[str, float]:
    tally = Tally()
    address = ("127.0.0.1", job.port)
    consumers = _CONSUMERS.get(job.dialect, _share_group)(job, address, tally)
    tally.wanted = _write(job, dialect_named(job.dialect), address)
    give_up_at = time.perf_counter() + 4 * DRAIN_WITHIN_S
    with Meter(*job.pids) as meter:
        for consumer in consumers:
            consumer.begin()
        pump(consumers, give_up_at)
        if job.dialect == "nats":
            _wait_for_acknowledgements(job, address, tally.wanted)
        for consumer in consumers:
            consumer.end()
    return meter.figures() | {
        "messages": tally.settled,
        "messages_per_s": tally.settled / meter.seconds,
        "consumers_served": sum(consumer.settled > 0 for consumer in consumers),
    }


class Tally:
    def __init__(self) -> None:
        self.settled = 0
        self.wanted = 0


class Consumer(Line):
    def __init__(self, connection: socket.socket, tally: Tally) -> None:
        super().__init__(connection)
        self.tally = tally
        self.settled = 0

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Returns when the server has everything that was said."""

    def settle(self, count: int) -> None:
        self.settled += count
        self.tally.settled += count

    def is_done(self) -> bool:
        return self.tally.settled >= self.tally.wanted


def _write(job: QueueJob, dialect: Dialect, address: tuple[str, int]) -> int:
    connection = dialect.connect(address, 1_000)
    shots = dialect.shots(job.topic, range(1), job.value_bytes, job.batch_bytes, job.acks, 1_000)
    replies = dialect.replies(connection, shots)
    count = max(1, job.messages // shots.messages_per_frame - 1)
    give_up_at = time.perf_counter() + 2 * DRAIN_WITHIN_S
    writer = Writer(connection, shots, replies, window=5, frames_max=count, deadline=give_up_at)
    writer.fill()
    pump([writer], give_up_at)
    connection.close()
    return (count + 1) * shots.messages_per_frame  # with the frame that `replies` sent to learn from


# Kafka's wire


def _share_group(job: QueueJob, address: tuple[str, int], tally: Tally) -> list[Consumer]:
    return [_ShareConsumer(address, job, f"bench-{job.topic}", tally) for _ in range(job.consumers)]


class _ShareConsumer(Consumer):
    """Sends what it acknowledges first, and with the rest of it the next fetch, one after the other."""

    def __init__(self, address: tuple[str, int], job: QueueJob, group: str, tally: Tally) -> None:
        connection = socket.create_connection(address, 30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._records_max = job.records_max
        self._member = _joined(connection, group, job.topic)
        self._epoch = 0
        self._received = bytearray()
        self._awaited: list[int] = []  # of each answer to come: how many it acknowledges, -1 for an acknowledgement
        connection.sendall(self._next_fetch(()))  # the session, and where the group begins
        share_frames.read_fetched(receive_frame(connection))
        self._awaited.clear()
        super().__init__(connection, tally)

    def begin(self) -> None:
        self.send(self._next_fetch(()))

    def _next_fetch(self, acknowledged: Sequence[int]) -> bytes:
        wait_ms = 500 if self._epoch else 0
        frame = share_frames.fetch(
            self._member, self._epoch, acknowledged, records_max=self._records_max, wait_ms=wait_ms
        )
        self._epoch += 1
        self._awaited.append(len(acknowledged))
        return frame

    def on_data(self, data: memoryview) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            response = bytes(self._received[4:end])
            del self._received[:end]
            self._on_response(response)

    def _on_response(self, response: bytes) -> None:
        count = self._awaited.pop(0)
        if count < 0:
            error = share_frames.read_acknowledged(response)
            if error:
                raise RuntimeError(f"an acknowledgement was refused: error {error}")
            self.settle(-count)
            return
        found = share_frames.read_fetched(response)
        if found.error or found.acknowledge_error:
            raise RuntimeError(f"ShareFetch: errors {found.error}, {found.acknowledge_error}")
        self.settle(count)
        offsets = [offset for first, last in found.acquired for offset in range(first, last + 1)]
        first, rest = offsets[::2], offsets[1::2]
        frame = b""
        if first:
            frame = share_frames.acknowledge(self._member, self._epoch, first)
            self._epoch += 1
            self._awaited.append(-len(first))
        if not self.is_done():
            self.flush()
            self.send(frame + self._next_fetch(rest))


def _joined(connection: socket.socket, group: str, topic: str) -> share_frames.Member:
    member, epoch, topic_id = str(uuid.uuid4()), 0, None
    deadline = time.monotonic() + DRAIN_WITHIN_S
    while topic_id is None:
        connection.sendall(share_frames.heartbeat(group, member, epoch, topic))
        error, epoch, topic_id = share_frames.read_heartbeat(receive_frame(connection))
        if error or topic_id is None:
            epoch = 0 if error else epoch
            if time.monotonic() > deadline:
                raise RuntimeError(f"no partition for a share consumer: error {error}")
            time.sleep(0.05)
    return share_frames.Member(group, member, topic_id)


# JetStream


_CONSUMER = "shared"
_DELIVERY = re.compile(rb"MSG \S+ \S+ (\$JS\.ACK\.\S+) \d+\r\n")


def _jetstream(job: QueueJob, address: tuple[str, int], tally: Tally) -> list[Consumer]:
    config = {
        "durable_name": _CONSUMER, "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": IN_FLIGHT_MAX,
    }  # fmt: skip
    admin = NatsConnection(address)
    answer = admin.request(
        f"$JS.API.CONSUMER.DURABLE.CREATE.{job.topic}.{_CONSUMER}",
        json.dumps({"stream_name": job.topic, "config": config}).encode(),
    )
    admin.close()
    if b'"error"' in answer:
        raise RuntimeError(f"JetStream made no consumer: {answer[:300]!r}")
    return [_PullConsumer(address, job, line, tally) for line in range(job.consumers)]


class _PullConsumer(Consumer):
    """Asks for the next messages as soon as half of the last ones are there."""

    def __init__(self, address: tuple[str, int], job: QueueJob, line: int, tally: Tally) -> None:
        super().__init__(dialect_named("nats").connect(address, line), tally)
        self._tail = b""
        self._records_max = job.records_max
        body = json.dumps({"batch": job.records_max, "expires": 60_000_000_000}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{job.topic}.{_CONSUMER}".encode()
        self._ask = b"PUB %s _I.%d %d\r\n%s\r\n" % (subject, line, len(body), body)
        self._owed = 0

    def begin(self) -> None:
        self._owed = 2 * self._records_max
        self.send(self._ask * 2)

    def on_data(self, data: memoryview) -> None:
        text = self._tail + data
        if b"-ERR" in text:
            raise RuntimeError(f"nats-server refused something: {text[:300]!r}")
        found, end = [], 0
        for match in _DELIVERY.finditer(text):
            found.append(match[1])
            end = match.end()
        self._tail = text[end:] if len(text) - end < 65536 else b""
        if not found:
            return
        said = b"".join([b"PUB %s 0\r\n\r\n" % subject for subject in found[::2] + found[1::2]])
        self.settle(len(found))
        self._owed -= len(found)
        if self._owed <= self._records_max and not self.is_done():
            self._owed += self._records_max
            said += self._ask
        self.flush()
        self.send(said if self.unsent is None else bytes(self.unsent) + said)


def _wait_for_acknowledgements(job: QueueJob, address: tuple[str, int], wanted: int) -> None:
    """They are sent and not answered: the server says how far it has come."""
    admin = NatsConnection(address)
    deadline = time.perf_counter() + DRAIN_WITHIN_S
    floor = 0
    while floor < wanted:
        answer = json.loads(admin.request(f"$JS.API.CONSUMER.INFO.{job.topic}.{_CONSUMER}"))
        floor = answer["ack_floor"]["stream_seq"]
        if time.perf_counter() > deadline:
            raise RuntimeError(f"JetStream knows of {floor} acknowledgements of {wanted}")
    admin.close()


# RabbitMQ


def _quorum_queue(job: QueueJob, address: tuple[str, int], tally: Tally) -> list[Consumer]:
    return [_QuorumConsumer(address, job, tally) for _ in range(job.consumers)]


class _QuorumConsumer(Consumer):
    """What comes with one read of the socket is acknowledged together, one by one."""

    def __init__(self, address: tuple[str, int], job: QueueJob, tally: Tally) -> None:
        self._amqp = amqp.AmqpConnection(address)
        self._amqp.limit_in_flight(IN_FLIGHT_MAX // job.consumers)
        super().__init__(self._amqp.socket, tally)
        self._queue = job.topic
        self._frames = amqp.Frames()

    def begin(self) -> None:
        self.send(amqp.consume(self._queue))

    def on_data(self, data: memoryview) -> None:
        found = [amqp.delivery_tag(said) for name, said in self._frames.feed(data) if name == amqp.DELIVER]
        if found:
            self.settle(len(found))
            said = amqp.acknowledgements(found[::2] + found[1::2])
            self.flush()
            self.send(said if self.unsent is None else bytes(self.unsent) + said)

    def end(self) -> None:
        self.connection.setblocking(True)
        if self.unsent is not None:
            self.connection.sendall(self.unsent)
        self._amqp.close_channel()
        self._amqp.close()


_CONSUMERS = {"nats": _jetstream, "rabbitmq": _quorum_queue}
