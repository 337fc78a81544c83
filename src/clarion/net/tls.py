"""Listening with TLS: whoever has not shaken hands yet is counted, has little time, and gives way.

Sockets are accepted here and not by the event loop, which would keep them to itself until the handshake is done. There
are only so many of them at a time, and the one that has taken longest makes room for the next: a crowd that stays
silent keeps nobody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final

from clarion.net.connection import Connection
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.net.server import Server

log = event_log("net")

HANDSHAKE_SECONDS: Final = 10.0  # a few round trips, and a busy client's signature
HANDSHAKES_SHARE: Final = 8  # of the connections may be shaking hands: after a restart all clients come at once
ACCEPTS_PER_TURN: Final = 100  # then it is the others' turn
NO_DESCRIPTOR_SECONDS: Final = 1.0  # between two tries, when there is no descriptor for another socket


class Handshakes:
    """Those of all TLS listeners."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._max = max(16, server.limits.connections_max // HANDSHAKES_SHARE)
        self._sockets: dict[Connection, socket.socket] = {}  # the oldest first
        self._tasks: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def begin(self, sock: socket.socket, listener: int, context: ssl.SSLContext) -> None:
        if len(self._sockets) >= self._max:
            self.give_way()
        connection = Connection(self._server, listener)
        self._sockets[connection] = sock
        task = start_task(self._shake_hands(connection, sock, context), "TLS handshake")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def end(self, connection: Connection) -> None:
        """It is done, or given up."""
        self._sockets.pop(connection, None)

    def give_way(self) -> bool:
        """The oldest makes room; False if there is none."""
        for connection, sock in self._sockets.items():
            self.end(connection)
            _cut(sock)
            return True
        return False

    async def stop(self) -> None:
        while self.give_way():
            pass
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _shake_hands(self, connection: Connection, sock: socket.socket, context: ssl.SSLContext) -> None:
        peer = ""
        try:
            peer = str(sock.getpeername()[0])
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:
            self._server.handshake_failed(peer, error)
        finally:
            self.end(connection)


class TlsListener:
    def __init__(self, handshakes: Handshakes, number: int, context: ssl.SSLContext) -> None:
        self._handshakes = handshakes
        self._number = number
        self.context = context
        self._loop = asyncio.get_running_loop()
        self.sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int, backlog: int) -> None:
        flags = socket.AI_PASSIVE
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self.sockets.append(_listening(family, address, backlog))
        except OSError:
            self.close()
            raise
        for sock in self.sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self.sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("accept_failed", reason=str(error))
                self._loop.remove_reader(listening)
                self._loop.call_later(NO_DESCRIPTOR_SECONDS, self._accept_again, listening)
                return
            sock.setblocking(False)
            self._handshakes.begin(sock, self._number, self.context)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


def _listening(family: int, address: object, backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)  # type: ignore[arg-type]
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        reason = f"error while attempting to bind on address {address!r}: {(error.strerror or '').lower()}"
        raise OSError(error.errno, reason) from None
    return sock


def _cut(sock: socket.socket) -> None:
    """Its transport sees the end, and closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def why_no_tls(error: OSError) -> str:
    """A client with the wrong protocol is a common mistake, and OpenSSL names it in words of its own."""
    match getattr(error, "reason", None):
        case "HTTP_REQUEST":
            return "looks like an HTTP request without TLS: this listener speaks Kafka's protocol over TLS"
        case "WRONG_VERSION_NUMBER":
            return "it did not begin with a TLS handshake: this listener speaks TLS, the client probably plaintext"
    return str(error)
