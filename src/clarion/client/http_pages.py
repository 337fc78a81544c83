"""Subscriptions over HTTP: asked for and made at the address that the brokers' settings tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlsplit

from clarion.client.broker_links import BROKER_SETTINGS, BrokerLinks
from clarion.client.errors import ClarionError, InvalidRequest, NotConnected, Timeout, Unsupported, refusal
from clarion.model.errors import ErrorCode
from clarion.net.channel import ChannelLostError

ADVERTISED: Final = "clarion.http.advertised"
_BODY_BYTES_MAX: Final = 16 * 1024 * 1024  # of an answer; a subscription's is a kilobyte
_GONE: Final = 404
_BUSY: Final = (429, 503)  # nothing was done; a moment later it may be
_BUSY_PAUSE_SECONDS: Final = 0.2


class HttpPages:
    """For one event loop; requests are made in its threads."""

    def __init__(self, links: BrokerLinks) -> None:
        self._links = links
        self._address: str | None = None

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, what: str) -> Any:
        """What the broker answers, of its JSON. A problem (RFC 9457) is raised as what it is: `what` was tried."""
        seconds = self._links.settings.timeout_ms / 1000
        deadline = asyncio.get_running_loop().time() + seconds
        is_repeated = False
        while True:
            is_late = asyncio.get_running_loop().time() > deadline
            try:
                address = self._address or await self._find()
                tls = self._links.settings.tls_context()
                status, found = await asyncio.to_thread(_exchange, address, method, f"/v1/{path}", body, seconds, tls)
            except NotConnected:
                if is_late:
                    raise
            except TimeoutError as error:
                raise Timeout(f"{what}: http://{address} did not answer in time") from error
            except (OSError, HTTPException) as error:
                self._address = None  # another broker may be there; what is made or deleted twice does no harm
                if is_late:
                    raise NotConnected(f"{what}: http://{address} cannot be reached: {error}") from error
                is_repeated = True
            else:
                self._address = address
                if status < 400 or (status == _GONE and method == "DELETE" and is_repeated):
                    return found
                if status not in _BUSY or is_late:
                    raise _problem(status, found, what)
            await asyncio.sleep(_BUSY_PAUSE_SECONDS)

    async def _find(self) -> str:
        """NotConnected where somebody who could tell is away: a broker that restarts serves HTTP again."""
        if not self._links.brokers:
            await self._links.describe([])
        away = None
        for broker in sorted(self._links.brokers):
            try:
                found = await self._links.setting(BROKER_SETTINGS, str(broker), ADVERTISED, broker=broker)
            except ChannelLostError as error:
                away = error
                continue
            if found:
                return found
        if away is not None:
            raise NotConnected(f"no broker answers: {away}. Is `clarion serve` running there?")
        raise Unsupported(
            "no broker serves HTTP, over which subscriptions are made; start one with an HTTP port (docs/http.md)"
        )


def quoted(name: str) -> str:
    return quote(name, safe="")


def _exchange(
    address: str, method: str, path: str, body: Mapping[str, Any] | None, seconds: float, tls: Any
) -> tuple[int, Any]:
    where = urlsplit(address if "://" in address else f"http://{address}")
    host, port = where.hostname or "", where.port
    if where.scheme == "https":
        connection: HTTPConnection = HTTPSConnection(host, port or 443, timeout=seconds, context=tls)
    else:
        connection = HTTPConnection(host, port or 80, timeout=seconds)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json", "Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, _decoded(answer.read(_BODY_BYTES_MAX))
    finally:
        connection.close()


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content.decode("utf-8", "replace")


def _problem(status: int, found: Any, what: str) -> ClarionError:
    told = found if isinstance(found, dict) else {"detail": str(found or "").strip()}
    words = told.get("detail") or told.get("title") or f"status {status}"
    code = told.get("code")
    if isinstance(code, str) and code in ErrorCode.__members__:
        return refusal(ErrorCode[code], what, words)
    return (InvalidRequest if status in (400, 422) else ClarionError)(f"{what}: {words}")
