"""Processes that share one store on a machine, killed and frozen: who owns it, whose leases end when, what is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from clarion.cluster.coordination import CompactedError, CoordinationStore, OutcomeUnknownError, Put
from clarion.cluster.local_store import LocalStore
from tests.cluster.stores import no_failure
from tests.waiting import wait_for

PATIENCE_SECONDS = 30
LONG = 3600.0  # a lease that cannot end by its time in a test
SHORT = 1.0


class Peer:
    def __init__(self, folder: Path, name: str, ttl_seconds: float) -> None:
        command = [sys.executable, "-m", "tests.cluster.local_process", str(folder), name, str(ttl_seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.words: Counter[str] = Counter()
        self.name = name
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()
        wait_for(lambda: self.is_ready, seconds=PATIENCE_SECONDS, what=f"{name} is ready")

    @property
    def is_ready(self) -> bool:
        return bool(self.words["ready owner"] or self.words["ready client"])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.words[line.strip()] += 1


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(name: str, ttl_seconds: float = LONG) -> Peer:
        peers.append(Peer(tmp_path, name, ttl_seconds))
        return peers[-1]

    yield start
    for peer in peers:
        peer.kill()


async def wait_in_thread(condition: Callable[[], bool]) -> None:
    """Not on the loop: the store of this process may be the one that the others wait for."""
    await asyncio.to_thread(wait_for, condition, seconds=PATIENCE_SECONDS)


async def surely(ask: Callable[[], Awaitable[object]]) -> object:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await ask()
            except OutcomeUnknownError:
                pass


async def alive(store: CoordinationStore) -> list[str]:
    found = await surely(lambda: store.range("alive/"))
    return [entry.key.removeprefix("alive/") for entry in found.entries]


async def until_alive(store: CoordinationStore, expected: list[str]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await alive(store) != expected:
            await asyncio.sleep(0.01)


async def test_when_the_owner_dies_another_serves_on_and_only_the_dead_ones_leases_have_ended(tmp_path, start):
    owner, other = start("a"), start("b")  # nothing of the store is in this process yet
    assert (owner.words["ready owner"], other.words["ready client"]) == (1, 1)
    store = await LocalStore.open(str(tmp_path), no_failure)
    assert await alive(store) == ["a", "b"]
    owner.kill()
    await until_alive(store, ["b"])
    before = other.words["counted"]
    await wait_in_thread(lambda: other.words["counted"] > before + 3)
    assert await alive(store) == ["b"]
    await store.close()


async def test_who_asks_again_at_once_hears_of_the_next_owner_all_the_same(tmp_path):
    """The connection is closing, and nobody has told the store yet: asking must not take every turn of the loop."""
    owner = await LocalStore.open(str(tmp_path), no_failure)
    other = await LocalStore.open(str(tmp_path), no_failure)
    other._store._writer.close()
    await surely(lambda: other.get("n"))
    await other.close()
    await owner.close()


async def test_a_process_that_dies_loses_its_leases_at_once_and_one_that_is_frozen_by_their_time(tmp_path, start):
    store = await LocalStore.open(str(tmp_path), no_failure)
    assert store.is_owner
    killed = await asyncio.to_thread(start, "killed")
    frozen = await asyncio.to_thread(start, "frozen", SHORT)
    await until_alive(store, ["frozen", "killed"])
    killed.kill()
    await until_alive(store, ["frozen"])
    frozen.send(signal.SIGSTOP)
    await until_alive(store, [])
    frozen.send(signal.SIGCONT)
    await store.close()


async def test_a_frozen_owner_stops_decisions_and_they_resume_with_it(tmp_path, start):
    owner = start("owner")
    store = await LocalStore.open(str(tmp_path), no_failure, answer_seconds=1.0)
    owner.send(signal.SIGSTOP)
    with pytest.raises(OutcomeUnknownError):
        await store.transact((), [Put("a", b"")])
    owner.send(signal.SIGCONT)
    await surely(lambda: store.transact((), [Put("a", b"")]))
    await store.close()


async def test_counting_loses_no_count_however_often_the_owner_is_killed(tmp_path, start):
    """Counted: it is in the number. Unknown: it may be. Nothing else is."""
    chance = random.Random(7)
    store = await LocalStore.open(str(tmp_path), no_failure)
    peers = [await asyncio.to_thread(start, f"first{number}") for number in range(3)]
    await store.close()  # from here on one of the peers is the owner
    gone: list[Peer] = []
    for number in range(6):
        counted = sum(peer.words["counted"] for peer in peers)
        await wait_in_thread(lambda counted=counted: sum(peer.words["counted"] for peer in peers) >= counted + 20)
        await asyncio.sleep(chance.uniform(0, 0.02))  # anywhere in a transaction
        victim = peers.pop(0)
        victim.kill()
        gone.append(victim)
        peers.append(start(f"next{number}"))
    for peer in peers:
        peer.kill()
    store = await LocalStore.open(str(tmp_path), no_failure)
    found = await store.get("n")
    everybody = [*gone, *peers]
    counted = sum(peer.words["counted"] for peer in everybody)
    unsaid = len(everybody)  # each may have been killed between its answer and its word
    unknown = sum(peer.words["unknown"] for peer in everybody)
    assert counted <= int(found.value) <= counted + unknown + unsaid
    await store.close()


async def test_a_watch_goes_on_with_the_next_owner_or_says_that_it_missed_something(tmp_path, start):
    owner, _ = start("a"), start("b")
    store = await LocalStore.open(str(tmp_path), no_failure)
    told: list[int] = []

    async def watch() -> None:
        while True:
            read = await surely(lambda: store.range("n"))
            told.extend(int(entry.value) for entry in read.entries)
            try:
                async for change in store.watch("n", read.revision + 1):
                    told.extend(int(event.entry.value) for event in change.events)
            except CompactedError:
                pass

    watching = asyncio.ensure_future(watch())
    await wait_in_thread(lambda: len(told) > 10)
    owner.kill()
    seen = len(told)
    await wait_in_thread(lambda: len(told) > seen + 20)
    watching.cancel()
    assert told == sorted(set(told)), "in order, nothing twice"
    await store.close()
