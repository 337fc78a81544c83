"""How each peer is spoken to: the frames that carry a batch, and how to see in the replies that it was acknowledged."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import NamedTuple, Protocol

from bench import amqp, frames
from bench.load.admin import receive_exactly

MEGABYTE = 1_000_000
FETCH_BYTES = 1024 * 1024  # the size every Kafka client asks for by default (max.partition.fetch.bytes)


class Shots(NamedTuple):
    """Prebuilt frames, to be sent round and round."""

    frames: list[bytes]
    messages_per_frame: int
    value_bytes_per_frame: int


class Replies(Protocol):
    """Counts acknowledged frames in a stream of reply bytes."""

    def feed(self, data: memoryview) -> int: ...


class Readings(Protocol):
    """Follows a stream of deliveries: how many messages arrived, and what to send for more (nothing: keep waiting)."""

    messages: int

    def first_request(self) -> bytes: ...
    def feed(self, data: memoryview) -> bytes | None: ...


class Dialect(Protocol):
    def connect(self, address: tuple[str, int], line: int) -> socket.socket: ...
    def shots(
        self, topic: str, partitions: range, value_bytes: int, batch_bytes: int, acks: int, line: int
    ) -> Shots: ...
    def replies(self, connection: socket.socket, shots: Shots) -> Replies: ...
    def readings(self, topic: str, sample: frames.Batch, line: int, *, new_only: bool, wrap_at: int) -> Readings: ...


def dialect_named(name: str) -> Dialect:
    if name == "rabbitmq":
        return AmqpDialect()
    return NatsDialect() if name == "nats" else KafkaDialect()


class KafkaDialect:
    """Produce v9 and Fetch v12 on a plain connection: Kafka and Clarion alike."""

    def connect(self, address: tuple[str, int], line: int) -> socket.socket:
        connection = socket.create_connection(address, 30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def shots(self, topic: str, partitions: range, value_bytes: int, batch_bytes: int, acks: int, line: int) -> Shots:
        batch = frames.batch_of(value_bytes, batch_bytes, int(time.time() * 1000))
        built = [frames.produce(topic, partition, batch.data, acks) for partition in partitions]
        return Shots(built, batch.messages, batch.messages * value_bytes)

    def replies(self, connection: socket.socket, shots: Shots) -> Replies:
        """Sends the first frame and learns from its reply how long one is: they are all alike."""
        connection.sendall(shots.frames[0])
        size = receive_exactly(connection, 4)
        reply = receive_exactly(connection, struct.unpack(">i", size)[0])
        return EqualReplies(4 + len(reply))

    def readings(self, topic: str, sample: frames.Batch, line: int, *, new_only: bool, wrap_at: int) -> Readings:
        return FetchReadings(topic, sample, wrap_at)


class EqualReplies:
    """Replies of one known length; an error reply of the same length is found afterwards, by counting the log."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pending = 0

    def feed(self, data: memoryview) -> int:
        done, self._pending = divmod(self._pending + len(data), self.size)
        return done


class FetchReadings:
    """Skips through Fetch responses: reads each one's head, counts its whole batches, asks for what follows."""

    def __init__(self, topic: str, sample: frames.Batch, wrap_at: int) -> None:
        self.topic = topic
        self.messages = 0
        self._batch_bytes = len(sample.data)
        self._messages_per_batch = sample.messages
        self._wrap_at = wrap_at  # first offset that is not there: begin again at 0 (0: never)
        self._frame = frames.fetch(topic, 0, 0, bytes_max=FETCH_BYTES)
        self._head_bytes = frames.fetch_head_bytes(topic)
        self._head = bytearray()
        self._left = 0  # bytes of the response in hand still to be skipped
        self._offset = 0

    def first_request(self) -> bytes:
        return bytes(self._frame)

    def feed(self, data: memoryview) -> bytes | None:
        """Only one request is in flight, so whatever arrives belongs to one response."""
        if self._left:
            self._left -= len(data)
            return self._next_request() if not self._left else None
        self._head += data[: self._head_bytes]
        if len(self._head) < min(self._head_bytes, self._response_bytes()):
            return None
        self._left = self._response_bytes() - len(self._head) - max(0, len(data) - self._head_bytes)
        self._count(memoryview(bytes(self._head)))
        self._head.clear()
        return self._next_request() if not self._left else None

    def _response_bytes(self) -> int:
        return 4 + int.from_bytes(self._head[:4], "big") if len(self._head) >= 4 else self._head_bytes

    def _count(self, head: memoryview) -> None:
        found = frames.read_fetch_head(head, self.topic)
        if found.error:
            raise RuntimeError(f"fetch of {self.topic} at {self._offset} failed: error {found.error}")
        arrived = found.records_bytes // self._batch_bytes * self._messages_per_batch
        self.messages += arrived
        self._offset += arrived
        if self._wrap_at and self._offset >= self._wrap_at:
            self._offset = 0

    def _next_request(self) -> bytes:
        frames.set_fetch_offset(self._frame, self._offset)
        return bytes(self._frame)


class NatsDialect:
    """JetStream: every message published with a reply subject and acknowledged by name; readers pull in megabytes."""

    def connect(self, address: tuple[str, int], line: int) -> socket.socket:
        connection = socket.create_connection(address, 30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = connection.makefile("rb", buffering=0)
        file.readline()
        greeting = b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nSUB %s 1\r\nPING\r\n'
        connection.sendall(greeting % _inbox(line))
        if file.readline() != b"PONG\r\n":
            raise ConnectionError("nats-server refused the connection")
        return connection

    def shots(self, topic: str, partitions: range, value_bytes: int, batch_bytes: int, acks: int, line: int) -> Shots:
        message = _publish(topic, line, frames.value(value_bytes))
        count = max(1, batch_bytes // len(message))
        return Shots([message * count], count, count * value_bytes)

    def replies(self, connection: socket.socket, shots: Shots) -> Replies:
        """Sends the first frame, as for Kafka, and waits for all its acknowledgements."""
        counter = AckReplies(shots.messages_per_frame)
        connection.sendall(shots.frames[0])
        while not counter.feed(memoryview(connection.recv(65536))):
            pass
        return counter

    def readings(self, topic: str, sample: frames.Batch, line: int, *, new_only: bool, wrap_at: int) -> Readings:
        return PullReadings(topic, sample, line, new_only=new_only)


class AckReplies:
    """JetStream's acknowledgements, one per message; a frame is done when all of its messages are."""

    _TOKEN = b'"seq":'

    def __init__(self, messages_per_frame: int) -> None:
        self._per_frame = messages_per_frame
        self._tail = b""
        self._acked = 0

    def feed(self, data: memoryview) -> int:
        text = self._tail + data
        if b'"error"' in text or b"-ERR" in text:
            raise RuntimeError(f"JetStream refused a message: {text[:300]!r}")
        self._acked += text.count(self._TOKEN)
        # A token split over two reads is found with the next one; one already counted must not stay.
        self._tail = text[max(text.rfind(self._TOKEN) + 1, len(text) - len(self._TOKEN) + 1) :]
        done, self._acked = divmod(self._acked, self._per_frame)
        return done


class PullReadings:
    """Counts JetStream deliveries of a pull consumer; asks for the next megabyte while the present one arrives."""

    _TOKEN = b"$JS.ACK."

    def __init__(self, topic: str, sample: frames.Batch, line: int, *, new_only: bool) -> None:
        self.messages = 0
        self._tail = b""
        self._line = line
        self._topic = topic
        self._new_only = new_only
        self._name = f"r{line}x{os.urandom(4).hex()}"  # a name used again would go on where it stopped
        self._batch = max(64, FETCH_BYTES // max(1, sample.value_bytes))
        self._asked = 0

    def first_request(self) -> bytes:
        """Makes the consumer; the first pulls follow when JetStream says that it exists."""
        name = self._name
        config = {"name": name, "ack_policy": "none", "deliver_policy": "new" if self._new_only else "all"}
        body = json.dumps({"stream_name": self._topic, "config": config}).encode()
        create = b"PUB $JS.API.CONSUMER.CREATE.%s.%s %s %d\r\n%s\r\n"
        return create % (self._topic.encode(), name.encode(), _inbox(self._line), len(body), body)

    def feed(self, data: memoryview) -> bytes | None:
        text = self._tail + data
        if not self._asked:
            return self._begin(text)
        self.messages += text.count(self._TOKEN)
        self._tail = text[max(text.rfind(self._TOKEN) + 1, len(text) - len(self._TOKEN) + 1) :]
        return self._more() if self._asked - self.messages <= self._batch else None

    def _begin(self, text: bytes) -> bytes | None:
        if not text.endswith(b"}\r\n"):
            self._tail = text
            return None
        if b'"error"' in text:
            raise RuntimeError(f"JetStream made no consumer: {text[:300]!r}")
        self._tail = b""
        return self._more() + self._more()

    def _more(self) -> bytes:
        self._asked += self._batch
        body = json.dumps({"batch": self._batch, "expires": 60_000_000_000}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._topic}.{self._name}".encode()
        return b"PUB %s %s %d\r\n%s\r\n" % (subject, _inbox(self._line), len(body), body)


class AmqpDialect:
    """RabbitMQ: persistent messages, each confirmed when a quorum has it on disk. Only queues are measured there."""

    def connect(self, address: tuple[str, int], line: int) -> socket.socket:
        connection = amqp.AmqpConnection(address)
        connection.confirm()
        return connection.socket

    def shots(self, topic: str, partitions: range, value_bytes: int, batch_bytes: int, acks: int, line: int) -> Shots:
        message = amqp.publish(topic, frames.value(value_bytes))
        count = max(1, batch_bytes // len(message))
        return Shots([message * count], count, count * value_bytes)

    def replies(self, connection: socket.socket, shots: Shots) -> Replies:
        """Sends the first frame, as for Kafka, and waits until all of it is confirmed."""
        counter = ConfirmReplies(shots.messages_per_frame)
        connection.sendall(shots.frames[0])
        while not counter.feed(memoryview(connection.recv(65536))):
            pass
        return counter

    def readings(self, topic: str, sample: frames.Batch, line: int, *, new_only: bool, wrap_at: int) -> Readings:
        raise NotImplementedError("a queue's messages are gone once they are read")


class ConfirmReplies:
    """Confirms of one queue, which come in order: one may speak for all before it."""

    def __init__(self, messages_per_frame: int) -> None:
        self._per_frame = messages_per_frame
        self._frames = amqp.Frames()
        self._done = 0

    def feed(self, data: memoryview) -> int:
        before, last = self._done, self._done * self._per_frame
        for name, arguments in self._frames.feed(data):
            if name == amqp.NACK:
                raise RuntimeError("RabbitMQ refused a message")
            if name == amqp.ACK:
                last = max(last, amqp.confirmed_tag(arguments))
        self._done = last // self._per_frame
        return self._done - before


def _publish(topic: str, line: int, body: bytes) -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (topic.encode(), _inbox(line), len(body), body)


def _inbox(line: int) -> bytes:
    return b"_I.%d" % line
