"""uvicorn's protocols on the broker's event loop: connections that were handed over, their limits, and their end.

What uvicorn leaves open is closed here: a head has a length and a time in which it must have come, also the second one
of a connection; a body that is already answered is thrown away for a moment, and no longer; idle connections give way
to new ones; whoever asks while HTTP has had its share of the loop is read from again a second later.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from clarion.broker.subscription_actions import SubscriptionActions
from clarion.gateway.app import build_app
from clarion.gateway.brokers import Brokers
from clarion.gateway.front import Front
from clarion.gateway.gates import BODY_PIECE_BYTES, PIECE_BYTES, GatedTransport, Pieces
from clarion.gateway.memory_room import MemoryRoom
from clarion.gateway.problems import MEDIA_TYPE, HttpProblem
from clarion.gateway.sockets import SocketProtocol

if TYPE_CHECKING:
    from clarion.gateway.door import Gateway

HEAD_BYTES_MAX: Final = 64 * 1024  # of one request: names, keys and headers in a query included
_LARGE: Final = HttpProblem(
    431, f"a request's head has at most {HEAD_BYTES_MAX} bytes; send keys and headers in the body"
)
_HEAD_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n" + (
    f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(_LARGE.body())}\r\n\r\n".encode() + _LARGE.body()
)
_HEAD_SECONDS_MAX: Final = 10.0
_KEEP_ALIVE_SECONDS: Final = 75  # as proxies and clients expect; idle ones give way to others before
_HELD_SECONDS: Final = 1.0  # the pause of a connection that asked while HTTP was over its share, as Retry-After says
_SOCKET_MESSAGE_BYTES_MAX: Final = 1024 * 1024  # of a WebSocket: credits and settlements are small
_FRAMING_FACTOR: Final = 8  # bytes around a byte of a body: a chunk of one has five
_UNWANTED_BYTES_MAX: Final = (
    4 * 1024 * 1024
)  # of a body that was answered before it was read: the largest of common ones
_UNWANTED_SECONDS: Final = 5.0  # likewise: so that its sender sees the answer before the connection ends
_STOP_SECONDS: Final = 1.0  # for answers that are under way


class Serving:
    """Made in a thread; everything else is called on the loop."""

    def __init__(self, gateway: Gateway) -> None:
        self.loop = gateway.loop
        self.share = gateway.share
        self._numbers = gateway.numbers
        self._broker = gateway.server.broker
        self.state = ServerState()
        self.brokers = Brokers(gateway.server.broker)
        self._actions = SubscriptionActions(gateway.server.broker)
        self._app = build_app(gateway.server, self.brokers, self._actions, gateway.share)
        self.memory = MemoryRoom()
        self._front = Front(self._app, gateway, self.state, self.memory)
        self.config = Config(
            self._front,
            http="httptools",
            ws=cast(Any, partial(SocketProtocol, self)),
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            ws_max_size=_SOCKET_MESSAGE_BYTES_MAX,
            ws_max_queue=16,
            ws_per_message_deflate=False,
        )
        self.config.load()
        self._idle: dict[ApiProtocol, None] = {}  # the longest idle first

    def has_room(self) -> bool:
        """Makes some, if need be and if it can."""
        self._numbers.connections = len(self.state.connections)
        if len(self.state.connections) < self._broker.config.http_connections_max:
            return True
        if not self._idle:
            return False
        next(iter(self._idle)).give_way()
        return True

    def new_protocol(self) -> asyncio.Protocol:
        self._numbers.connections = len(self.state.connections) + 1
        return ApiProtocol(self)

    async def stop(self) -> None:
        tasks = [task for task in self.state.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for connection in list(self.state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        self.brokers.close()
        self._actions.close()

    # For its connections

    def note_idle(self, connection: ApiProtocol) -> None:
        self._idle[connection] = None

    def note_busy(self, connection: ApiProtocol) -> None:
        self._idle.pop(connection, None)

    @property
    def is_over_its_share(self) -> bool:
        return self.share.is_over


class ApiProtocol(HttpToolsProtocol):
    def __init__(self, serving: Serving) -> None:
        super().__init__(config=serving.config, server_state=serving.state, app_state={}, _loop=serving.loop)
        self._serving = serving
        self._pieces = Pieces(self._take, serving.share, serving.loop, self._on_all_taken)
        self._gate: GatedTransport
        self._is_in_head = False
        self._is_in_body = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._framing_bytes = 0  # around the parts of a body, and behind it
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None  # when it has been answered already
        self._holding: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gate = GatedTransport(cast(asyncio.Transport, transport), self.loop, self._serving.memory)
        self._pieces.transport = self._gate
        super().connection_made(cast(asyncio.Transport, self._gate))

    def data_received(self, data: bytes) -> None:
        self._serving.note_busy(self)
        self._pieces.add(data, self._piece_bytes)

    def _on_all_taken(self) -> None:
        if self._is_idle and not self.transport.is_closing():  # empty lines, perhaps: nobody waits for an answer
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(_KEEP_ALIVE_SECONDS, self.timeout_keep_alive_handler)
            self._serving.note_idle(self)

    def _piece_bytes(self) -> int:
        return BODY_PIECE_BYTES if self._is_in_body else PIECE_BYTES

    @property
    def _is_idle(self) -> bool:
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and not (self._is_in_head or self._is_in_body or self.pipeline or self._pieces)

    def _take(self, data: bytes) -> None:
        self._head_bytes += len(data)
        self._framing_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._limit_head()
        elif self._is_in_body:
            self._limit_body()

    def _limit_head(self) -> None:
        """More of it is to come."""
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS_MAX, self.transport.abort)

    def _refuse_head(self) -> None:
        self.transport.write(_HEAD_TOO_LARGE)
        self.transport.close()

    def _limit_body(self) -> None:
        """More of it is to come. Lengths of chunks, what they say besides, and headers behind the last one: nobody
        asks for them, and nobody else counts them."""
        is_empty = self._framing_bytes > HEAD_BYTES_MAX + _FRAMING_FACTOR * self._body_bytes
        is_unwanted = self.cycle.response_complete and self._body_bytes > _UNWANTED_BYTES_MAX
        if is_empty or is_unwanted:
            self.transport.abort()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # those behind a body are nobody's
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._is_in_body = True
        self._head_bytes = self._body_bytes = self._framing_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._pieces.end()
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._is_idle:
            self._serving.note_idle(self)
        elif self._is_in_body and not self.pipeline and self._body_timer is None:  # it is thrown away, for a moment
            self._body_timer = self.loop.call_later(_UNWANTED_SECONDS, self.transport.abort)
        if self._serving.is_over_its_share and self._holding is None:
            self._gate.stop_for("its share")
            self._holding = self.loop.call_later(_HELD_SECONDS, self._read_on)

    def _read_on(self) -> None:
        self._holding = None
        self._gate.go_on_for("its share")

    def pause_writing(self) -> None:
        self._gate.note_full()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._gate.note_room()
        super().resume_writing()

    def give_way(self) -> None:
        """Idle, and somebody else needs the place."""
        self._serving.note_busy(self)
        self.connections.discard(self)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._serving.note_busy(self)
        self._pieces.end()
        self._gate.forget()
        for timer in (self._head_timer, self._body_timer, self._holding):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        body = (
            b'{"type":"about:blank","title":"Bad Request","status":400,'
            b'"detail":"this is not an HTTP request: see RFC 9112"}'
        )
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()
