"""A very small HTTP server for a few read-only pages: metrics and health. GET only, one request per connection.

Pages that cost something have few places, and who finds none is told so at once; health has all the others.
Connections that have not asked yet give way to the next, the oldest first. So no crowd of slow scrapers keeps a probe
from its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from clarion.world import event_log

log = event_log("net")

_HEAD_BYTES_MAX: Final = 16 * 1024
_HEAD_SECONDS_MAX: Final = 5.0  # for a request to arrive
_SECONDS_MAX: Final = 10.0  # for its answer to be made and to leave
_SILENT_MAX: Final = 64  # connections that have not asked for anything yet
_LARGE_PAGES_MAX: Final = 16  # at a time: a few scrapers; more would be a mistake
_CONNECTIONS_MAX: Final = 512
_CHUNK_BYTES: Final = 64 * 1024  # of a page, for a client that does not read
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


MakePage = Callable[[], Awaitable[Page]]
BUSY: Final = Page.text(503, "too many ask for this page at a time\n")


class HttpServer:
    def __init__(self, pages: dict[str, MakePage], large_pages: dict[str, MakePage]) -> None:
        self._pages = pages
        self._large_pages = large_pages
        self._large_pages_sending = 0
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._silent: dict[asyncio.StreamWriter, None] = {}  # the oldest first

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
                path = await self._asked_for(reader, writer)
                async with asyncio.timeout(_SECONDS_MAX):
                    await self._answer(path, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("http_dropped", reason=repr(error))
            writer.transport.abort()
        finally:
            del self._serving[task]
            writer.close()

    async def _asked_for(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | Page:
        """The path, or what is wrong with the request."""
        if len(self._silent) >= _SILENT_MAX:
            next(iter(self._silent)).transport.abort()
        self._silent[writer] = None
        try:
            async with asyncio.timeout(_HEAD_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
        finally:
            self._silent.pop(writer, None)
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Page.text(400, "this is not an HTTP request\n")
        if words[0] != b"GET":
            return Page.text(405, "only GET is answered here\n")
        return words[1].split(b"?", 1)[0].decode("latin-1")

    async def _answer(self, path: str | Page, writer: asyncio.StreamWriter) -> None:
        if isinstance(path, Page):
            await _send(writer, path)
        elif path in self._pages:
            await _send(writer, await self._pages[path]())
        elif path in self._large_pages:
            await self._answer_at_length(path, writer)
        else:
            await _send(writer, Page.text(404, f"pages: {', '.join([*self._large_pages, *self._pages])}\n"))

    async def _answer_at_length(self, path: str, writer: asyncio.StreamWriter) -> None:
        if self._large_pages_sending >= _LARGE_PAGES_MAX:
            await _send(writer, BUSY)
            return
        self._large_pages_sending += 1
        try:
            await _send(writer, await self._large_pages[path]())
        finally:
            self._large_pages_sending -= 1


async def _send(writer: asyncio.StreamWriter, page: Page) -> None:
    """In chunks: who does not read holds one of them, not the page."""
    writer.write(_head(page))
    for at in range(0, len(page.body), _CHUNK_BYTES):
        writer.write(page.body[at : at + _CHUNK_BYTES])
        await writer.drain()
    await writer.drain()


def _head(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1")
