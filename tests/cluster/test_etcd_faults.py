"""etcd on a bad day: members killed and frozen, answers lost, tokens forgotten, versions that lose data."""

from __future__ import annotations

import asyncio
import json
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clarion.cluster.changes import change
from clarion.cluster.coordination import CoordinationStore, Delete, OutcomeUnknownError, Put, StoreError, absent
from clarion.cluster.etcd_client import EtcdAddress
from clarion.cluster.etcd_store import EtcdStore
from tests.etcd import MISSING, EtcdProcess, etcd_cluster, is_installed

PATIENCE_SECONDS = 30
pytestmark = pytest.mark.skipif(not is_installed(), reason=MISSING)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[EtcdProcess]]:
    servers = etcd_cluster(tmp_path, 3)
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[EtcdProcess]:
    (server,) = etcd_cluster(tmp_path, 1)
    yield server
    server.kill()


@asynccontextmanager
async def opened(servers: list[EtcdProcess], **who: str) -> AsyncIterator[EtcdStore]:
    address = EtcdAddress(tuple(server.endpoint for server in servers), **who)
    store = await EtcdStore.open(address, f"{uuid.uuid4()}/", attempt_seconds=3, poll_seconds=0.5)
    try:
        yield store
    finally:
        await store.close()


async def put_surely(store: CoordinationStore, key: str) -> None:
    """However many leaders have to be elected first."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                assert await change(store, [absent(key)], [Put(key, b"")], lambda _: None)
                return
            except OutcomeUnknownError:
                pass


async def watched(store: CoordinationStore, from_revision: int, told: list[str]) -> None:
    async for one in store.watch("k", from_revision):
        told += [event.key for event in one.events]


async def until_told(told: list[str], expected: list[str]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(told) < len(expected):
            await asyncio.sleep(0.02)
    assert told == expected


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_calls_and_watches_go_on_when_the_member_in_use_is_gone(members, fault):
    """Frozen is the worse one: its stream stays open and says nothing, for ever."""
    async with opened(members) as store:
        told: list[str] = []
        watching = asyncio.ensure_future(watched(store, (await store.range("")).revision + 1, told))
        await put_surely(store, "k0")
        await until_told(told, ["k0"])
        getattr(members[0], fault)()  # the first endpoint: everything goes there
        for number in range(1, 6):
            await put_surely(store, f"k{number}")
        await until_told(told, [f"k{number}" for number in range(6)])
        watching.cancel()
        members[0].thaw() if fault == "freeze" else None


async def test_a_transaction_without_an_answer_has_an_unknown_outcome_and_asking_again_settles_it(lone):
    async with opened([lone]) as store:
        await put_surely(store, "k0")
        lone.freeze()
        asked = asyncio.ensure_future(change(store, [absent("k1")], [Put("k1", b"")], lambda _: None))
        with pytest.raises(OutcomeUnknownError):
            await store.transact([absent("k2")], [Put("k2", b"")])
        lone.thaw()
        assert await asked, "whichever of its attempts has succeeded"
        await store.transact((), [Delete("k2")])
        assert [entry.key for entry in (await store.range("")).entries] == ["k0", "k1"]


async def test_a_restart_of_etcd_costs_a_watch_nothing(lone):
    async with opened([lone]) as store:
        told: list[str] = []
        watching = asyncio.ensure_future(watched(store, (await store.range("")).revision + 1, told))
        await put_surely(store, "k0")
        await asyncio.to_thread(lone.kill)
        await asyncio.to_thread(lone.start)
        await put_surely(store, "k1")
        await until_told(told, ["k0", "k1"])
        watching.cancel()


def call(server: EtcdProcess, path: str, body: dict[str, object]) -> None:
    host, port = server.endpoint
    request = urllib.request.Request(f"http://{host}:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


async def test_a_user_logs_in_and_again_when_etcd_has_forgotten_the_token(lone):
    call(lone, "/v3/auth/user/add", {"name": "root", "password": "secret"})
    call(lone, "/v3/auth/user/grant", {"user": "root", "role": "root"})
    call(lone, "/v3/auth/enable", {})
    async with opened([lone], user="root", password="secret") as store:
        told: list[str] = []
        watching = asyncio.ensure_future(watched(store, (await store.range("")).revision + 1, told))
        await put_surely(store, "k0")
        await asyncio.to_thread(lone.kill)
        await asyncio.to_thread(lone.start)
        await put_surely(store, "k1")
        await until_told(told, ["k0", "k1"])
        watching.cancel()
    async with opened([lone]) as anonymous:
        with pytest.raises(StoreError, match=r"etcd refuses: .*user name is empty"):
            await anonymous.get("k0")
    async with opened([lone], user="root", password="wrong") as mistaken:
        with pytest.raises(StoreError, match="authentication failed"):
            await mistaken.get("k0")


async def test_nobody_there_is_said_at_once():
    with pytest.raises(StoreError, match="no endpoint of etcd answers"):
        await EtcdStore.open(EtcdAddress((("127.0.0.1", 1),)), "x/")


@pytest.mark.parametrize(
    ("version", "is_good"), [("3.3.25", False), ("3.5.1", False), ("3.4.0", True), ("3.5.21", True)]
)
async def test_versions_that_lose_data_or_lack_the_gateway_are_refused(version, is_good):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"etcdserver": version, "etcdcluster": version}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        address = EtcdAddress((server.sockets[0].getsockname(),))
        if is_good:
            await (await EtcdStore.open(address, "x/")).close()
        else:
            with pytest.raises(StoreError, match=f"etcd {version} must not be used"):
                await EtcdStore.open(address, "x/")
