"""Changes of the store whose answer did not come at once: they are known in the end, and happened once at most."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable

import pytest

from clarion.cluster import ProducerIds
from clarion.cluster.changes import change
from clarion.cluster.coordination import Put, absent
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore, Weather
from tests.sim.loop import SimLoop

UNRELIABLE = Weather(lost_requests=0.5, lost_replies=0.5)


class Script:
    """Chance as it is written down: of each attempt, whether the request is lost, then whether the answer is."""

    def __init__(self, *lost: bool) -> None:
        self._lost = list(lost)

    def random(self) -> float:
        return 0.0 if self._lost and self._lost.pop(0) else 1.0

    def uniform(self, a: float, b: float) -> float:
        return a


class FullDisk:
    """Refuses the attempts with these numbers."""

    def __init__(self, attempts: Iterable[int]) -> None:
        self._refused = set(attempts)
        self._count = 0

    def __call__(self) -> None:
        self._count += 1
        if self._count in self._refused:
            raise OSError(errno.ENOSPC, "no space left")


@pytest.fixture
def loop():
    loop = SimLoop(1)
    yield loop
    loop.close()


def test_a_refusal_after_a_lost_answer_is_no_refusal_of_what_has_happened(loop):
    """The first attempt changed the store, the second found the disk full: the caller must not take it back."""
    service = SimulatedService()
    store = SimulatedStore(service, Script(False, True), UNRELIABLE, before_change=FullDisk([2]))
    seen = []

    async def put() -> bool:
        return await change(store, [absent("k")], [Put("k", b"v")], seen.append)

    assert loop.run_until_complete(put())
    assert seen == [service.entries["k"].mod_revision]


def test_after_a_lost_request_a_refusal_is_none_either(loop):
    """The request may only be late, and change the store when its caller has taken everything back."""
    service = SimulatedService()
    store = SimulatedStore(service, Script(True), UNRELIABLE, before_change=FullDisk([1, 2]))
    seen = []

    async def put() -> bool:
        return await change(store, [absent("k")], [Put("k", b"v")], seen.append)

    assert loop.run_until_complete(put())
    assert seen == [service.entries["k"].mod_revision]


def test_a_refusal_at_once_is_one(loop):
    store = SimulatedStore(SimulatedService(), Script(), UNRELIABLE, before_change=FullDisk([1]))

    async def put() -> bool:
        return await change(store, [absent("k")], [Put("k", b"v")], lambda _: None)

    with pytest.raises(OSError, match="no space"):
        loop.run_until_complete(put())


def test_producer_ids_are_given_out_although_the_store_was_silent_once(loop):
    store = SimulatedStore(SimulatedService(), Script(True, False, True), UNRELIABLE)

    async def take() -> list[int]:
        ids = ProducerIds(store, "one")
        return [await ids.next(), await ids.next()]

    assert loop.run_until_complete(take()) == [0, 1]


def test_a_number_that_another_broker_took_is_not_ours_although_it_is_the_one_we_wanted(loop):
    """Our request is lost; meanwhile the other takes the very block that we asked for."""
    service = SimulatedService()
    ours = SimulatedStore(service, Script(*(False, False) * 2, True), UNRELIABLE)

    async def take() -> list[int]:
        taking = loop.create_task(ProducerIds(ours, "one").next())
        await asyncio.sleep(0.5)  # it waits for an answer
        other = await ProducerIds(SimulatedStore(service, Script()), "two").next()
        return [other, await taking]

    assert loop.run_until_complete(take()) == [0, 1000]


def test_a_change_of_many_keys_is_looked_up_although_every_other_answer_is_lost(loop):
    """Each question is asked again by itself: all of them in a row would hardly ever be answered."""
    keys = [f"k{number}" for number in range(20)]
    service = SimulatedService()
    store = SimulatedStore(service, EveryOtherReplyLost(), UNRELIABLE)

    async def put() -> bool:
        return await change(store, [absent(key) for key in keys], [Put(key, b"v") for key in keys], lambda _: None)

    assert loop.run_until_complete(put())
    assert sorted(service.entries) == sorted(keys)


class EveryOtherReplyLost:
    def __init__(self) -> None:
        self._asked = 0

    def random(self) -> float:
        """Asked twice per attempt: of the request, which arrives, and of the answer."""
        self._asked += 1
        return 0.0 if self._asked % 4 == 2 else 1.0

    def uniform(self, a: float, b: float) -> float:
        return a
