"""One client connection: frames in, replies out in request order, and a bounded cost whoever is at the other end.

Back-pressure in two rules. Requests are taken from a connection only while its earlier replies fit (few enough in
flight, nothing waiting to be sent). And what it holds of our memory, unfinished frame, backlog and unsent replies
together, is counted in the server's budget, which says when it may hold more (`net/budget`). A client that runs into
either is simply not read from any more.

No reply is lost. A client that closes its sending half is answered first. A request that ends the connection, because
its bytes make no sense or because of a mistake of ours, does so in its turn, behind the replies to those before it.

The hot path is callbacks, not tasks: a produce or fetch that need not wait is served inside `buffer_updated`. The
sending side is in `net/in_order`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from clarion.model.errors import MalformedError
from clarion.net.budget import SMALL_BYTES
from clarion.net.frames import FrameReader
from clarion.net.in_order import Replies
from clarion.net.replies import PendingReply
from clarion.net.reply_room import ReplyRoom
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.net.server import Server

log = event_log("net")

FRAMES_PER_TURN: Final = 200  # a few milliseconds: so long may one client's tiny requests keep the others waiting
FRAME_OVERHEAD_BYTES: Final = 128  # of a frame in the backlog, beside its bytes


class Connection(Replies):
    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_frames",
        "_held_by",
        "_is_counted",
        "_is_ending",
        "_is_held_up",
        "_request_bytes",
        "_service",
        "_will_go_on",
        "counted_reply_bytes",
        "last_active",
        "listener",
        "session",
    )

    def __init__(self, server: Server, listener: int) -> None:
        super().__init__(server)
        self._service = server.service
        self.listener = listener  # which of the server's listeners accepted it
        self._frames = FrameReader(server.scratch, server.limits.frame_bytes_max)
        self._backlog: deque[bytearray | memoryview] = deque()  # frames that arrived while we must not take any
        self._backlog_bytes = 0
        self._held_by: tuple[object, ...] = ()  # requests that the service is busy with
        self._request_bytes = 0  # of those, where they are large
        self._is_held_up = False  # its unfinished frame waits for room in the budget
        self._is_counted = False  # an unfinished frame is known to the budget
        self._is_ending = False  # no more requests are taken
        self._will_go_on = False
        self.session: Any = None  # the service's own: what it knows of this client
        self.counted_reply_bytes = 0  # of replies that are not sent, what is known to the gate for large ones
        self.last_active = 0.0

    # Coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox.open(self._transport)
        self.peer = _peer_name(transport)
        self._server.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._drop_the_rest()
        self._frames.drop()
        self._transport = self._outbox.transport = None
        while self._replies:
            self._replies.popleft().abandon()
        self._server.closed(self)

    def eof_received(self) -> bool:
        """The client sends no more. It may well still read: what it has asked for is answered.

        Through TLS only as far as the replies are there: the event loop ends both halves together, as TLS 1.2 demands.
        Kafka's clients never end one half alone, and its broker does not answer those who do.
        """
        self.send_ready()
        self.last_active = self._server.now()
        self._frames.drop()
        self._note_unfinished(0)
        self._will_end = True
        return not self._end_if_nothing_is_owed() and not self._outbox.is_encrypted

    def has_left(self) -> bool:
        """It has gone, or has ended its half: a client that does that is about to go."""
        return self._will_end or self.is_closed

    def take_no_more(self) -> None:
        """The broker stops: requests under way are answered, further ones are not begun."""
        self._is_ending = True
        self._drop_backlog()
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
        self._outbox.drop()
        self._ready.clear()
        self._drop_backlog()

    def _drop_backlog(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0

    def _end_if_nothing_is_owed(self) -> bool:
        if self._will_end and self.is_idle:
            self.close()
            return True
        return False

    @property
    def is_half_closed(self) -> bool:
        """The client sends no more. Whether it still reads, nobody can know."""
        return self._will_end

    @property
    def is_idle(self) -> bool:
        """Nothing is owed to the client: no request waits, no reply is on its way."""
        return not (self._held_by or self._replies or self._ready or self._outbox.parts or self._backlog)

    # Requests in

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        self.last_active = now = self._server.now()
        self._server.latencies.begin_turn(now)
        frames = self._frames.received(count)
        if self._frames.has_unfinished or self._is_counted:
            self._note_unfinished(count, has_finished=bool(frames))
        for at, frame in enumerate(frames):
            if not self._is_reading or self._must_wait():
                self._keep(frames[at:])
                break
            if at == FRAMES_PER_TURN:
                self._keep(frames[at:])
                self._go_on_soon()
                break
            self._take(frame)
        if self._frames.has_unfinished:
            self._make_room()

    def own(self, frame: memoryview) -> memoryview:
        """A frame that may be kept beyond this turn: a copy, if it lies in the buffer that all connections share."""
        return memoryview(bytearray(frame)) if frame.obj is self._server.scratch.whole.obj else frame

    def hold(self, by: object, request_bytes: int = 0) -> None:
        """Begin no further request until `release`: the one just taken is heavy, or must not be overtaken.

        `by` stands for that request. One that waits for others lets go early, and must not let go for another later.
        `request_bytes` are kept of it meanwhile.
        """
        self._held_by += (by,)
        if request_bytes:
            self._request_bytes += request_bytes
            self._count()

    def release(self, by: object) -> None:
        """Does nothing the second time."""
        if not any(one is by for one in self._held_by):
            return
        self._held_by = tuple(one for one in self._held_by if one is not by)
        if self._held_by:
            return
        if self._request_bytes:
            self._request_bytes = 0
            self._count()
        if not self._is_reading:
            self._go_on_soon()
        self._end_if_nothing_is_owed()

    def _must_wait(self) -> bool:
        return (
            bool(self._held_by)
            or bool(self._outbox.parts)
            or self._outbox.is_paused
            or len(self._replies) >= self._server.limits.requests_in_flight_max
            or self._queued_bytes > self._server.limits.connection_memory_max
        )

    def _keep(self, frames: Sequence[memoryview]) -> None:
        if self._is_ending:
            return
        shared = self._server.scratch.whole.obj  # the next read of whichever connection overwrites it
        for frame in frames:
            self._backlog.append(bytearray(frame) if frame.obj is shared else frame)
            self._backlog_bytes += len(frame) + FRAME_OVERHEAD_BYTES
        self._stop_reading()
        self._count()

    def _take(self, frame: memoryview) -> None:
        if self._transport is None or self._transport.is_closing() or self._is_ending:
            return
        try:
            reply = self._service(self, frame)
        except MalformedError as error:
            self.refuse(error)
            return
        except Exception as error:
            # Our own mistake. It must not reach whoever called: that may be another client's commit.
            log.error("request_failed", peer=self.peer, client_id=self.client_id, error=error)
            self._end_in_turn()
            return
        # The request may have made an earlier reply ready, and that one may not be out yet.
        if type(reply) is bytes and not self._replies and not self._outbox.parts:
            self._send_soon(reply)
        elif reply is not None:
            self._reply_in_turn(reply)

    def refuse(self, error: MalformedError) -> None:
        """For what has no reply to come."""
        self._server.refused(self, str(error))
        self._end_in_turn()

    def refuse_later(self, pending: PendingReply, error: MalformedError) -> None:
        """The same for a request that could not be read at once, and whose reply has its place already."""
        self._server.refused(self, str(error))
        self.take_no_more()
        pending.fail()

    def _end_in_turn(self) -> None:
        """Behind the replies to the requests before."""
        self.take_no_more()
        end = PendingReply(self)
        end.is_end, end.parts = True, b""
        self._reply_in_turn(end)

    def _stop_reading(self) -> None:
        if self._is_reading and self._transport is not None and not self._transport.is_closing():
            self._is_reading = False
            self._server.budget.stopped(self, self._server.now())
            self._transport.pause_reading()

    def _go_on_soon(self) -> None:
        """In a turn of its own: whoever made a reply ready must not be held up by the requests behind it."""
        if not self._will_go_on and not self._is_ending:
            self._will_go_on = True
            self._server.soon(self._go_on)

    def _go_on(self) -> None:
        """Take what waited, then read on, as far as the replies and the budget allow."""
        self._will_go_on = False
        self._server.latencies.begin_turn(self._server.now())
        for _ in range(FRAMES_PER_TURN):
            if not self._backlog or self._must_wait():
                break
            frame = self._backlog.popleft()
            self._backlog_bytes -= len(frame) + FRAME_OVERHEAD_BYTES
            self._take(memoryview(frame))
        else:
            self._go_on_soon()
        self._count()
        if not self._backlog and not self._must_wait() and not self._is_reading and not self._is_ending:
            self._read_on()
        self._end_if_nothing_is_owed()

    def _read_on(self) -> None:
        if self._is_held_up or self._will_end or self.is_closed:
            return
        self._is_reading = True
        if self._frames.has_unfinished:
            self._server.budget.arrived(self, 0, self._server.now())  # from now on its silence is its own
            self._make_room()
        if self._is_reading and self._transport is not None:
            self._transport.resume_reading()

    # Memory

    def _note_unfinished(self, count: int, *, has_finished: bool = True) -> None:
        """The budget measures how fast unfinished frames arrive."""
        now, budget = self.last_active, self._server.budget
        if has_finished and self._is_counted:
            budget.finished(self, now)
            self._server.settle()
        self._is_counted = self._frames.has_unfinished
        if self._is_counted:
            budget.arrived(self, self._frames.arrived_bytes if has_finished else count, now)
        self._count()

    def _make_room(self) -> None:
        """For the rest of the unfinished frame, or stop reading until there is room."""
        frames = self._frames
        if frames.nonsense is not None:
            if not self._backlog:
                self.refuse(frames.nonsense)
        elif frames.is_full and self._is_reading and not self._is_ending:
            wanted = frames.grown_bytes
            if wanted <= SMALL_BYTES:
                self._grow()
            elif self._owes_too_much(wanted):
                self._stop_reading()  # until its own replies have left
            elif self._server.budget.wants(self, wanted - frames.held_bytes, self._server.now()):
                self._grow()
            else:
                self._is_held_up = True
                self._stop_reading()
                self._server.settle()

    def _owes_too_much(self, wanted: int) -> bool:
        """A lone frame may be as large as frames may be; together with a backlog and replies, only so much."""
        if self._server.budget.is_in_lane(self):
            return False
        others = self.held_bytes - self._frames.held_bytes
        return self._must_wait() or (others > 0 and others + wanted > self._server.limits.connection_memory_max)

    def _grow(self) -> None:
        self._frames.grow()
        self._count()

    def room_is_granted(self) -> None:
        self._is_held_up = False
        self._grow()
        self._go_on()

    def _count(self) -> None:
        """Tell the budget what is held, if that has changed."""
        replies = self._queued_bytes
        if self._outbox.is_paused or self._outbox.parts:
            replies += self._outbox.waiting_bytes
        large = max(0, replies - SMALL_BYTES)  # nobody is closed for what is small, so it must keep nobody waiting
        if large != self.counted_reply_bytes and not self.is_closed:
            self._server.reply_room.count(large - self.counted_reply_bytes)
            self.counted_reply_bytes = large
        held = self._frames.held_bytes + self._backlog_bytes + self._request_bytes + replies
        if held != self.held_bytes:
            self.held_bytes = held
            self._server.hold(self, held)

    @property
    def reply_room(self) -> ReplyRoom:
        """For who is about to make a large reply."""
        return self._server.reply_room

    # Replies that do not leave

    def pause_writing(self) -> None:
        self._outbox.is_paused = True
        self._server.budget.sent(self, self.left_total, self._server.now())
        self._count()

    def resume_writing(self) -> None:
        self._outbox.is_paused = False
        self._server.budget.all_sent(self, self._server.now())
        self.go_on_sending()
        self._count()


def _peer_name(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else str(name or "")
