"""Names of topics and groups at a broker, found in a fraction of a second, for whoever presses the Tab key.

One connection and the oldest versions of Metadata and ListGroups, which every broker answers. The client library would
take longer to load than a person waits for a completion.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

_METADATA: Final = 3
_LIST_GROUPS: Final = 16
_ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024  # tens of thousands of topics; nobody reads more as completions
_SHORT, _INT = Struct(">h"), Struct(">i")
_ALL_TOPICS: Final = _INT.pack(-1)


class Metadata(NamedTuple):
    brokers: list[tuple[str, int]]
    topics: list[str]  # those that are not internal


class Asker:
    """Asks until the time is over; OSError and ValueError where there is nothing to be had."""

    def __init__(self, settings: Mapping[str, str], seconds: float) -> None:
        self._settings = settings  # librdkafka's
        self._deadline = time.monotonic() + seconds

    def metadata(self, host: str, port: int) -> Metadata:
        answer = _Answer(self._ask(host, port, _METADATA, 1, _ALL_TOPICS))
        brokers = [answer.broker() for _ in range(answer.count())]
        answer.skip(4)  # the controller
        return Metadata(brokers, [name for _ in range(answer.count()) if (name := answer.topic())])

    def groups(self, host: str, port: int) -> list[str]:
        """Those that this broker coordinates."""
        answer = _Answer(self._ask(host, port, _LIST_GROUPS, 0, b""))
        answer.skip(2)  # its error: there are no groups then
        return [answer.group() for _ in range(answer.count())]

    def _ask(self, host: str, port: int, api_key: int, version: int, body: bytes) -> bytes:
        request = Struct(">hhih").pack(api_key, version, 1, -1) + body
        with socket.create_connection((host, port), timeout=self._left()) as plain:
            sock = (
                self._encrypted(plain, host) if "ssl" in self._settings.get("security.protocol", "").lower() else plain
            )
            sock.sendall(_INT.pack(len(request)) + request)
            (size,) = _INT.unpack(self._receive(sock, 4))
            if not 4 <= size <= _ANSWER_BYTES_MAX:
                raise ValueError("no answer of a broker")
            return self._receive(sock, size)

    def _encrypted(self, plain: socket.socket, host: str) -> socket.socket:
        import ssl

        told = self._settings
        context = ssl.create_default_context(cafile=told.get("ssl.ca.location"))
        if told.get("ssl.endpoint.identification.algorithm") == "none":
            context.check_hostname = False
        if "ssl.certificate.location" in told:
            context.load_cert_chain(told["ssl.certificate.location"], told.get("ssl.key.location"))
        return context.wrap_socket(plain, server_hostname=host)

    def _receive(self, sock: socket.socket, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            sock.settimeout(self._left())
            more = sock.recv(count - len(received))
            if not more:
                raise ConnectionError("the connection has ended")
            received += more
        return bytes(received)

    def _left(self) -> float:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds


class _Answer:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 4  # behind the correlation id

    def count(self) -> int:
        return int(self._number(_INT))

    def skip(self, count: int) -> None:
        self._at += count

    def broker(self) -> tuple[str, int]:
        self.skip(4)  # its id
        place = self._text(), self.count()
        self._text()  # its rack
        return place

    def topic(self) -> str:
        """Its name; empty for an internal one."""
        self.skip(2)  # its error
        name = self._text()
        is_internal = self._content[self._at]
        self.skip(1)
        for _ in range(self.count()):
            self.skip(2 + 4 + 4)  # error, index, leader
            for _replicas in range(2):  # all, and those in sync
                self.skip(4 * self.count())
        return "" if is_internal else name

    def group(self) -> str:
        name = self._text()
        self._text()  # its protocol
        return name

    def _text(self) -> str:
        length = self._number(_SHORT)
        if length < 0:
            return ""
        text = self._content[self._at : self._at + length].decode()
        self._at += length
        return text

    def _number(self, kind: Struct) -> Any:
        (number,) = kind.unpack_from(self._content, self._at)
        self._at += kind.size
        return number
