"""One webhook, sent to a real endpoint: what arrives, what counts as delivered, and where nothing is ever sent."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from clarion.broker.settings import OWN_SETTINGS
from clarion.consumers.addresses import read_networks
from clarion.consumers.cloud_events import Webhook
from clarion.consumers.push import RETRY_AFTER_MAX_MS, PushOutcome
from clarion.gateway import webhooks
from clarion.gateway.webhooks import EndpointAnswer, NameLookups, WebhookClient, _look_up
from clarion.model.errors import KafkaError
from clarion.model.push_endpoint import PushEndpoint
from clarion.world import SystemClock
from tests.broker.harness import until
from tests.gateway.endpoint import SECRET, TestEndpoint, endpoint

LOOPBACK = read_networks(["127.0.0.0/8", "::1/128"])
WEBHOOK = Webhook("msg_1", {"content-type": "text/plain"}, b"hello")


async def send(to: PushEndpoint, *, private: Any = LOOPBACK, webhook: Webhook = WEBHOOK) -> EndpointAnswer:
    client = WebhookClient(to, NameLookups(), private)
    try:
        return await client.send(webhook, SystemClock().now_ms())
    finally:
        await client.close()


def at(url: str, **more: Any) -> PushEndpoint:
    return PushEndpoint(url=url, secret=SECRET, **{"allow_private": True, **more})


def moved(place: TestEndpoint, host: str) -> str:
    """The same port, under another name of the machine."""
    return place.url.replace("127.0.0.1", host)


async def test_a_webhook_arrives_signed_with_the_endpoints_own_headers() -> None:
    async with endpoint() as place:
        answer = await send(place.push(headers=(("x-team", "billing"), ("authorization", "Bearer 1"))))
        (received,) = place.received
    assert answer == EndpointAnswer(PushOutcome.DELIVERED, "")
    assert received.body == b"hello"
    assert received.request.method == "POST"
    assert received.request.headers["x-team"] == "billing"
    assert received.request.headers["authorization"] == "Bearer 1"
    assert received.request.headers["content-type"] == "text/plain"


@pytest.mark.parametrize(
    ("status", "outcome", "words"),
    [
        (200, PushOutcome.DELIVERED, ""),
        (400, PushOutcome.FAILED, "HTTP 400 Bad Request: no such order"),
        (410, PushOutcome.GONE, "HTTP 410 Gone: no such order"),
        (500, PushOutcome.FAILED, "HTTP 500 Internal Server Error: no such order"),
    ],
)
async def test_what_the_endpoint_says_is_the_reason(status: int, outcome: PushOutcome, words: str) -> None:
    async with endpoint() as place:
        place.answer(status, "no such\n  order")
        assert await send(place.push()) == EndpointAnswer(outcome, words)


async def test_an_endpoint_may_say_when_to_come_again() -> None:
    async with endpoint() as place:
        place.answer(429, retry_after="17")
        assert (await send(place.push())).retry_after_ms == 17_000
        place.answer(503, retry_after="999999")
        assert (await send(place.push())).retry_after_ms == RETRY_AFTER_MAX_MS


async def test_what_an_endpoint_says_is_one_short_line() -> None:
    async with endpoint() as place:
        place.answer(500, "line\x1b[31m\n" * 5_000)
        reason = (await send(place.push())).reason
    assert reason.isprintable()
    assert len(reason) <= 200


async def test_an_endpoint_that_does_not_answer_is_not_waited_for_forever() -> None:
    async with endpoint() as place:
        never = asyncio.Event()

        async def wait(received: object) -> web.Response:
            await never.wait()
            return web.Response()

        place.respond = wait
        assert await send(place.push(timeout_ms=200)) == EndpointAnswer(PushOutcome.FAILED, "no answer within 200 ms")
        never.set()


async def test_nobody_at_the_address_is_a_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        answer = await send(at(f"http://127.0.0.1:{taken.getsockname()[1]}/"))
    assert answer.outcome is PushOutcome.FAILED
    assert answer.reason.startswith("no connection: ")


async def test_an_answer_without_an_end_is_not_read_to_its_end() -> None:
    async with endpoint() as place:
        sent = 0

        async def flood(received: Any) -> web.StreamResponse:
            nonlocal sent
            response = web.StreamResponse(status=200)
            await response.prepare(received.request)
            try:
                while True:
                    await response.write(b"x" * 65_536)
                    sent += 65_536
            except ConnectionError:
                return response

        place.respond = flood
        assert (await send(place.push(timeout_ms=60_000))).outcome is PushOutcome.DELIVERED


async def test_a_status_counts_although_the_rest_of_the_answer_never_comes() -> None:
    async with endpoint() as place:
        never = asyncio.Event()

        async def stall(received: Any) -> web.StreamResponse:
            response = web.StreamResponse(status=200)
            await response.prepare(received.request)
            await never.wait()
            return response

        place.respond = stall
        assert (await send(place.push(timeout_ms=300))).outcome is PushOutcome.DELIVERED
        never.set()


async def test_connections_are_used_again() -> None:
    async with endpoint() as place:
        client = WebhookClient(place.push(), NameLookups(), LOOPBACK)
        for _ in range(5):
            await client.send(WEBHOOK, SystemClock().now_ms())
        await client.close()
        assert len({one.request.transport for one in place.received} | {None}) <= 2
        assert len(place.received) == 5


# Where nothing is sent


async def test_private_addresses_are_refused_unless_both_the_endpoint_and_the_broker_allow_them() -> None:
    async with endpoint() as place:
        assert (await send(place.push())).outcome is PushOutcome.DELIVERED
        for to, private in ((place.push(), ()), (place.push(allow_private=False), LOOPBACK)):
            answer = await send(to, private=private)
            assert answer.outcome is PushOutcome.FAILED
            assert "127.0.0.1 is not a public address" in answer.reason
        assert len(place.received) == 1


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f000001", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
async def test_no_other_name_of_a_private_address_gets_through(host: str) -> None:
    async with endpoint() as place:
        answer = await send(at(moved(place, host)), private=())
        assert answer.outcome is PushOutcome.FAILED
        assert "is not a public address" in answer.reason or "is not a canonical IPv4 address" in answer.reason
        assert place.received == []


async def test_an_allowed_network_is_not_all_networks() -> None:
    async with endpoint() as place:
        answer = await send(place.push(), private=read_networks(["127.0.0.2/32"]))
        assert answer.outcome is PushOutcome.FAILED
        assert place.received == []


async def test_redirects_are_not_followed() -> None:
    async with endpoint() as place, endpoint() as elsewhere:
        place.answer(307, location=elsewhere.url)
        answer = await send(place.push())
        assert answer == EndpointAnswer(PushOutcome.FAILED, "HTTP 307 Temporary Redirect: redirects are not followed")
        assert elsewhere.received == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoint() as place, endpoint() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert (await send(place.push())).outcome is PushOutcome.DELIVERED
        assert proxy.received == []


@asynccontextmanager
async def self_signed(folder: Path) -> AsyncIterator[TestEndpoint]:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out cert.pem -subj /CN=127.0.0.1"
    command += " -addext subjectAltName=IP:127.0.0.1"
    await asyncio.to_thread(subprocess.run, command.split(), cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    async with endpoint(tls=context) as place:
        yield place


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    async with self_signed(tmp_path) as place:
        answer = await send(place.push())
        assert answer.outcome is PushOutcome.FAILED
        assert "certificate" in answer.reason.lower()
        assert place.received == []


# Names


async def test_a_name_that_does_not_exist_is_a_failure() -> None:
    answer = await send(at("http://there-is-no-such-name.invalid/"))
    assert answer.outcome is PushOutcome.FAILED
    assert answer.reason.startswith("no connection: ")


async def test_who_asks_for_a_name_that_is_being_looked_up_waits_for_the_same_answer() -> None:
    lookups = NameLookups()
    first, second = await asyncio.gather(lookups.resolve("localhost", 80), lookups.resolve("localhost", 80))
    assert first is second
    assert {one["host"] for one in first} <= {"127.0.0.1", "::1"}
    assert await lookups.resolve("localhost", 80) is not first  # names may change their addresses


@pytest.mark.parametrize("hanging", [32, 96])
async def test_names_for_which_nobody_answers_keep_no_other_from_being_looked_up(
    monkeypatch: pytest.MonkeyPatch, hanging: int
) -> None:
    with _hanging_names(monkeypatch):
        lookups = NameLookups()
        in_vain = [asyncio.ensure_future(lookups.resolve(f"hangs-{number}", 80)) for number in range(hanging)]
        assert await asyncio.wait_for(lookups.resolve("localhost", 80), 30)
    assert all(isinstance(one, OSError) for one in await asyncio.gather(*in_vain, return_exceptions=True))


async def test_more_names_than_threads_hang_once_and_then_only_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups, names = NameLookups(), [f"hangs-{number}" for number in range(200)]
    with _hanging_names(monkeypatch):
        first = [asyncio.ensure_future(lookups.resolve(name, 80)) for name in names]
        await until(lambda: len(lookups._were_slow) == 128)
        assert sum(one.name == "clarion-names" for one in threading.enumerate()) == 128
        for one in first[128:]:
            one.cancel()  # as a request does whose time is over
    await asyncio.gather(*first, return_exceptions=True)
    with _hanging_names(monkeypatch):
        again = [asyncio.ensure_future(lookups.resolve(name, 80)) for name in names[:128]]
        done, _ = await asyncio.wait(again, return_when=asyncio.FIRST_COMPLETED)
        assert all("none has for this one" in str(one.exception()) for one in done)
        assert await asyncio.wait_for(lookups.resolve("localhost", 80), 30)
    await asyncio.gather(*again, return_exceptions=True)


@contextmanager
def _hanging_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody answers for some names, until the end."""
    given_up = threading.Event()

    def look_up(host: str, port: int, family: int) -> Any:
        if host.startswith("hangs"):
            given_up.wait(60)
            raise OSError("no name server answers")
        return _look_up(host, port, family)

    with monkeypatch.context() as patch:
        patch.setattr(webhooks, "_look_up", look_up)
        patch.setattr(webhooks, "_PROMPT_SECONDS", 0.02, raising=False)
        try:
            yield
        finally:
            given_up.set()


@pytest.mark.parametrize("text", ["10.0.0.1/8", "everything", "127.0.0.0/8,nowhere"])
def test_a_broker_is_not_told_of_networks_that_are_none(text: str) -> None:
    setting = OWN_SETTINGS["clarion.push.private.networks"].declared
    assert setting.read("127.0.0.0/8,fd00::/8") == ("127.0.0.0/8", "fd00::/8")
    with pytest.raises(KafkaError):
        setting.read(text)
