"""One client connection: frames in, replies out in request order, and a bounded cost whoever is at the other end.

Back-pressure in one rule: requests are taken from a connection only while its earlier replies fit (few enough in
flight, nothing waiting to be sent). A client that stops reading is simply not read from any more; what it can hold is
one chunk of its current reply and the kernel's socket buffer.

The hot path is callbacks, not tasks: a produce or fetch that need not wait is answered inside `buffer_updated`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from clarion.model.errors import MalformedError
from clarion.net.frames import FrameReader
from clarion.world import DiskFile, event_log

if TYPE_CHECKING:
    from clarion.net.server import Server

log = event_log("net")

CHUNK_BYTES: Final = 512 * 1024  # of a file per send: the most that a slow reader's reply occupies in our memory
SMALL_PART_BYTES: Final = 64 * 1024  # smaller file parts are read and joined with their header: one send for all
WRITE_HIGH_WATER: Final = 128 * 1024  # less than a chunk, so that a chunk that does not leave at once pauses us


class FilePart(Protocol):
    """A part of a reply that is sent from a file, byte for byte."""

    @property
    def file(self) -> DiskFile: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...


Part = bytes | FilePart
Reply = bytes | Sequence[Part]
Service = Callable[["Connection", memoryview], "Reply | PendingReply | None"]


class PendingReply:
    """The place of a reply that is not ready yet. `resolve` is called once, also when the client has gone by then."""

    __slots__ = ("_connection", "on_abandon", "parts")

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self.parts: Reply | None = None
        self.on_abandon: Callable[[], None] | None = None  # called when the client has gone before the reply came

    def resolve(self, parts: Reply) -> None:
        assert self.parts is None, "a reply is given once"
        self.parts = parts
        self.on_abandon = None
        if self._connection is not None:
            self._connection.flush_replies()

    def fail(self) -> None:
        """There will be no reply: what the request meant is unknown to the client, so the connection ends."""
        if self._connection is not None:
            self._connection.close()

    def abandon(self) -> None:
        self._connection = None
        if self.on_abandon is not None:
            self.on_abandon()
            self.on_abandon = None

    @property
    def is_abandoned(self) -> bool:
        return self._connection is None


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_frames",
        "_is_paused",
        "_is_reading",
        "_is_sending_cold",
        "_out",
        "_replies",
        "_server",
        "_service",
        "_socket_fd",
        "_transport",
        "client_id",
        "held_bytes",
        "last_active",
        "listener",
        "peer",
        "session",
        "unfinished_since",
    )

    def __init__(self, server: Server, listener: int) -> None:
        self._server = server
        self._service = server.service
        self.listener = listener  # which of the server's listeners accepted it
        self._frames = FrameReader(server.scratch, server.limits.frame_bytes_max)
        self._backlog: deque[bytes] = deque()  # frames that arrived while we must not take any
        self._replies: deque[PendingReply] = deque()
        self._out: deque[Part] = deque()  # parts of the reply that is being sent, while it does not fit the socket
        self._transport: asyncio.Transport | None = None
        self._socket_fd: int | None = None
        self._is_paused = False
        self._is_reading = True
        self._is_sending_cold = False
        self.peer = ""
        self.client_id = ""
        self.session: object = None  # the service's own, lives as long as the connection
        self.held_bytes = 0  # of our memory, for a frame that is still arriving
        self.last_active = 0.0
        self.unfinished_since = 0.0

    # Coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER, low=0)
        self.peer = _peer_name(transport)
        if transport.get_extra_info("sslcontext") is None:
            socket = transport.get_extra_info("socket")
            self._socket_fd = socket.fileno() if socket is not None else None
        self._server.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._socket_fd = None
        self._out.clear()
        self._backlog.clear()
        while self._replies:
            self._replies.popleft().abandon()
        self._server.closed(self)

    def close(self) -> None:
        """Send what is already in the transport's buffer, then end."""
        if self._transport is not None:
            self._socket_fd = None
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._socket_fd = None
            self._transport.abort()

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Nothing is owed to the client: no request waits, no reply is on its way."""
        return not self._replies and not self._out and not self._backlog

    # Requests in

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        self.last_active = self._server.now()
        try:
            frames = self._frames.received(count)
        except MalformedError as error:
            self._refuse(error)
            return
        if self._frames.has_unfinished or self.held_bytes:
            self._note_unfinished()
            if self._server.has_too_many_frames and self.held_bytes:
                self._refuse(MalformedError("the broker holds too many unfinished frames"))
                return
        for at, frame in enumerate(frames):
            if self._must_wait():
                self._backlog.extend(bytes(rest) for rest in frames[at:])
                self._stop_reading()
                return
            self._take(frame)

    def eof_received(self) -> bool:
        return False

    def _note_unfinished(self) -> None:
        held = self._frames.held_bytes
        if held != self.held_bytes:
            self._server.hold_frames(held - self.held_bytes)
            self.held_bytes = held
        if not held:
            self.unfinished_since = 0.0
        elif not self.unfinished_since:
            self.unfinished_since = self.last_active

    def _must_wait(self) -> bool:
        return bool(self._out) or self._is_paused or len(self._replies) >= self._server.limits.requests_in_flight_max

    def _take(self, frame: memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            reply = self._service(self, frame)
        except MalformedError as error:
            self._refuse(error)
            return
        if type(reply) is bytes and not self._replies:
            self._transport.write(reply)
        elif reply is None:
            return
        elif isinstance(reply, PendingReply):
            self._replies.append(reply)
            if reply.parts is not None:
                self.flush_replies()
        elif self._replies:
            waiting = PendingReply(self)
            waiting.parts = reply
            self._replies.append(waiting)
        else:
            self._send(reply)

    def _refuse(self, error: MalformedError) -> None:
        log.warning("connection_refused", peer=self.peer, client_id=self.client_id, reason=str(error))
        self._server.malformed_total += 1
        self.abort()

    def _stop_reading(self) -> None:
        if self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Take what waited, then read on, as far as the replies allow."""
        while self._backlog and not self._must_wait():
            self._take(memoryview(bytearray(self._backlog.popleft())))
        if not self._backlog and not self._must_wait() and not self._is_reading:
            self._is_reading = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # Replies out

    def flush_replies(self) -> None:
        """Send every reply that is ready and has no unready one before it."""
        replies = self._replies
        while replies and replies[0].parts is not None and not self._out and not self._is_paused:
            self._send(replies.popleft().parts or b"")
        if not self._is_reading:
            self._go_on()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._pump()
        if not self._out:
            self.flush_replies()

    def _send(self, parts: Reply) -> None:
        if self._transport is None:
            return
        if isinstance(parts, bytes):
            self._transport.write(parts)
            return
        self._out.extend(parts)
        self._pump()
        if self._out:
            self._stop_reading()

    def _pump(self) -> None:
        """Send the parts in order until they are gone, or the socket or the disk makes us wait."""
        while self._out and not self._is_paused and not self._is_sending_cold and self._transport is not None:
            part = self._out.popleft()
            if not isinstance(part, bytes):
                self._send_file(part)
                continue
            head = self._with_small_parts(part)
            if self._out and not isinstance(self._out[0], bytes):
                self._send_file(self._out.popleft(), head)  # type: ignore[arg-type]
            else:
                self._transport.write(head)

    def _with_small_parts(self, head: bytes) -> bytes:
        """Join a header with the small file parts that follow it: one send instead of many."""
        joined: list[bytes] | None = None
        size = len(head)
        while self._out and size < SMALL_PART_BYTES:
            part = self._out[0]
            if isinstance(part, bytes):
                data: bytes | None = part
            elif part.length <= SMALL_PART_BYTES:
                data = part.file.read_cached(part.length, part.position)
                if data is not None and len(data) < part.length:
                    raise AssertionError(f"{part.file.path} ends before a reply's last byte")
            else:
                break
            if data is None:
                break  # not in memory: `_send_file` fetches it in a thread
            self._out.popleft()
            joined = [head] if joined is None else joined
            joined.append(data)
            size += len(data)
        return head if joined is None else b"".join(joined)

    def _send_file(self, part: FilePart, head: bytes = b"") -> None:
        """Send a file part chunk by chunk, `head` together with the first one."""
        position, end = part.position, part.position + part.length
        while position < end:
            view = self._server.chunk[: min(CHUNK_BYTES, end - position)]
            count = part.file.read_into(view, position)
            if count is None:
                self._write_through(head)
                self._send_cold(part, position, end)
                return
            if count == 0:
                raise AssertionError(f"{part.file.path} ends before a reply's last byte")
            unsent = self._send_now(head, view[:count])
            position += count
            head = b""
            if unsent:
                # The socket is full. The transport takes the rest of the chunk and tells us when it has gone.
                self._write_through(unsent)
                if self._is_paused:
                    self._put_back(part, position, end)
                    return

    def _send_now(self, head: bytes, data: memoryview) -> bytes:
        """Straight into the socket, without a copy, while nothing else waits in the transport; returns what is left."""
        if self._socket_fd is None or self._transport is None or self._transport.get_write_buffer_size():
            return head + data
        try:
            sent = os.writev(self._socket_fd, (head, data)) if head else os.write(self._socket_fd, data)
        except BlockingIOError:
            return head + data
        except OSError:
            self.abort()  # the peer has gone; connection_lost follows
            return b""
        if sent < len(head):
            return head[sent:] + data
        return bytes(data[sent - len(head) :])

    def _write_through(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _put_back(self, part: FilePart, position: int, end: int) -> None:
        if position < end:
            self._out.appendleft(_RestOfFile(part, position, end - position))

    def _send_cold(self, part: FilePart, position: int, end: int) -> None:
        """The device must be asked: in a thread, so that nobody else waits for it."""
        self._is_sending_cold = True
        want = min(CHUNK_BYTES, end - position)
        self._put_back(part, position + want, end)
        reading = asyncio.get_running_loop().run_in_executor(None, part.file.read, want, position)

        def send(done: asyncio.Future[bytes]) -> None:
            self._is_sending_cold = False
            if done.cancelled() or done.exception() is not None:
                log.error("fetch_read_failed", peer=self.peer, file=part.file.path, reason=repr(done.exception()))
                self.abort()
                return
            self._write_through(done.result())
            self._pump()
            if not self._out and not self._is_paused:
                self.flush_replies()

        reading.add_done_callback(send)


class _RestOfFile:
    """What is left of a file part; it keeps the part, and with it the open file, alive."""

    __slots__ = ("_part", "length", "position")

    def __init__(self, part: FilePart, position: int, length: int) -> None:
        self._part = part
        self.position = position
        self.length = length

    @property
    def file(self) -> DiskFile:
        return self._part.file


def _peer_name(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else str(name or "")
