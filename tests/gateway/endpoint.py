"""A real endpoint on loopback: it verifies signatures, remembers what it was sent, and answers as a test wants."""

from __future__ import annotations

import base64
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

from aiohttp import web
from standardwebhooks import Webhook as Verifier

from clarion.consumers.cloud_events import signature
from clarion.model.push_endpoint import PushEndpoint

SECRET = "whsec_" + base64.b64encode(b"a secret of a test, 32 bytes    ").decode()

Respond = Callable[["Received"], Awaitable[web.StreamResponse] | web.StreamResponse]


class Received(NamedTuple):
    request: web.Request
    body: bytes

    @property
    def id(self) -> str:
        return self.request.headers["webhook-id"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """In all three modes, with the value as bytes under `value`."""
        headers, kind = self.request.headers, self.request.content_type
        if kind == "application/cloudevents-batch+json":
            return [_event(one) for one in json.loads(self.body)]
        if kind == "application/cloudevents+json":
            return [_event(json.loads(self.body))]
        found = {name[3:].lower(): unquote(text) for name, text in headers.items() if name.lower().startswith("ce-")}
        return [{**found, "value": self.body}]


def _event(event: dict[str, Any]) -> dict[str, Any]:
    if "data_base64" in event:
        return {**event, "value": base64.b64decode(event["data_base64"])}
    return {**event, "value": json.dumps(event["data"]).encode() if "data" in event else None}


class TestEndpoint:
    """It remembers keys, as a receiver should: `effects` is how often each value had one, in spite of repetitions."""

    __test__ = False  # for pytest

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.effects: Counter[bytes] = Counter()
        self._seen: set[str] = set()
        self.refused = 0  # requests whose signature was wrong
        self.respond: Respond = lambda received: web.Response(status=204)
        self.url = ""

    def answer(self, status: int, text: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.respond = lambda received: web.Response(status=status, text=text, headers=named)

    @property
    def values(self) -> list[bytes]:
        """Of all events that came, in the order they came, also of those that were refused."""
        return [event["value"] for one in self.received for event in one.events]

    @property
    def ids(self) -> list[str]:
        return [event["id"] for one in self.received for event in one.events]

    def push(self, **more: Any) -> PushEndpoint:
        return PushEndpoint(url=self.url, secret=SECRET, **{"allow_private": True, **more})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        received = Received(request, await request.read())
        if not _is_signed(received):
            self.refused += 1
            return web.Response(status=401)
        self.received.append(received)
        answer = self.respond(received)
        response = answer if isinstance(answer, web.StreamResponse) else await answer
        if response.status < 300:
            self.act(received)
        return response

    def act(self, received: Received) -> None:
        for event in received.events:
            if event.get("id") not in self._seen:
                self._seen.add(event.get("id", ""))
                self.effects[event["value"]] += 1


def _is_signed(received: Received) -> bool:
    """By the reference library where it can: it takes bodies that are text."""
    headers = dict(received.request.headers)
    try:
        received.body.decode()
    except UnicodeDecodeError:
        expected = signature(SECRET, received.id, headers["webhook-timestamp"], received.body)
        return headers["webhook-signature"] == expected
    Verifier(SECRET).verify(received.body, headers, json_parse=False)
    return True


@asynccontextmanager
async def endpoint(*, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[TestEndpoint]:
    found = TestEndpoint()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        host, taken = runner.addresses[0][:2]
        found.url = f"{'https' if tls else 'http'}://{host}:{taken}/hook"
        yield found
    finally:
        await runner.cleanup()
