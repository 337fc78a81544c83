"""Setting a round up and checking it afterwards: topics (or streams) made, removed, counted, on a blocking socket."""

from __future__ import annotations

import socket
import struct
import time
from typing import Protocol

from bench import frames
from bench.amqp import AmqpConnection
from bench.peers.nats import NatsConnection

TOPIC_SETTINGS = {"file.delete.delay.ms": "500"}  # what a round wrote must be gone before the next one needs the memory
_READY_WITHIN_S = 60.0
_LEADER_NOT_YET = frozenset({3, 5, 6})  # unknown topic or partition, leader not available, not leader: it is coming


class Admin(Protocol):
    def create(self, topic: str, partitions: int = 1) -> None: ...
    def delete(self, topic: str) -> None: ...
    def messages(self, topic: str, partitions: int = 1) -> int: ...
    def close(self) -> None: ...


def admin_for(dialect: str, address: tuple[str, int]) -> Admin:
    if dialect == "rabbitmq":
        return RabbitAdmin(address)
    return NatsAdmin(address) if dialect == "nats" else KafkaAdmin(address)


class KafkaAdmin:
    """CreateTopics, DeleteTopics and ListOffsets; a topic is returned when every partition has a leader."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, 60.0)

    def create(self, topic: str, partitions: int = 1) -> None:
        error = frames.create_topic_error(self.ask(frames.create_topic(topic, partitions, TOPIC_SETTINGS)))
        if error:
            raise RuntimeError(f"topic {topic} could not be created: error {error}")
        deadline = time.monotonic() + _READY_WITHIN_S
        while not self._has_leaders(topic, partitions):
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {topic} has no leaders after {_READY_WITHIN_S:.0f} s")
            time.sleep(0.005)

    def delete(self, topic: str) -> None:
        self.ask(frames.delete_topic(topic))

    def messages(self, topic: str, partitions: int = 1) -> int:
        return sum(offset for _, offset in self.ends(topic, partitions))

    def ends(self, topic: str, partitions: int) -> list[tuple[int, int]]:
        return frames.read_latest_offsets(self.ask(frames.latest_offsets(topic, range(partitions))))

    def ask(self, frame: bytes) -> bytes:
        """One request and its response, without the length prefix."""
        self.socket.sendall(frame)
        return receive_frame(self.socket)

    def close(self) -> None:
        self.socket.close()

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        errors = {error for error, _ in self.ends(topic, partitions)} - {0}
        if errors - _LEADER_NOT_YET:
            raise RuntimeError(f"topic {topic}: errors {sorted(errors)}")
        return not errors


class NatsAdmin:
    """The same three wishes for a JetStream stream of the same name."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.connection = NatsConnection(address)

    def create(self, topic: str, partitions: int = 1) -> None:
        if partitions != 1:
            raise RuntimeError("a JetStream stream has no partitions")
        self.connection.create_stream(topic, topic)

    def delete(self, topic: str) -> None:
        self.connection.delete_stream(topic)

    def messages(self, topic: str, partitions: int = 1) -> int:
        return self.connection.stream_messages(topic)

    def close(self) -> None:
        self.connection.close()


class RabbitAdmin:
    """The same for a quorum queue."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.connection = AmqpConnection(address)

    def create(self, topic: str, partitions: int = 1) -> None:
        if partitions != 1:
            raise RuntimeError("a queue of RabbitMQ has no partitions")
        self.connection.declare(topic)

    def delete(self, topic: str) -> None:
        self.connection.delete(topic)

    def messages(self, topic: str, partitions: int = 1) -> int:
        return self.connection.messages(topic)

    def close(self) -> None:
        self.connection.close()


def receive_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the server closed the connection")
        view = view[got:]
    return bytes(data)
