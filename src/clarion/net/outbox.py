"""The sending half of a connection: bytes and parts of files, in order, as fast as the socket takes them.

Parts of files are sent from the page cache chunk by chunk; what the device must be asked for comes through a thread.
What is known to be in the page cache is sent by the kernel from there (`sendfile`), which takes a third of what copying
takes. Where the kernel cannot tell, the first reader's copy is the proof, and the others of the same turn follow.

A client that stops reading holds a little of its current reply and the kernel's socket buffer; where replies must
be copied (TLS, older kernels) it holds one chunk, and while memory is short even of that only a piece.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from clarion.net.replies import FilePart, Part, RestOfFile, memory_bytes
from clarion.world import DiskFile, event_log

if TYPE_CHECKING:
    from clarion.net.in_order import Replies
    from clarion.net.server import Server

log = event_log("net")

CHUNK_BYTES: Final = 512 * 1024  # of a file per send: the most that a slow reader's reply occupies in our memory
PIECE_BYTES: Final = 64 * 1024  # of a chunk that does not fit the socket, while memory is short
SMALL_PART_BYTES: Final = 16 * 1024  # smaller file parts are read and joined with their header: one send for all
SENDFILE_BYTES_MIN: Final = 256 * 1024  # less is copied: one call for all of a reply, which wakes its reader once
_COPIED_INSTEAD: Final = (errno.EAGAIN, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # full, or not with these files
PROBE_BYTES: Final = 8 * 1024  # copied while the socket is full: when they have gone, the kernel can send again
WRITE_HIGH_WATER: Final = 6 * 1024  # less than that, so that what does not leave at once pauses us


class Outbox:
    __slots__ = (
        "_connection",
        "_server",
        "_socket_fd",
        "is_paused",
        "is_reading_file",
        "parts",
        "sent_total",
        "transport",
    )

    def __init__(self, connection: Replies, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._socket_fd: int | None = None
        self.transport: asyncio.Transport | None = None
        self.parts: deque[Part] = deque()  # of the reply that is being sent, while it does not fit the socket
        self.is_paused = False  # the socket takes no more for now
        self.is_reading_file = False  # in a thread
        self.sent_total = 0  # bytes given to the transport

    def open(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER, low=0)
        if not self.is_encrypted:
            socket = transport.get_extra_info("socket")
            self._socket_fd = socket.fileno() if socket is not None else None

    def drop(self) -> None:
        """Whatever is not with the transport yet will not be sent."""
        self._socket_fd = None
        self.parts.clear()

    @property
    def is_encrypted(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is not None

    @property
    def waiting_bytes(self) -> int:
        """In our memory, because the client does not take them."""
        buffered = self.transport.get_write_buffer_size() if self.transport is not None else 0
        return buffered + memory_bytes(self.parts)

    @property
    def left_total(self) -> int:
        """Bytes that the kernel has taken."""
        return self.sent_total - (self.transport.get_write_buffer_size() if self.transport is not None else 0)

    def write(self, data: bytes) -> None:
        if data and self.transport is not None:
            self.sent_total += len(data)
            self.transport.write(data)

    def pump(self, on_broken: Callable[[], None]) -> None:
        """Send the parts in order until they are gone, or the socket or the disk makes us wait."""
        try:
            self._send_parts()
        except Exception as error:
            # Half a reply is out, so whatever it was, nothing can follow. The client alone is concerned, not whoever
            # made the reply ready; nor may it be kept waiting for the other half.
            connection = self._connection
            log.error("reply_failed", peer=connection.peer, client_id=connection.client_id, error=error)
            on_broken()

    def _send_parts(self) -> None:
        while self.parts and not self.is_paused and not self.is_reading_file and self.transport is not None:
            part = self.parts.popleft()
            if not isinstance(part, bytes):
                self._send_file(part)
                continue
            head = self._with_small_parts(part)
            if self.parts and not isinstance(self.parts[0], bytes):
                self._send_file(self.parts.popleft(), head)  # type: ignore[arg-type]
            else:
                self.write(head)

    def _with_small_parts(self, head: bytes) -> bytes:
        """Join a header with the small file parts that follow it: one send instead of many."""
        joined: list[bytes] | None = None
        size = len(head)
        while self.parts and size < SMALL_PART_BYTES:
            part = self.parts[0]
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
            self.parts.popleft()
            joined = [head] if joined is None else joined
            joined.append(data)
            size += len(data)
        return head if joined is None else b"".join(joined)

    def _send_file(self, part: FilePart, head: bytes = b"") -> None:
        """Send a file part chunk by chunk, `head` together with the first one."""
        position, end = part.position, part.position + part.length
        while position < end:
            length = min(CHUNK_BYTES, end - position)
            if self._is_sent_by_the_kernel(part.file, position, length):
                sent = self._send_from_cache(head, part.file, position, length)
                position += max(sent - len(head), 0)
                if sent == len(head) + length:
                    head = b""
                    continue
                if self._socket_fd is None:
                    return  # the peer has gone
                # The socket is full. The transport takes a little and tells us when it has gone.
                head = head[sent:]
                length = min(PROBE_BYTES, end - position)
            view = self._server.read_chunk(part.file, position, length)
            if view is None:
                self.write(head)
                self._send_cold(part, position, end)
                return
            if not view:
                raise AssertionError(f"{part.file.path} ends before a reply's last byte")
            position += len(view)
            unsent = self._send_now(head, view, ends_part=position == end)
            head = b""
            if unsent:
                if self._holds_little(length) and len(view) >= len(unsent) > PIECE_BYTES:
                    position -= len(unsent) - PIECE_BYTES
                    unsent = unsent[:PIECE_BYTES]
                self.write(unsent)
                if self.is_paused:
                    self._put_back(part, position, end)
                    return
        self.write(head)

    def _is_sent_by_the_kernel(self, file: DiskFile, position: int, length: int) -> bool:
        return (
            length >= SENDFILE_BYTES_MIN
            and self._is_socket_free()
            and file.fileno() is not None
            and self._server.is_in_memory(file, position, length)
        )

    def _is_socket_free(self) -> bool:
        """Nothing else waits in the transport, and nothing has to be encrypted: we may write into the socket."""
        return self._socket_fd is not None and self.transport is not None and not self.transport.get_write_buffer_size()

    def _send_from_cache(self, head: bytes, file: DiskFile, position: int, length: int) -> int:
        """Returns how much the socket has taken, of `head` and of the file."""
        sent = 0
        try:
            if head:
                sent = os.write(self._socket_fd, head)  # type: ignore[arg-type]
            if sent == len(head):
                sent += os.sendfile(self._socket_fd, file.fileno(), position, length)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno not in _COPIED_INSTEAD:
                self._connection.abort()  # the peer has gone; connection_lost follows
        self.sent_total += sent
        return sent

    def _holds_little(self, length: int) -> bool:
        """Of what a client does not take: the rest of a small chunk is soon read again."""
        return length < SENDFILE_BYTES_MIN or self._server.budget.is_short

    def _send_now(self, head: bytes, data: memoryview, *, ends_part: bool) -> bytes:
        """Straight into the socket, while nothing else waits in the transport; returns what is left of these two.

        The reply's last bytes go with it, where they are next: each send wakes a reader that sleeps.
        """
        if not self._is_socket_free():
            return head + data
        tail = self.parts[0] if ends_part and len(self.parts) == 1 and isinstance(self.parts[0], bytes) else b""
        try:
            sent = os.writev(self._socket_fd, (head, data, tail))  # type: ignore[arg-type]
        except BlockingIOError:
            return head + data
        except OSError:
            self._connection.abort()  # the peer has gone; connection_lost follows
            return b""
        self.sent_total += sent
        if sent < len(head):
            return head[sent:] + data
        sent -= len(head)
        if sent > len(data):
            self.parts[0] = tail[sent - len(data) :]
        return bytes(data[sent:])

    def _put_back(self, part: FilePart, position: int, end: int) -> None:
        self.parts.appendleft(RestOfFile(part.file, position, end - position))

    def _send_cold(self, part: FilePart, position: int, end: int) -> None:
        """The device must be asked: in a thread, so that nobody else waits for it."""
        self.is_reading_file = True
        want = min(PIECE_BYTES if self._server.budget.is_short else CHUNK_BYTES, end - position)
        # Also where nothing is left: as long as something lies in `parts`, no other reply is sent.
        self._put_back(part, position + want, end)
        reading = asyncio.get_running_loop().run_in_executor(None, part.file.read, want, position)
        reading.add_done_callback(partial(self._on_cold_read, part.file.path, want))

    def _on_cold_read(self, path: str, want: int, reading: asyncio.Future[bytes]) -> None:
        self.is_reading_file = False
        if reading.cancelled():
            return
        error = reading.exception()
        if error is not None or len(reading.result()) != want:
            reason = repr(error or "the file is too short")
            log.error("reply_failed", peer=self._connection.peer, file=path, reason=reason)
            self._connection.abort()
        elif not self._connection.is_closed:
            self.write(reading.result())
            self._connection.go_on_sending()
