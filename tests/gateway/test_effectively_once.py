"""Brokers that are killed between sending a message and hearing of it: a receiver that remembers keys acts once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.broker import Broker
from clarion.model.subscription import Subscription
from clarion.testing import EmbeddedBroker, cluster, embedded
from tests.broker.harness import until
from tests.gateway.endpoint import Received, TestEndpoint, endpoint
from tests.gateway.push_words import AT_ONCE

ROUNDS = 3
MESSAGES = 12  # in each


def gated(place: TestEndpoint) -> asyncio.Event:
    """It acts at once, and answers when the gate is open: until then a broker cannot know that it has acted."""
    gate = asyncio.Event()
    gate.set()

    async def respond(received: Received) -> web.Response:
        place.act(received)
        await gate.wait()
        return web.Response(status=204)

    place.respond = respond
    return gate


async def subscribe(broker: EmbeddedBroker, place: TestEndpoint, **rules: Any) -> None:
    wanted = Subscription(name="hook", topics=("t",), push=place.push(timeout_ms=120_000), **AT_ONCE, **rules)

    def create(living: Broker) -> Any:
        return living.subscriptions.create(wanted, ANONYMOUS)

    await asyncio.to_thread(broker._run, create)


async def test_each_message_has_one_effect_although_brokers_are_killed(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(ROUNDS * MESSAGES)]
    async with endpoint() as place, embedded(topics={"t": 3}, push_private_networks=("127.0.0.0/8",)) as broker:
        gate = gated(place)
        await subscribe(broker, place, max_deliveries=100)
        for number in range(ROUNDS):
            gate.clear()
            before = len(place.received)
            for at, value in enumerate(values[number * MESSAGES : (number + 1) * MESSAGES]):
                await asyncio.to_thread(broker.produce, "t", value, partition=at % 3)
            await until(lambda before=before: len(place.received) > before)
            await asyncio.to_thread(broker.kill if number else broker.stop)
            gate.set()
            await asyncio.to_thread(broker.start)
        await until(lambda: len(place.effects) == len(values))
        assert {*place.effects.elements()} == {*values}
        assert {*place.effects.values()} == {1}
        assert len(place.ids) > len(set(place.ids)), "nothing was ever sent twice: this has shown nothing"


async def test_a_leader_that_is_killed_is_succeeded_by_one_that_sends_under_the_same_keys() -> None:
    values = [b"%d" % number for number in range(2 * MESSAGES)]
    async with endpoint() as place:
        gate = gated(place)
        brokers = cluster(brokers=3, topics={"t": 3}, push_private_networks=("127.0.0.0/8",))
        await asyncio.to_thread(brokers.__enter__)
        try:
            await subscribe(brokers[1], place, max_deliveries=100)
            gate.clear()
            for at, value in enumerate(values[:MESSAGES]):
                leader = await asyncio.to_thread(brokers.leader_of, "t", at % 3)
                await asyncio.to_thread(brokers[leader].produce, "t", value, partition=at % 3)
            await until(lambda: len(place.received) >= 3)
            first = place.received[0].events[0]
            await asyncio.to_thread(
                brokers.kill, await asyncio.to_thread(brokers.leader_of, "t", int(first["partition"]))
            )
            gate.set()
            for at, value in enumerate(values[MESSAGES:]):
                leader = await asyncio.to_thread(brokers.leader_of, "t", at % 3)
                await asyncio.to_thread(brokers[leader].produce, "t", value, partition=at % 3)
            await until(lambda: len(place.effects) == len(values))
            assert {*place.effects.values()} == {1}
            assert place.ids.count(first["id"]) > 1, (
                "what the dead leader sent did not come again: this has shown nothing"
            )
        finally:
            await asyncio.to_thread(brokers.__exit__, None, None, None)
