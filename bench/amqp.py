"""As much of AMQP 0-9-1 as a benchmark needs: one channel, quorum queues, confirmed writes, deliveries and their acks.

Frames for the load are built as bytes and found in what arrives; set-up goes through `AmqpConnection`, call by call.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Final

METHOD: Final = 1
BODY_MAX: Final = 131072 - 8  # RabbitMQ's `frame_max` by default, less a frame's own bytes
_HEADER, _BODY, _END = 2, 3, b"\xce"
_CHANNEL: Final = 1
_PERSISTENT: Final = struct.pack(">HB", 0x1000, 2)  # which property is there, and that it is delivery mode 2

Method = tuple[int, int]  # class and method
_START, _TUNE, _OPEN_OK = (10, 10), (10, 30), (10, 41)
DELIVER, ACK, NACK = (60, 60), (60, 80), (60, 120)
_CONNECTION_CLOSE, _CHANNEL_CLOSE = (10, 50), (20, 40)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + _END


def method(name: Method, arguments: bytes = b"", channel: int = _CHANNEL) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


def publish(queue: str, body: bytes) -> bytes:
    """One persistent message into a queue: three frames."""
    if len(body) > BODY_MAX:
        raise ValueError(f"a message of {len(body)} bytes needs more than one frame")
    head = struct.pack(">HHQ", 60, 0, len(body)) + _PERSISTENT
    said = method((60, 40), struct.pack(">H", 0) + short("") + short(queue) + b"\0")
    return said + frame(_HEADER, _CHANNEL, head) + frame(_BODY, _CHANNEL, body)


def consume(queue: str) -> bytes:
    """From now on messages come, as many as may be in flight."""
    return method((60, 20), struct.pack(">H", 0) + short(queue) + short("") + b"\0" + long(b""))


def acknowledgements(tags: Iterable[int]) -> bytes:
    """One for each message, none for several."""
    return b"".join([_ACK_FRAME.pack(METHOD, _CHANNEL, 13, *ACK, tag, 0, 0xCE) for tag in tags])


_ACK_FRAME: Final = struct.Struct(">BHIHHQBB")


def short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class Frames:
    """Cuts what arrives into frames, and answers with the methods among them."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes | memoryview) -> list[tuple[Method, bytes]]:
        self._received += data
        found, at, end = [], 0, len(self._received)
        while end - at >= 8:
            kind, _, size = struct.unpack_from(">BHI", self._received, at)
            if end - at < size + 8:
                break
            if kind == METHOD:
                name = struct.unpack_from(">HH", self._received, at + 7)
                arguments = bytes(self._received[at + 11 : at + 7 + size])
                if name in (_CONNECTION_CLOSE, _CHANNEL_CLOSE):
                    raise ConnectionError(f"RabbitMQ closed: {arguments[3:203]!r}")
                found.append((name, arguments))
            at += size + 8
        del self._received[:at]
        return found


def confirmed_tag(arguments: bytes) -> int:
    return int.from_bytes(arguments[:8], "big")


def delivery_tag(arguments: bytes) -> int:
    return int.from_bytes(arguments[1 + arguments[0] : 9 + arguments[0]], "big")


class AmqpConnection:
    """A connection with one channel open, for what is asked and answered."""

    def __init__(self, address: tuple[str, int], within_s: float = 30.0) -> None:
        self.socket = socket.create_connection(address, within_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames()
        self._waiting: list[tuple[Method, bytes]] = []
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self._wait_for(_START)
        self._send((10, 11), long(b"") + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"), 0)
        tuned = self._wait_for(_TUNE)
        self._send((10, 31), tuned[:6] + b"\0\0", 0)  # as it says, without heartbeats
        self._send((10, 40), short("/") + short("") + b"\0", 0)
        self._wait_for(_OPEN_OK)
        self.call((20, 10), short(""))

    def call(self, name: Method, arguments: bytes = b"") -> bytes:
        """Its answer is the next method of the same class."""
        self._send(name, arguments)
        return self._wait_for((name[0], name[1] + 1))

    def declare(self, queue: str) -> None:
        kind = short("x-queue-type") + b"S" + long(b"quorum")
        self.call((50, 10), struct.pack(">H", 0) + short(queue) + b"\x02" + long(kind))

    def messages(self, queue: str) -> int:
        answer = self.call((50, 10), struct.pack(">H", 0) + short(queue) + b"\x01" + long(b""))
        return int.from_bytes(answer[1 + answer[0] : 5 + answer[0]], "big")

    def delete(self, queue: str) -> None:
        self.call((50, 40), struct.pack(">H", 0) + short(queue) + b"\0")

    def confirm(self) -> None:
        self.call((85, 10), b"\0")

    def limit_in_flight(self, messages: int) -> None:
        self.call((60, 10), struct.pack(">IHB", 0, messages, 0))

    def close_channel(self) -> None:
        """The channel has taken all that was said on it before."""
        self.call((20, 40), struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0))

    def close(self) -> None:
        self.socket.close()

    def _send(self, name: Method, arguments: bytes, channel: int = _CHANNEL) -> None:
        self.socket.sendall(method(name, arguments, channel))

    def _wait_for(self, name: Method) -> bytes:
        while True:
            for at, (found, arguments) in enumerate(self._waiting):
                if found == name:
                    del self._waiting[: at + 1]
                    return arguments
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("RabbitMQ closed the connection")
            self._waiting += self._frames.feed(data)
