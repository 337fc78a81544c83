"""The listening side: accepts connections up to a limit, sweeps out the idle and the stuck, drains at the end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clarion.net.budget import BudgetLimits, ByteBudget
from clarion.net.connection import Connection
from clarion.net.frames import Scratch
from clarion.net.in_order import Replies
from clarion.net.latencies import Latencies
from clarion.net.outbox import CHUNK_BYTES
from clarion.net.replies import Service
from clarion.net.reply_room import ReplyRoom
from clarion.net.tls import Handshakes, TlsListener, why_no_tls
from clarion.world import DiskFile, event_log
from clarion.world.events import Repeats

log = event_log("net")

SWEEP_SECONDS: Final = 5.0
REPLIES_SHARE: Final = 2  # of the memory for frames: so much of unsent replies, and no further large one is made
LOOKS: Final = 20  # at those who are slow, in the time that the slow are given
DRAIN_LOOK_SECONDS: Final = 0.005
LAST_BYTES_SECONDS: Final = 0.5  # for what is already in the sockets' buffers when the connections are closed
HALF_CLOSED_SECONDS: Final = 60.0  # most that close have gone; for those who have not, their replies come within this
BACKLOG: Final = 1024  # connections that the kernel may hold for us while we are busy; a reconnect storm fits


@dataclass(frozen=True, slots=True)
class NetLimits:
    connections_max: int
    frame_bytes_max: int
    frames_memory_max: int  # unfinished frames, backlogs and unsent replies of all connections
    connection_memory_max: int  # the same of one connection, unless it is a single frame
    requests_in_flight_max: int
    frame_bytes_per_second_min: int
    frame_seconds_max: float  # below that rate
    idle_seconds_max: float
    send_buffer_bytes: int  # of each socket; -1: as the system decides


class Server:
    def __init__(self, service: Service, limits: NetLimits, latencies: Latencies | None = None) -> None:
        """`latencies`: where the service counts how long its requests take."""
        self.service = service
        self.latencies = latencies or Latencies()
        self.limits = limits
        self.scratch = Scratch()
        self.budget: ByteBudget[Connection] = ByteBudget(
            BudgetLimits(limits.frames_memory_max, limits.frame_bytes_per_second_min, limits.frame_seconds_max)
        )
        self.reply_room = ReplyRoom(limits.frames_memory_max // REPLIES_SHARE)
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._in_chunk: tuple[DiskFile, int, int] | None = None
        self._in_memory: tuple[DiskFile, int, int] | None = None
        self.connections: dict[Connection, None] = {}
        self.refused_total = 0
        self.malformed_total = 0
        self.handshakes_failed_total = 0
        self.handshakes = Handshakes(self)
        self._refusal_repeats, self._limit_repeats, self._handshake_repeats = Repeats(), Repeats(), Repeats()
        self._sending: list[Replies] = []
        self._will_grant = False
        self._listening: list[asyncio.Server | TlsListener] = []
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.soon = self._loop.call_soon
        self._sweeping: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Start to listen; returns the address that was really taken."""
        number = len(self._listening)
        server: asyncio.Server | TlsListener
        if tls is None:
            server = await self._loop.create_server(
                lambda: Connection(self, number), host, port, backlog=BACKLOG, reuse_address=True
            )
        else:
            server = TlsListener(self.handshakes, number, tls)
            await server.listen(host, port, BACKLOG)
        self._listening.append(server)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)
            self._look_at_the_slow()
        taken = server.sockets[0].getsockname() if server.sockets else (host, port)
        return str(taken[0]), int(taken[1])

    def renew_tls(self, number: int, tls: ssl.SSLContext) -> None:
        """From here on a listener shows this certificate; who has shaken hands before goes on."""
        listener = self._listening[number]
        assert isinstance(listener, TlsListener)
        listener.context = tls

    def opened(self, connection: Connection) -> None:
        connection.last_active = self.now()
        self.handshakes.end(connection)
        if len(self.connections) + len(self.handshakes) >= self.limits.connections_max and not self._has_room():
            self.refused_total += 1
            self._note(self._limit_repeats, "connection_limit", connection.peer, limit=self.limits.connections_max)
            connection.abort()
            return
        self.connections[connection] = None
        _prepare_socket(connection, self.limits.send_buffer_bytes)

    def _has_room(self) -> bool:
        """Whoever has not even shaken hands gives way to who has."""
        return len(self.connections) < self.limits.connections_max and self.handshakes.give_way()

    def closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.budget.forget(connection)
        self.reply_room.count(-connection.counted_reply_bytes)
        self.settle()

    def refused(self, connection: Connection, reason: str) -> None:
        """Its bytes make no sense, or ask for what we do not do."""
        self.malformed_total += 1
        client_id = connection.client_id
        self._note(self._refusal_repeats, "connection_refused", connection.peer, client_id=client_id, reason=reason)

    def handshake_failed(self, peer: str, error: OSError) -> None:
        self.handshakes_failed_total += 1
        self._note(self._handshake_repeats, "tls_handshake_failed", peer, reason=why_no_tls(error))

    def _note(self, repeats: Repeats, event: str, peer: str, **fields: object) -> None:
        """What a stranger can make us say a thousand times a second, we say a few times."""
        if repeats.allow(self.now()):
            log.warning(event, peer=peer, **fields, **repeats.take_left_out())

    def will_send(self, connection: Replies) -> None:
        """It has a reply that leaves at the end of this turn of the loop."""
        if not self._sending:
            self._loop.call_soon(self._send_ready)
        self._sending.append(connection)

    def _send_ready(self) -> None:
        sending, self._sending = self._sending, []
        for connection in sending:
            connection.send_ready()
        self.latencies.end_turn()

    def read_chunk(self, file: DiskFile, position: int, length: int) -> memoryview | None:
        """These bytes of a file, as far as it goes, in a buffer for the next call to overwrite; None if not in memory.

        Readers at a log's tail want the same bytes one after the other, so within a turn they are read once.
        """
        view = self._chunk[:length]
        place = (file, position, length)
        if self._in_chunk == place:
            return view
        count = file.read_into(view, position)
        self._in_chunk = place if count == length else None
        self._remember(self._in_chunk)
        return None if count is None else view[:count]

    def is_in_memory(self, file: DiskFile, position: int, length: int) -> bool:
        """Whether the kernel can send these bytes of a file without asking the device. Found out once in a turn."""
        place = (file, position, length)
        if self._in_memory == place:
            return True
        if not file.is_cached(length, position):
            return False
        self._remember(place)
        return True

    def _remember(self, place: tuple[DiskFile, int, int] | None) -> None:
        if self._in_memory is None and place is not None:
            self._loop.call_soon(self._forget)
        self._in_memory = place

    def _forget(self) -> None:
        """By the next turn a log may have been cut and written anew."""
        self._in_chunk = self._in_memory = None

    # Memory

    def hold(self, connection: Connection, held_bytes: int) -> None:
        self.budget.hold(connection, held_bytes)
        self.settle()

    def settle(self) -> None:
        """What is held has changed, or who wants more."""
        self.scratch.narrow(self.budget.is_short)
        if self.budget.is_waited_for and not self._will_grant:
            self._will_grant = True
            self._loop.call_soon(self._grant)

    def _grant(self) -> None:
        self._will_grant = False
        for connection in self.budget.grants():
            connection.room_is_granted()

    def _look_at_the_slow(self) -> None:
        now = self.now()
        self._looking = self._loop.call_later(self.limits.frame_seconds_max / LOOKS, self._look_at_the_slow)
        for connection in self.budget.leaving:
            self.budget.sent(connection, connection.left_total, now)
        for connection in self.budget.too_slow(now, is_waited_for=self.reply_room.is_waited_for):
            self._sweep_out(connection, "too slow")
        self.settle()

    def stop_listening(self) -> None:
        for server in self._listening:
            server.close()
        self._listening.clear()

    def abort(self) -> None:
        """As if the process had died: nobody gets another byte."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.abort()

    async def stop(self, drain_seconds: float) -> None:
        """No new connections, no new requests; give those in flight a moment; then end every connection."""
        self.stop_listening()
        for timer in (self._sweeping, self._looking):
            if timer is not None:
                timer.cancel()
        await self.handshakes.stop()
        for connection in self.connections:
            connection.take_no_more()
        await self._wait_until(lambda: all(one.is_idle or one.is_stuck for one in self.connections), drain_seconds)
        for connection in list(self.connections):
            connection.close()
        await self._wait_until(lambda: not self.connections, LAST_BYTES_SECONDS)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    async def _wait_until(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Once per life: an event for this would cost something in every request."""
        deadline = self.now() + seconds
        while not is_done() and self.now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_LOOK_SECONDS)

    def _sweep(self) -> None:
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        now = self.now()
        for connection in list(self.connections):
            reason = self._overdue(connection, now)
            if reason:
                self._sweep_out(connection, reason)

    def _sweep_out(self, connection: Connection, reason: str) -> None:
        log.info("connection_swept", peer=connection.peer, client_id=connection.client_id, reason=reason)
        connection.abort()

    def _overdue(self, connection: Connection, now: float) -> str:
        if connection.is_idle and now - connection.last_active > self.limits.idle_seconds_max:
            return "idle"
        if connection.is_half_closed and now - connection.last_active > HALF_CLOSED_SECONDS:
            return "has closed, and waits for a reply that does not come"
        if not connection.is_idle and now - connection.last_active > 2 * self.limits.idle_seconds_max:
            return "does not read its replies"
        return ""


def _prepare_socket(connection: Connection, send_buffer_bytes: int) -> None:
    """Small packets leave at once, and large ones as the client takes them."""
    transport = connection.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
