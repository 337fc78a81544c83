"""A connection's replies, in request order: one that is not ready holds back those behind it.

Small replies leave together at the end of the turn: a send that wakes a sleeping client costs more than the reply
itself, and the first one of a turn has woken it for all.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from clarion.net.outbox import Outbox
from clarion.net.replies import PendingReply, Reply, memory_bytes

if TYPE_CHECKING:
    from clarion.net.server import Server


class Replies(asyncio.BufferedProtocol):
    """The sending side of a `Connection`, which decides what follows from it for the requests."""

    __slots__ = (
        "_is_reading",
        "_outbox",
        "_queued_bytes",
        "_ready",
        "_replies",
        "_server",
        "_transport",
        "_will_end",
        "client_id",
        "held_bytes",
        "peer",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._replies: deque[PendingReply] = deque()
        self._queued_bytes = 0  # of replies that are ready and not sent, because of those before them
        self._ready: list[bytes] = []  # replies that leave at the end of this turn
        self._outbox = Outbox(self, server)
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._will_end = False  # when everything that is owed is sent
        self.peer = ""
        self.client_id = ""
        self.held_bytes = 0  # of our memory

    @abstractmethod
    def close(self) -> None:
        """Send what is already answered, then end."""

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def _stop_reading(self) -> None: ...

    @abstractmethod
    def _go_on_soon(self) -> None: ...

    @abstractmethod
    def _count(self) -> None:
        """What is held of our memory has changed."""

    @abstractmethod
    def _end_if_nothing_is_owed(self) -> bool: ...

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_stuck(self) -> bool:
        """It does not read its replies: nothing is gained by waiting for it."""
        return self._outbox.is_paused

    def _reply_in_turn(self, reply: Reply | PendingReply) -> None:
        if not isinstance(reply, PendingReply):
            if not self._replies and not self._outbox.parts:
                self._send(reply)
                return
            ready, reply = reply, PendingReply(self)
            reply.parts = ready
        self._replies.append(reply)
        if reply.parts is not None:
            self.reply_is_ready(reply)

    def reply_is_ready(self, reply: PendingReply) -> None:
        if self._replies and self._replies[0] is reply:
            self.flush_replies()
        elif not self.is_closed:
            self._queue(reply)

    def flush_replies(self) -> None:
        """Send every reply that is ready and has no unready one before it."""
        if self.is_closed:
            return
        replies, outbox = self._replies, self._outbox
        while replies and replies[0].parts is not None and not outbox.parts and not outbox.is_paused:
            reply = replies.popleft()
            self._queued_bytes -= reply.queued_bytes
            if reply.is_end:
                self.close()
                return
            self._send(reply.parts or b"")
        if replies and replies[0].parts is not None:
            self._queue(replies[0])
        if self.held_bytes:
            self._count()
        if not self._is_reading:
            self._go_on_soon()
        if self._will_end:
            self._end_if_nothing_is_owed()

    def _queue(self, reply: PendingReply) -> None:
        """It is ready, and those before it are not sent."""
        if not reply.queued_bytes:
            reply.queued_bytes = memory_bytes(reply.parts or b"")
            self._queued_bytes += reply.queued_bytes
            self._count()

    def go_on_sending(self) -> None:
        self._pump()
        if not self._outbox.parts and not self._outbox.is_paused:
            self.flush_replies()

    def _send(self, parts: Reply) -> None:
        if self._transport is None:
            return
        if isinstance(parts, bytes):
            self._send_soon(parts)
            return
        self._outbox.parts.extend(parts)
        self._pump()
        if self._outbox.parts:
            self._stop_reading()
            self._count()

    def _send_soon(self, reply: bytes) -> None:
        if not self._ready:
            self._server.will_send(self)
        self._ready.append(reply)

    def send_ready(self) -> None:
        ready = self._ready
        if ready:
            self._outbox.write(ready[0] if len(ready) == 1 else b"".join(ready))
            ready.clear()
            if self._will_end:
                self._end_if_nothing_is_owed()

    def _pump(self) -> None:
        self.send_ready()
        self._outbox.pump(self.abort)

    @property
    def unsent_bytes(self) -> int:
        """Of replies, in our memory."""
        return self._queued_bytes + self._outbox.waiting_bytes

    @property
    def left_total(self) -> int:
        """Bytes of replies that the kernel has taken."""
        return self._outbox.left_total
