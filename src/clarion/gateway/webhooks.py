"""Webhooks over HTTP: one endpoint's connections, and what came of a request.

Where a connection goes is checked when its socket is made, by the very address that it connects to: a name that
resolves to something else a moment later, or a number that stands for another, changes nothing. Redirects are not
followed, proxies and passwords of the environment are not used, certificates are checked, of an answer no more is
read than says what went wrong.

This module imports aiohttp, which takes a while: `director` imports it in a thread when it is first needed.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any, Final, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from clarion.consumers.addresses import Network, complaint_about_address
from clarion.consumers.cloud_events import Webhook, signed_headers
from clarion.consumers.push import WINDOW_MAX, PushOutcome, outcome_of, retry_after_ms
from clarion.model.push_endpoint import PushEndpoint

_ANSWER_BYTES_MAX: Final = 4096  # read of an answer, so that its connection can be used again
_REASON_CHARS_MAX: Final = 200
_KEEP_ALIVE_SECONDS: Final = 4.0  # shorter than the 5 s of common servers: a request must not meet a closing connection
_LOOKUPS_MAX: Final = 32  # names that are looked up at a time, each in a thread
_PROMPT_SECONDS: Final = 2.0  # a name server answers within that, or not at all: then a thread waits for half a minute
_SLOW_MAX: Final = 96  # names for which nobody answers, besides: more threads than that are of no use to anybody
_REMEMBERED_MAX: Final = 10_000  # names for which nobody answered; then it is found out anew
_OWN_HEADERS: Final = {"user-agent": "clarion", "accept-encoding": "identity"}


class EndpointAnswer(NamedTuple):
    outcome: PushOutcome
    reason: str  # in words, for logs, health and dead letters
    retry_after_ms: int = 0


class WebhookClient:
    """One endpoint of one subscription."""

    def __init__(self, endpoint: PushEndpoint, lookups: NameLookups, private: tuple[Network, ...]) -> None:
        """`private`: networks that are not public and may be reached all the same, if the endpoint wants that too."""
        self._endpoint = endpoint
        self._url = URL(endpoint.url)
        self._networks = private if endpoint.allow_private else ()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=WINDOW_MAX,
                resolver=lookups,
                socket_factory=self._open_socket,
                keepalive_timeout=_KEEP_ALIVE_SECONDS,
            ),
            timeout=aiohttp.ClientTimeout(total=endpoint.timeout_ms / 1000),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )

    async def send(self, webhook: Webhook, now_ms: int) -> EndpointAnswer:
        headers = {**_OWN_HEADERS, **dict(self._endpoint.headers)}
        headers |= signed_headers(webhook, self._endpoint.secret, now_ms)
        try:
            async with self._session.post(
                self._url, data=webhook.body, headers=headers, allow_redirects=False
            ) as response:
                return await _answer(response, now_ms)
        except TimeoutError:
            return EndpointAnswer(PushOutcome.FAILED, f"no answer within {self._endpoint.timeout_ms} ms")
        except aiohttp.ClientConnectorError as error:
            return EndpointAnswer(PushOutcome.FAILED, _shortened(f"no connection: {error.os_error}"))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return EndpointAnswer(PushOutcome.FAILED, _shortened(f"no answer: {error or type(error).__name__}"))

    async def close(self) -> None:
        await self._session.close()

    def _open_socket(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, place = address
        complaint = complaint_about_address(str(place[0]), self._networks)
        if complaint is not None:
            raise OSError(f"{complaint}; allow_private of the endpoint and clarion.push.private.networks allow it")
        return socket.socket(family, kind, protocol)


async def _answer(response: aiohttp.ClientResponse, now_ms: int) -> EndpointAnswer:
    """Its status decides, also if the rest of it never comes."""
    try:
        text = await _beginning(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        text = f"and the rest of the answer is missing: {error or type(error).__name__}"
    outcome = outcome_of(response.status)
    if outcome is PushOutcome.DELIVERED:
        return EndpointAnswer(outcome, "")
    reason = f"HTTP {response.status} {response.reason or ''}".strip()
    if 300 <= response.status < 400:
        text = "redirects are not followed"
    wait_ms = retry_after_ms(response.headers.get("retry-after"), now_ms)
    return EndpointAnswer(outcome, _shortened(f"{reason}: {text}" if text else reason), wait_ms)


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """So much of the body as is read at all; a connection with more in it is closed."""
    found = b""
    while len(found) < _ANSWER_BYTES_MAX and (piece := await response.content.read(_ANSWER_BYTES_MAX - len(found))):
        found += piece
    if not response.content.at_eof():
        response.close()
    return " ".join(found[: 4 * _REASON_CHARS_MAX].decode(errors="replace").split())


def _shortened(text: str) -> str:
    """One line of plain characters: it comes from outside, and goes into logs and headers."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= _REASON_CHARS_MAX else plain[: _REASON_CHARS_MAX - 1] + "…"


class NameLookups(AbstractResolver):
    """Names by the system's resolver, in threads of their own: those of the event loop are for the disk.

    Who asks for a name that is being looked up waits for the same answer, so that a name server which is down costs
    one thread for each name. A name for which nobody answers takes no other's place: it counts among its like, and
    next time from the beginning.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], asyncio.Future[list[ResolveResult]]] = {}
        self._slow: set[tuple[str, int]] = set()  # of those
        self._were_slow: set[str] = set()
        self._has_changed = asyncio.Event()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        while (running := self._running.get((host, port))) is None:
            if self._may_start(host):
                running = self._start(host, port, family)
                break
            self._has_changed.clear()
            await self._has_changed.wait()  # for as long as the request may take
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Threads that still wait for a name server end by themselves, and hold up nobody."""

    def _may_start(self, host: str) -> bool:
        if host not in self._were_slow:
            return len(self._running) - len(self._slow) < _LOOKUPS_MAX
        if len(self._slow) >= _SLOW_MAX:
            raise OSError(f"no name server answers for {_SLOW_MAX} names, and none has for this one")
        return True

    def _start(self, host: str, port: int, family: int) -> asyncio.Future[list[ResolveResult]]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[ResolveResult]] = loop.create_future()
        patience = loop.call_later(_PROMPT_SECONDS, self._note_slow, host, port)

        def finish(found: list[ResolveResult] | OSError) -> None:
            del self._running[host, port]
            self._slow.discard((host, port))
            if loop.time() < patience.when():
                self._were_slow.discard(host)
            patience.cancel()
            self._has_changed.set()
            if isinstance(found, OSError):
                done.set_exception(found)
                done.exception()  # perhaps nobody waits any longer
            else:
                done.set_result(found)

        def look_up() -> None:
            try:
                found: list[ResolveResult] | OSError = _look_up(host, port, family)
            except OSError as error:
                found = error
            try:
                loop.call_soon_threadsafe(finish, found)
            except RuntimeError:  # the broker has ended meanwhile
                return

        threading.Thread(target=look_up, name="clarion-names", daemon=True).start()
        self._running[host, port] = done
        if host in self._were_slow:
            self._slow.add((host, port))
        return done

    def _note_slow(self, host: str, port: int) -> None:
        if len(self._were_slow) >= _REMEMBERED_MAX:
            self._were_slow.clear()
        self._were_slow.add(host)
        if len(self._slow) < _SLOW_MAX:
            self._slow.add((host, port))
            self._has_changed.set()


def _look_up(host: str, port: int, family: int) -> list[ResolveResult]:
    """OSError where there is no such name."""
    try:
        found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as error:  # a label that is too long
        raise OSError(str(error)) from error
    return [
        ResolveResult(
            hostname=host,
            host=str(place[0]),
            port=int(place[1]),
            family=family_found,
            proto=protocol,
            flags=int(socket.AI_NUMERICHOST | socket.AI_NUMERICSERV),
        )
        for family_found, _, protocol, _, place in found
    ]
