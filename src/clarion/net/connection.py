"""One client connection: frames in, replies out in request order, and a bounded cost whoever is at the other end.

Back-pressure in one rule: requests are taken from a connection only while its earlier replies fit (few enough in
flight, nothing waiting to be sent). A client that stops reading is simply not read from any more; what it can hold is
one chunk of its current reply and the kernel's socket buffer.

The hot path is callbacks, not tasks: a produce or fetch that need not wait is served inside `buffer_updated`. Small
replies leave together at the end of the turn: a send that wakes a sleeping client costs more than the reply itself,
and the first one of a turn has woken it for all.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from clarion.model.errors import MalformedError
from clarion.net.frames import FrameReader
from clarion.net.replies import FilePart, Part, PendingReply, Reply, RestOfFile
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.net.server import Server

log = event_log("net")

FRAMES_PER_TURN: Final = 200  # a few milliseconds: so long may one client's tiny requests keep the others waiting
CHUNK_BYTES: Final = 512 * 1024  # of a file per send: the most that a slow reader's reply occupies in our memory
SMALL_PART_BYTES: Final = 16 * 1024  # smaller file parts are read and joined with their header: one send for all
WRITE_HIGH_WATER: Final = 128 * 1024  # less than a chunk, so that a chunk that does not leave at once pauses us


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_frames",
        "_is_ending",
        "_is_held",
        "_is_paused",
        "_is_reading",
        "_is_sending_cold",
        "_out",
        "_ready",
        "_replies",
        "_server",
        "_service",
        "_socket_fd",
        "_transport",
        "_will_go_on",
        "client_id",
        "habit_at",
        "held_bytes",
        "last_active",
        "listener",
        "peer",
        "unfinished_since",
    )

    def __init__(self, server: Server, listener: int) -> None:
        self._server = server
        self._service = server.service
        self.listener = listener  # which of the server's listeners accepted it
        self._frames = FrameReader(server.scratch, server.limits.frame_bytes_max)
        self._backlog: deque[bytearray] = deque()  # frames that arrived while we must not take any
        self._replies: deque[PendingReply] = deque()
        self._ready: list[bytes] = []  # replies that leave at the end of this turn
        self._out: deque[Part] = deque()  # parts of the reply that is being sent, while it does not fit the socket
        self._transport: asyncio.Transport | None = None
        self._socket_fd: int | None = None
        self._is_paused = False
        self._is_reading = True
        self._is_ending = False
        self._is_held = False
        self._is_sending_cold = False
        self._will_go_on = False
        self.peer = ""
        self.client_id = ""
        self.habit_at = 0  # the service's own: how much of a request is likely to come again
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
        self._drop_the_rest()
        self._frames.drop()
        self._transport = None
        while self._replies:
            self._replies.popleft().abandon()
        self._server.closed(self)

    def take_no_more(self) -> None:
        """The broker stops: requests under way are answered, further ones are not begun."""
        self._is_ending = True
        self._backlog.clear()
        self._stop_reading()

    def close(self) -> None:
        """Send what is already answered, then end."""
        self.send_ready()
        self._drop_the_rest()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._drop_the_rest()
        if self._transport is not None:
            self._transport.abort()

    def _drop_the_rest(self) -> None:
        self._is_ending = True
        self._socket_fd = None
        self._ready.clear()
        self._out.clear()
        self._backlog.clear()

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_reading(self) -> bool:
        """Whether what the client sends is taken from the socket."""
        return self._is_reading

    @property
    def is_idle(self) -> bool:
        """Nothing is owed to the client: no request waits, no reply is on its way."""
        return not (self._is_held or self._replies or self._ready or self._out or self._backlog)

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
            if not self._is_reading or self._must_wait():
                self._keep(frames[at:])
                return
            if at == FRAMES_PER_TURN:
                self._keep(frames[at:])
                self._go_on_soon()
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

    def hold(self) -> None:
        """Begin no further request until `release`: the one just taken is heavy, or must not be overtaken."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        if not self._is_reading:
            self._go_on_soon()

    def _must_wait(self) -> bool:
        return (
            self._is_held
            or bool(self._out)
            or self._is_paused
            or len(self._replies) >= self._server.limits.requests_in_flight_max
        )

    def _keep(self, frames: Sequence[memoryview]) -> None:
        if not self._is_ending:
            self._backlog.extend(map(bytearray, frames))
            self._stop_reading()

    def _take(self, frame: memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            reply = self._service(self, frame)
        except MalformedError as error:
            self._refuse(error)
            return
        except Exception as error:
            # Our own mistake. It must not reach whoever called: that may be another client's commit.
            log.error("request_failed", peer=self.peer, client_id=self.client_id, error=error)
            self.send_ready()
            self.abort()
            return
        # The request may have made an earlier reply ready, and that one may not be out yet.
        if type(reply) is bytes and not self._replies and not self._out:
            self._send_soon(reply)
        elif reply is not None:
            self._reply_in_turn(reply)

    def _reply_in_turn(self, reply: Reply | PendingReply) -> None:
        if not isinstance(reply, PendingReply):
            if not self._replies and not self._out:
                self._send(reply)
                return
            ready, reply = reply, PendingReply(self)
            reply.parts = ready
        self._replies.append(reply)
        if reply.parts is not None:
            self.flush_replies()

    def _refuse(self, error: MalformedError) -> None:
        log.warning("connection_refused", peer=self.peer, client_id=self.client_id, reason=str(error))
        self._server.malformed_total += 1
        self.send_ready()
        self.abort()

    def _stop_reading(self) -> None:
        if self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def _go_on_soon(self) -> None:
        """In a turn of its own: whoever made a reply ready must not be held up by the requests behind it."""
        if not self._will_go_on and not self._is_ending:
            self._will_go_on = True
            self._server.soon(self._go_on)

    def _go_on(self) -> None:
        """Take what waited, then read on, as far as the replies allow."""
        self._will_go_on = False
        for _ in range(FRAMES_PER_TURN):
            if not self._backlog or self._must_wait():
                break
            self._take(memoryview(self._backlog.popleft()))
        else:
            self._go_on_soon()
        if not self._backlog and not self._must_wait() and not self._is_reading and not self._is_ending:
            self._is_reading = True
            self.unfinished_since = self._server.now() if self.unfinished_since else 0.0
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # Replies out

    def flush_replies(self) -> None:
        """Send every reply that is ready and has no unready one before it."""
        if self.is_closed:
            return
        replies = self._replies
        while replies and replies[0].parts is not None and not self._out and not self._is_paused:
            self._send(replies.popleft().parts or b"")
        if not self._is_reading:
            self._go_on_soon()

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
            self._send_soon(parts)
            return
        self._out.extend(parts)
        self._pump()
        if self._out:
            self._stop_reading()

    def _send_soon(self, reply: bytes) -> None:
        if not self._ready:
            self._server.will_send(self)
        self._ready.append(reply)

    def send_ready(self) -> None:
        ready = self._ready
        if ready:
            self._write_through(ready[0] if len(ready) == 1 else b"".join(ready))
            ready.clear()

    def _pump(self) -> None:
        """Send the parts in order until they are gone, or the socket or the disk makes us wait."""
        self.send_ready()
        try:
            self._send_parts()
        except (OSError, AssertionError) as error:
            # Half a reply is out. The client alone is concerned, not whoever made the reply ready.
            log.error("reply_failed", peer=self.peer, client_id=self.client_id, error=error)
            self.abort()

    def _send_parts(self) -> None:
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
                view = self._server.read_chunk(part.file, part.position, part.length)
                if view is not None and len(view) < part.length:
                    raise AssertionError(f"{part.file.path} ends before a reply's last byte")
                data = None if view is None else bytes(view)
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
            view = self._server.read_chunk(part.file, position, min(CHUNK_BYTES, end - position))
            if view is None:
                self._write_through(head)
                self._send_cold(part, position, end)
                return
            if not view:
                raise AssertionError(f"{part.file.path} ends before a reply's last byte")
            unsent = self._send_now(head, view)
            position += len(view)
            head = b""
            if unsent:
                # The socket is full. The transport takes the rest of the chunk and tells us when it has gone.
                self._write_through(unsent)
                if self._is_paused:
                    self._put_back(part, position, end)
                    return
        self._write_through(head)

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
        self._out.appendleft(RestOfFile(part, position, end - position))

    def _send_cold(self, part: FilePart, position: int, end: int) -> None:
        """The device must be asked: in a thread, so that nobody else waits for it."""
        self._is_sending_cold = True
        want = min(CHUNK_BYTES, end - position)
        # Also where nothing is left: as long as something lies in `_out`, no other reply is sent.
        self._put_back(part, position + want, end)
        reading = asyncio.get_running_loop().run_in_executor(None, part.file.read, want, position)
        reading.add_done_callback(partial(self._on_cold_read, part.file.path, want))

    def _on_cold_read(self, path: str, want: int, reading: asyncio.Future[bytes]) -> None:
        self._is_sending_cold = False
        if reading.cancelled():
            return
        error = reading.exception()
        if error is not None or len(reading.result()) != want:
            log.error("reply_failed", peer=self.peer, file=path, reason=repr(error or "the file is too short"))
            self.abort()
            return
        if not self.is_closed:
            self._write_through(reading.result())
            self._pump()
            if not self._out and not self._is_paused:
                self.flush_replies()


def _peer_name(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else str(name or "")
