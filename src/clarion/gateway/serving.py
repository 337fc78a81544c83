"""uvicorn's protocols on the broker's event loop: connections that were handed over, their limits, and their end.

What uvicorn leaves open is closed here: a head has a length and a time in which it must have come, also the second one
of a connection; idle connections give way to new ones; whoever asks while HTTP has had its share of the loop is read
from again a second later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from clarion.broker.subscription_actions import SubscriptionActions
from clarion.gateway.app import build_app
from clarion.gateway.brokers import Brokers
from clarion.gateway.front import Front
from clarion.world import thread_seconds

if TYPE_CHECKING:
    from clarion.gateway.door import Gateway

HEAD_BYTES_MAX: Final = 64 * 1024  # of one request: names, keys and headers in a query included
_HEAD_SECONDS_MAX: Final = 10.0
_KEEP_ALIVE_SECONDS: Final = 75  # as proxies and clients expect; idle ones give way to others before
_HELD_SECONDS: Final = 1.0  # the pause of a connection that asked while HTTP was over its share, as Retry-After says
_SOCKET_MESSAGE_BYTES_MAX: Final = 1024 * 1024  # of a WebSocket: credits and settlements are small
_STOP_SECONDS: Final = 1.0  # for answers that are under way


class Serving:
    """Made in a thread; everything else is called on the loop."""

    def __init__(self, gateway: Gateway) -> None:
        self.loop = gateway.loop
        self._share = gateway.share
        self._numbers = gateway.numbers
        self._broker = gateway.server.broker
        self.state = ServerState()
        self.brokers = Brokers(gateway.server.broker)
        self._actions = SubscriptionActions(gateway.server.broker)
        self._app = build_app(gateway.server, self.brokers, self._actions, gateway.share)
        self._front = Front(self._app, gateway, self.state)
        self.config = Config(
            self._front,
            http="httptools",
            ws="websockets-sansio",
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

    def spend(self, seconds: float) -> None:
        self._share.spend(seconds)

    @property
    def is_over_its_share(self) -> bool:
        return self._share.is_over


class ApiProtocol(HttpToolsProtocol):
    def __init__(self, serving: Serving) -> None:
        super().__init__(config=serving.config, server_state=serving.state, app_state={}, _loop=serving.loop)
        self._serving = serving
        self._is_in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._holding: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        began = thread_seconds()
        self._serving.note_busy(self)
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._limit_head()
        self._serving.spend(thread_seconds() - began)

    def _limit_head(self) -> None:
        """More of it is to come."""
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS_MAX, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self.pipeline:
            self._serving.note_idle(self)
        if self._serving.is_over_its_share and self._holding is None:
            self.flow.pause_reading()
            self._holding = self.loop.call_later(_HELD_SECONDS, self._read_on)

    def _read_on(self) -> None:
        self._holding = None
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def give_way(self) -> None:
        """Idle, and somebody else needs the place."""
        self._serving.note_busy(self)
        self.connections.discard(self)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._serving.note_busy(self)
        for timer in (self._head_timer, self._holding):
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
