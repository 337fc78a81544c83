"""What every request passes before the application sees it, and after: share of the loop, origin, time, numbers, log.

A browser may be made to send requests to a broker on its own machine by any page it shows. So a request that says that
it comes from another origin is refused (a GET for an image names none, and would still take a queue's messages: for
these, browsers say from what kind of site they come), and a broker that listens on loopback answers to loopback's names
alone (a name that somebody else's DNS points here is none of them).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect

from clarion.gateway.loop_share import Metered
from clarion.gateway.memory_room import MemoryRoom
from clarion.gateway.problems import MEDIA_TYPE, HttpProblem
from clarion.net.http import MakePage, is_loopback_name
from clarion.world import event_log
from clarion.world.events import Repeats

if TYPE_CHECKING:
    from uvicorn.server import ServerState

    from clarion.gateway.door import Gateway

log = event_log("gateway")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_CHUNK_SECONDS_MAX: Final = 30.0  # for the next part of a body to arrive
_BODY_BYTES_MAX: Final = (
    2 * 1024 * 1024
)  # decoded in one go: ten thousand settlements; messages have limits of their own
_BODY_SECONDS_MAX: Final = 60.0  # likewise, for all of it
_OF_MESSAGES: Final = re.compile(r"/v1/topics/[^/]+(/partitions/[^/]+)?/messages")
_PAGES_AT_A_TIME: Final = 16
_PAGE_CHUNK_BYTES: Final = 64 * 1024
_LINES: Final = "application/x-ndjson"
_LINES_BYTES_HELD: Final = 4 * 1024 * 1024
_SMALL_BYTES: Final = 64 * 1024  # an answer that is sent whoever reads: a thousand of them are 64 MB
_UNREAD: Final = (
    "too many answers of this broker are not read by who asked for them: ask again in a second, or for less"
)
_HEALTH: Final = ("/healthz", "/readyz")  # for everybody: they tell nothing of anybody
_OTHER_ROUTE: Final = "other"  # in the numbers: whatever strangers ask for makes no series
_TOO_BUSY: Final = "HTTP has its share of this broker (clarion.http.share): send again in a second, or send batches"
_ELSEWHERE: Final = ("cross-site", "same-site")  # as browsers say it, also of requests that name no origin
_SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


class Front:
    def __init__(self, app: Application, gateway: Gateway, state: ServerState, memory: MemoryRoom) -> None:
        self._app = app
        self._gateway = gateway
        self._state = state
        self._memory = memory
        self._loop = gateway.loop
        self._dated = -1
        self._pages_sending = 0
        self._access_lines = Repeats(100, 10.0)
        self._failure_lines = Repeats(10, 10.0)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self._date()
        call = _Call(scope, receive, send, self._memory)
        began = self._loop.time()
        try:
            await Metered(self._serve(call), self._gateway.share)
        finally:
            call.end()
            self._note(call, self._loop.time() - began)

    async def _serve(self, call: _Call) -> None:
        page = self._gateway.pages.get(call.path)
        if page is None:
            problem = self._refusal(call)
        else:
            problem = None if call.path in _HEALTH else self._misdirected(call.header(b"host"))
        try:
            if problem is None and page is not None and call.scope["type"] == "http":
                await self._answer_page(call, page)
                return
            if problem is None:
                await self._app(call.scope, call.receive, call.send)
                return
        except ClientDisconnect:
            return  # in the middle of its body: there is nobody to answer
        except HttpProblem as refused:  # while a body was being read by what knows nothing of problems
            problem = refused
        except Exception as error:
            # The boundary of a request: our own mistake costs whoever asked an answer, and nobody else.
            if self._failure_lines.allow(self._loop.time()):
                log.error("http_request_failed", path=call.path, error=error, **self._failure_lines.take_left_out())
            problem = HttpProblem(500, "this is a mistake of the broker's; its log says more")
        if not call.is_answered:
            await call.answer(problem)

    async def _answer_page(self, call: _Call, make: MakePage) -> None:
        """Few at a time: a page may have many megabytes, and a client may not read it."""
        if self._pages_sending >= _PAGES_AT_A_TIME:
            raise HttpProblem(503, "too many ask for this page at a time")
        self._pages_sending += 1
        try:
            page = await make()
            headers = [(b"content-type", page.content_type.encode()), (b"content-length", b"%d" % len(page.body))]
            await call.send({"type": "http.response.start", "status": page.status, "headers": headers})
            for at in range(0, len(page.body), _PAGE_CHUNK_BYTES):
                part = page.body[at : at + _PAGE_CHUNK_BYTES]
                await call.send({"type": "http.response.body", "body": part, "more_body": True})
            await call.send({"type": "http.response.body", "body": b""})
        finally:
            self._pages_sending -= 1

    def _refusal(self, call: _Call) -> HttpProblem | None:
        if self._gateway.share.is_over:
            self._gateway.numbers.refused_total += 1
            return HttpProblem(429, _TOO_BUSY, kind="too-busy")
        host, origin = call.header(b"host"), call.header(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            return HttpProblem(
                403, f"a page of {origin[:200]} may not use this broker: put a proxy in between that says who may"
            )
        if call.header(b"sec-fetch-site") in _ELSEWHERE and call.path.startswith("/v1/"):
            return HttpProblem(
                403, "a page of another site may not use this broker: put a proxy in between that says who may"
            )
        return self._misdirected(host)

    def _misdirected(self, host: str | None) -> HttpProblem | None:
        gateway = self._gateway
        if host is not None and gateway.is_on_loopback and not is_loopback_name(host, gateway.advertised_host):
            return HttpProblem(
                421, f"this broker listens on loopback and is not called {host[:200]}: use 127.0.0.1 or localhost"
            )
        return None

    def _date(self) -> None:
        """Once in a second, for all answers in it."""
        now = self._gateway.server.broker.clock.now_ms() // 1000
        if now != self._dated:
            self._dated = now
            self._state.default_headers = [(b"date", formatdate(now, usegmt=True).encode()), *_SECURITY]

    def _note(self, call: _Call, seconds: float) -> None:
        route = getattr(call.scope.get("route"), "path", _OTHER_ROUTE)
        numbers = self._gateway.numbers
        numbers.note(route, call.status, seconds)
        numbers.connections = len(self._state.connections)
        numbers.loop_seconds = self._gateway.share.spent_total
        if call.status >= 500 and self._failure_lines.allow(self._loop.time()):
            log.warning("http_failed", status=call.status, **call.fields(), **self._failure_lines.take_left_out())
        elif self._access_lines.allow(self._loop.time()):
            log.debug("http_served", status=call.status, ms=round(seconds * 1000, 1), **call.fields())


class _Call:
    """One request: what came of it so far."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, memory: MemoryRoom) -> None:
        self.scope = scope
        self._memory = memory
        self._held_bytes = 0  # of its body
        self._is_replaced = False  # its answer, by one that says that there is no room for it
        self._receive = receive
        self._send = send
        self._has_body = scope["type"] == "http"  # and not all of it has come
        self._is_limited = self._has_body and _OF_MESSAGES.fullmatch(self.path) is None
        self._body_bytes = 0
        self._body_until = asyncio.get_running_loop().time() + _BODY_SECONDS_MAX
        self.status = 0 if scope["type"] == "http" else 101
        self.is_answered = False

    @property
    def path(self) -> str:
        return str(self.scope.get("path", ""))

    def header(self, name: bytes) -> str | None:
        for known, value in self.scope.get("headers", ()):
            if known == name:
                return str(value, "latin-1")
        return None

    def fields(self) -> dict[str, object]:
        client = self.scope.get("client")
        return {
            "method": self.scope.get("method", "WEBSOCKET"),
            "path": self.path[:200],
            "client": client[0] if client else "",
        }

    async def receive(self) -> Message:
        if not self._has_body:
            return await self._receive()
        try:
            async with asyncio.timeout(_CHUNK_SECONDS_MAX):
                message = await self._receive()
        except TimeoutError as error:
            raise _too_slow(f"the body stopped coming for {_CHUNK_SECONDS_MAX:.0f} s: send it again") from error
        self._has_body = bool(message.get("more_body"))
        self._hold(len(message.get("body", b"")))
        if self._is_limited:
            self._check_body(len(message.get("body", b"")))
        return message

    def _hold(self, more_bytes: int) -> None:
        """Lines are written as they come: of those no more is held than one may have."""
        if more_bytes and (self._held_bytes < _LINES_BYTES_HELD or self.header(b"content-type") != _LINES):
            if not self._memory.take(more_bytes, self._held_bytes):
                detail = "too many bodies are on their way to this broker: send it again in a second, or less at a time"
                raise HttpProblem(503, detail, kind="too-busy", headers={"Connection": "close"})
            self._held_bytes += more_bytes

    def end(self) -> None:
        self._memory.give_back(self._held_bytes)
        self._held_bytes = 0

    def _check_body(self, more_bytes: int) -> None:
        """Of requests that are read by the framework, which has no limits."""
        self._body_bytes += more_bytes
        if self._body_bytes > _BODY_BYTES_MAX:
            detail = f"a body has at most {_BODY_BYTES_MAX} bytes here: send less at a time"
            raise HttpProblem(413, detail, kind="body-too-large")
        if self._has_body and asyncio.get_running_loop().time() > self._body_until:
            raise _too_slow(f"the body took longer than {_BODY_SECONDS_MAX:.0f} s: send it faster")

    async def send(self, message: Message) -> None:
        if self._is_replaced:
            return
        if message["type"] == "http.response.start":
            if self._memory.is_full_of_answers and _length(message) > _SMALL_BYTES:
                await self.answer(HttpProblem(503, _UNREAD, kind="too-busy"))
                self._is_replaced = True
                return
            self.status = message["status"]
        self.is_answered = True
        await self._send(message)

    async def answer(self, problem: HttpProblem) -> None:
        if self.scope["type"] == "websocket":
            self.status = problem.status
            await self._send({"type": "websocket.close", "code": 1013 if problem.status == 429 else 1008})
            return
        body = problem.body()
        headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        headers += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _length(message: Message) -> int:
    """Of an answer; a stream says none, and waits for its client by itself."""
    return next((int(value) for name, value in message.get("headers", ()) if name == b"content-length"), 0)


def _too_slow(detail: str) -> HttpProblem:
    return HttpProblem(408, detail, headers={"Connection": "close"})
