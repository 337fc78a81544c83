"""What a service is given instead of a connection while a fault concerns its request.

Apart from the rest of this room, because a subclass of a compiled class has to be compiled with it.
"""

from __future__ import annotations

from typing import Any

from clarion.model.errors import MalformedError
from clarion.net import Connection, PendingReply, Reply
from clarion.net.reply_room import ReplyRoom


class Relay(Connection):
    """Stands in for a connection during one request, so that its reply comes to us first."""

    __slots__ = ("_behind", "_held", "_loses_reply", "_performed")

    def __init__(self, real: Connection, held: PendingReply, *, loses_reply: bool) -> None:
        # Deliberately not a whole connection: what a service may use of one is here, all else fails loudly.
        self._behind = real
        self._held = held
        self._loses_reply = loses_reply
        self._performed: PendingReply | None = None
        self.peer, self.listener, self.client_id = real.peer, real.listener, real.client_id
        self.session: Any = None

    def take(self, reply: Reply | PendingReply | None) -> None:
        if not isinstance(reply, PendingReply):
            self._pass_on(reply or ())
            return
        self._performed = reply
        self._held.on_abandon = reply.abandon
        self.reply_is_ready(reply)

    def reply_is_ready(self, reply: PendingReply) -> None:
        """The service has its reply ready, or says that there is none."""
        if reply is not self._performed or reply.parts is None:
            return  # not yet: `take` passes it on
        if reply.is_end:
            self._behind.close()
        else:
            self._pass_on(reply.parts)

    @property
    def is_closed(self) -> bool:
        return self._behind.is_closed

    def has_left(self) -> bool:
        return self._behind.has_left()

    @property
    def reply_room(self) -> ReplyRoom:
        return self._behind.reply_room

    def hold(self, by: object, request_bytes: int = 0) -> None:
        self._behind.hold(by, request_bytes)

    def release(self, by: object) -> None:
        self._behind.release(by)

    def refuse_later(self, pending: PendingReply, error: MalformedError) -> None:
        self._behind.refuse_later(self._held, error)

    def close(self) -> None:
        self._behind.close()

    def _pass_on(self, parts: Reply) -> None:
        if self._loses_reply:
            self._behind.close()
        elif self._held.parts is None:
            self._held.resolve(parts)
