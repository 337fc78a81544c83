"""The HTTP port: a few read-only pages of its own (metrics, health), and whoever serves all other paths.

Its own pages are GET only, one request per connection. Pages that cost something have few places, and who finds none
is told so at once; health has all the others. Connections that have not asked yet give way to the next, the oldest
first. So no crowd of slow scrapers, and no crowd of the API's clients, keeps a probe from its answer. On loopback the
large pages, which tell names of topics and groups, are for who calls this machine by one of loopback's names: a page in
a browser on it may have made its own name one of this machine's.

A connection that asks for anything else is handed over with the bytes that were read (`HttpApi`), and is its taker's
from then on: nothing of what serves the API is loaded before somebody asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, cast

from clarion.world import event_log
from clarion.world.tasks import start_task

log = event_log("net")

_HEAD_BYTES_MAX: Final = 64 * 1024  # a place in a topic of five hundred partitions is part of a query
_HEAD_SECONDS_MAX: Final = 5.0  # for a request to arrive
_SECONDS_MAX: Final = 10.0  # for its answer to be made and to leave
_TAKE_OVER_SECONDS_MAX: Final = 60.0  # the first request of the API waits for it to be loaded, on a busy machine
_SILENT_MAX: Final = 64  # connections that have not asked for anything yet
_LARGE_PAGES_MAX: Final = 16  # at a time: a few scrapers; more would be a mistake
_CONNECTIONS_MAX: Final = 512  # that are not handed over
_CHUNK_BYTES: Final = 64 * 1024  # of a page, for a client that does not read
_AHEAD_BYTES_MAX: Final = 128 * 1024  # with what follows a request's head, until somebody takes it
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    429: "Too Many Requests",
    503: "Service Unavailable",
}


class Page(NamedTuple):
    status: int
    content_type: str
    body: bytes
    headers: str = ""  # others, each with its line's end

    @classmethod
    def text(cls, status: int, text: str) -> Page:
        return cls(status, "text/plain; charset=utf-8", text.encode())


class HttpApi(Protocol):
    """Whoever serves the paths that are no pages of ours."""

    async def new_protocol(self) -> asyncio.Protocol | Page:
        """For one more connection; or a page that says why there can be none. It may take a while the first time."""
        ...

    async def stop(self) -> None: ...


MakePage = Callable[[], Awaitable[Page]]
BUSY: Final = Page.text(503, "too many ask for this page at a time\n")


class HttpServer:
    def __init__(
        self,
        pages: dict[str, MakePage],
        large_pages: dict[str, MakePage],
        api: HttpApi | None = None,
        own_name: Callable[[], str] = str,
    ) -> None:
        """`own_name`: the host by which it is known to clients, if it has another one than its address."""
        self._pages = pages
        self._large_pages = large_pages
        self._large_pages_sending = 0
        self._api = api
        self._own_name = own_name
        self._is_on_loopback = False
        self._server: asyncio.Server | None = None
        self._connections: dict[_HttpConnection, None] = {}
        self._silent: dict[_HttpConnection, None] = {}  # the oldest first

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _HttpConnection(self), host, port)
        taken = self._server.sockets[0].getsockname()
        self._is_on_loopback = is_loopback_name(str(taken[0]))
        return str(taken[0]), int(taken[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        answering = [one.answering for one in connections if one.answering is not None]
        if answering:
            await asyncio.wait(answering)

    def admit(self, connection: _HttpConnection) -> bool:
        if len(self._connections) >= _CONNECTIONS_MAX:
            return False
        if len(self._silent) >= _SILENT_MAX:
            next(iter(self._silent)).abort()
        self._connections[connection] = None
        self._silent[connection] = None
        return True

    def note_asked(self, connection: _HttpConnection) -> None:
        self._silent.pop(connection, None)

    def forget(self, connection: _HttpConnection) -> None:
        self._silent.pop(connection, None)
        self._connections.pop(connection, None)

    async def answer(self, connection: _HttpConnection, head: bytes) -> None:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            await connection.send(Page.text(400, "this is not an HTTP request\n"))
            return
        path = words[1].split(b"?", 1)[0].decode("latin-1")
        if self._api is not None and path not in self._pages and path not in self._large_pages:
            async with asyncio.timeout(_TAKE_OVER_SECONDS_MAX):
                await self._hand_over(connection, self._api)
            return
        async with asyncio.timeout(_SECONDS_MAX):
            await self._answer_page(connection, words[0], path, _host(head))

    async def _answer_page(self, connection: _HttpConnection, method: bytes, path: str, host: str | None) -> None:
        if method != b"GET":
            await connection.send(Page.text(405, "only GET is answered here\n"))
        elif path in self._pages:
            await connection.send(await self._pages[path]())
        elif (
            path in self._large_pages and host and self._is_on_loopback and not is_loopback_name(host, self._own_name())
        ):
            await connection.send(Page.text(421, "this broker listens on loopback: call it 127.0.0.1 or localhost\n"))
        elif path in self._large_pages:
            await self._answer_at_length(path, connection)
        else:
            await connection.send(Page.text(404, f"pages: {', '.join([*self._large_pages, *self._pages])}\n"))

    async def _answer_at_length(self, path: str, connection: _HttpConnection) -> None:
        if self._large_pages_sending >= _LARGE_PAGES_MAX:
            await connection.send(BUSY)
            return
        self._large_pages_sending += 1
        try:
            await connection.send(await self._large_pages[path]())
        finally:
            self._large_pages_sending -= 1

    async def _hand_over(self, connection: _HttpConnection, api: HttpApi) -> None:
        taker = await api.new_protocol()
        if isinstance(taker, Page):
            await connection.send(taker)
        else:
            self.forget(connection)
            connection.become(taker)


class _HttpConnection(asyncio.Protocol):
    """From its first byte to the end of its answer, or until it is handed over."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._arrived = bytearray()
        self._head_timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None  # while the client does not read
        self._is_lost = False
        self._is_paused = False
        self._is_handed_over = False
        self.answering: asyncio.Task[None] | None = None

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.admit(self):
            self._transport.close()
            return
        self._head_timer = asyncio.get_running_loop().call_later(_HEAD_SECONDS_MAX, self._drop, "no request came")

    def data_received(self, data: bytes) -> None:
        searched = max(0, len(self._arrived) - 3)
        self._arrived += data
        if self.answering is not None:
            if len(self._arrived) > _AHEAD_BYTES_MAX and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
        elif self._arrived.find(b"\r\n\r\n", searched) >= 0:
            self._asked()
        elif len(self._arrived) > _HEAD_BYTES_MAX:
            self._drop("its head is too long")

    def eof_received(self) -> bool:
        """Who has asked and says no more still gets an answer."""
        return self.answering is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._stop_waiting()
        self._server.forget(self)
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(ConnectionResetError("the client is gone"))

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # What becomes of it

    def abort(self) -> None:
        self._server.note_asked(self)  # it is silent no longer: another one is the oldest
        self._transport.abort()

    async def send(self, page: Page) -> None:
        """In chunks: who does not read holds one of them, not the page."""
        await self._write(_head(page))
        for at in range(0, len(page.body), _CHUNK_BYTES):
            await self._write(page.body[at : at + _CHUNK_BYTES])

    def become(self, taker: asyncio.Protocol) -> None:
        """Who takes it reads the request from its first byte on."""
        if self._is_lost:
            return
        self._is_handed_over = True
        self._transport.set_protocol(taker)
        taker.connection_made(self._transport)
        if self._is_paused:
            self._transport.resume_reading()
        taker.data_received(bytes(self._arrived))

    async def _write(self, data: bytes) -> None:
        if self._is_lost:
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)
        if self._writable is not None:
            await self._writable

    def _asked(self) -> None:
        self._stop_waiting()
        self._server.note_asked(self)
        self.answering = start_task(self._answer(), "answer over HTTP")

    async def _answer(self) -> None:
        try:
            await self._server.answer(self, bytes(self._arrived))
        except (TimeoutError, ConnectionError) as error:
            self._drop(repr(error))
        finally:
            if not self._is_handed_over:
                self._transport.close()

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _drop(self, reason: str) -> None:
        log.debug("http_dropped", reason=reason)
        self._transport.abort()


def is_loopback_name(host: str, own_name: str = "") -> bool:
    """Whether a `Host` is one of loopback's own, or the one by which this machine is known to clients."""
    name = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    name = name.strip("[]").lower()
    if name in ("localhost", "127.0.0.1") or name.endswith(".localhost") or (own_name and name == own_name.lower()):
        return True
    from ipaddress import ip_address  # a start does without it

    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _host(head: bytes) -> str | None:
    for line in head.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"host":
            return value.strip().decode("latin-1")
    return None


def _head(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n{page.headers}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1")
