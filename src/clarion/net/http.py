"""A very small HTTP server for a few read-only pages: metrics and health. GET only, one request per connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from clarion.world import event_log

log = event_log("net")

_HEAD_BYTES_MAX: Final = 16 * 1024
_SECONDS_MAX: Final = 10.0  # for a request to arrive and its answer to leave
_CONNECTIONS_MAX: Final = 64  # a few scrapers and probes; more would be a mistake
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class Page(NamedTuple):
    status: int
    content_type: str
    body: bytes

    @classmethod
    def text(cls, status: int, text: str) -> Page:
        return cls(status, "text/plain; charset=utf-8", text.encode())


class HttpServer:
    def __init__(self, pages: dict[str, Callable[[], Awaitable[Page]]]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES_MAX)
        taken = self._server.sockets[0].getsockname()
        return str(taken[0]), int(taken[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        serving = dict(self._serving)
        for writer in serving.values():
            writer.transport.abort()
        if serving:
            await asyncio.wait(serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._serving[task] = writer
        try:
            if len(self._serving) <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_SECONDS_MAX):
                    writer.write(_encode(await self._answer(reader)))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("http_dropped", reason=repr(error))
        finally:
            del self._serving[task]
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Page:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Page.text(400, "this is not an HTTP request\n")
        if words[0] != b"GET":
            return Page.text(405, "only GET is answered here\n")
        page = self._pages.get(words[1].split(b"?", 1)[0].decode("latin-1"))
        return await page() if page is not None else Page.text(404, f"pages: {', '.join(self._pages)}\n")


def _encode(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + page.body
