"""All that a broker has of the HTTP API until somebody asks for it: who takes a connection, and what loads the rest.

FastAPI and uvicorn are imported, and the application is put together, in a thread: a second's work on a slow machine,
in which Kafka's clients go on. Nothing here may import them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from clarion.broker.http_numbers import HttpNumbers
from clarion.broker.threads import in_thread
from clarion.gateway.loop_share import LoopShare
from clarion.net.http import MakePage, Page, is_loopback_name
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.server import BrokerServer
    from clarion.gateway.serving import Serving

log = event_log("gateway")

_SERVING: Final = "clarion.gateway.serving"
_CONNECTION_SECONDS: Final = 0.0003  # of the loop, for a connection that comes, is handed over and goes
_HELD_SECONDS: Final = 1.0  # as a connection that stays is held, when HTTP is over its share
_RETRY: Final = "Retry-After: 1\r\n"
_PROBLEM: Final = "application/problem+json"
BUSY: Final = Page(
    429,
    _PROBLEM,
    b'{"type":"urn:clarion:problem:too-busy","title":"Too busy","status":429,"detail":'
    b'"HTTP has its share of this broker (clarion.http.share): send again in a second, or send batches"}',
    _RETRY,
)
FULL: Final = Page(
    503,
    _PROBLEM,
    b'{"type":"urn:clarion:problem:too-many-connections","title":"Too many connections","status":503,"detail":'
    b'"this broker has as many HTTP connections as it takes (clarion.http.max.connections): close some"}',
    _RETRY,
)


class Gateway:
    """Implements `net.http.HttpApi`."""

    def __init__(self, server: BrokerServer, numbers: HttpNumbers, pages: Mapping[str, MakePage]) -> None:
        """`pages`: those that a new connection is answered at once, also for who asks on one of the API's."""
        self.server = server
        self.numbers = numbers
        self.pages = pages
        self.loop = asyncio.get_running_loop()
        self.share = LoopShare(lambda: server.broker.config.http_share, self.loop)
        self._serving: Serving | None = None
        self._loading: asyncio.Task[Serving] | None = None

    @cached_property
    def is_on_loopback(self) -> bool:
        address = self.server.metrics_address
        return address is not None and is_loopback_name(address.host)

    @property
    def advertised_host(self) -> str:
        return self.server.broker.config.http_advertised.rpartition(":")[0]

    async def new_protocol(self) -> asyncio.Protocol | Page:
        self.share.spend(_CONNECTION_SECONDS)
        if self.share.is_over:
            await asyncio.sleep(_HELD_SECONDS)  # who comes again at once, with a new connection, waits as well
        if self.share.is_over:
            self.numbers.refused_total += 1
            return BUSY
        serving = self._serving or await self._load()
        if not serving.has_room():
            self.numbers.refused_total += 1
            return FULL
        return serving.new_protocol()

    async def stop(self) -> None:
        if self._loading is not None and self._serving is None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._serving is not None:
            await self._serving.stop()

    async def _load(self) -> Serving:
        """Whoever comes while it is being loaded waits for the same one."""
        if self._loading is None or (self._loading.done() and self._serving is None):
            self._loading = start_task(self._load_aside(), "loading the HTTP API")
        return await asyncio.shield(self._loading)

    async def _load_aside(self) -> Serving:
        began = self.loop.time()
        serving = cast("Serving", await in_thread(lambda: import_module(_SERVING).Serving(self)))
        self._serving = serving
        log.info("http_api_loaded", seconds=round(self.loop.time() - began, 3))
        return serving
