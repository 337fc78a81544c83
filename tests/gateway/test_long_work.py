"""Large requests and answers leave the event loop to others in between: counted in turns of the loop, not in time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.config import Durability
from clarion.broker.turns import PIECE_MS
from clarion.gateway.bodies import WRITTEN_AT_A_TIME, encoded
from clarion.gateway.brokers import Brokers
from clarion.gateway.message_forms import MessageToWrite
from clarion.gateway.writing import PartitionWriter, PlacedMessage
from clarion.wire.records import Record
from clarion.world import SystemClock
from tests.broker.harness import Node, running


class CountedTurns:
    """Of the event loop, while it is entered."""

    def __init__(self) -> None:
        self.count = 0
        self._is_open = True

    def __enter__(self) -> CountedTurns:
        self._on_turn()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False

    def _on_turn(self) -> None:
        self.count += 1
        if self._is_open:
            asyncio.get_running_loop().call_soon(self._on_turn)


class StridingClock:
    """A millisecond later whenever somebody looks: how much work fits a turn does not depend on the machine."""

    def __init__(self) -> None:
        self._now_ms = SystemClock().now_ms()

    def now_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms


async def turns_of_writes(node: Node, messages: int) -> int:
    brokers = Brokers(node.broker)
    told = [MessageToWrite(value=b"x", idempotency_key=f"{messages}/{number}") for number in range(messages)]
    with CountedTurns() as turns:
        outcomes = await PartitionWriter(brokers).write(ANONYMOUS, node.broker.image.topics["t"], told, None)
    assert all(isinstance(one, PlacedMessage) for one in outcomes)
    brokers.close()
    return turns.count


async def test_a_thousand_writes_of_one_request_are_more_than_one_turn(tmp_path: Path) -> None:
    async with running(tmp_path, clock=StridingClock(), durability=Durability.PAGE_CACHE) as node:
        await node.topic("t", 1)
        few = await turns_of_writes(node, 1)
        assert await turns_of_writes(node, WRITTEN_AT_A_TIME) >= few + WRITTEN_AT_A_TIME // PIECE_MS


async def test_messages_that_are_many_or_long_are_written_down_in_a_thread(tmp_path: Path) -> None:
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        turns, here = node.broker.turns, threading.get_ident()
        small, large = Record(0, 0, None, b"x", ()), Record(0, 0, None, b"x" * 100_000, ())
        with_headers = Record(0, 0, None, None, (("a", b"x" * 100_000),))
        assert await encoded(turns, [small] * 3, threading.get_ident) == here
        for found in ([large], [with_headers], [small] * 1_000):
            assert await encoded(turns, found, threading.get_ident) != here


def test_a_list_of_many_messages_is_written_in_parts_and_answered_as_one(api, http_broker, topic):
    told = [{"value": str(number)} for number in range(2 * WRITTEN_AT_A_TIME + 500)]
    first = api.post(f"/v1/topics/{topic}/messages", told, Idempotency_Key="a-long-one")
    assert first.status == 200
    again = api.post(f"/v1/topics/{topic}/messages", told, Idempotency_Key="a-long-one")
    assert again.json == first.json  # each message has the number that it has in the whole
    assert len(first.json["results"]) == len(told) == len(http_broker.messages(topic))


def test_a_long_message_comes_out_of_every_door_as_it_was(api, topic):
    value = list(range(20_000))
    written = api.post(f"/v1/topics/{topic}/messages", {"key": "k", "value": value}).json
    place = f"/v1/topics/{topic}/partitions/{written['partition']}/messages"
    assert api.get(f"{place}/0?encoding=json").json["value"] == value
    assert api.get(f"{place}?encoding=json").json["messages"][0]["value"] == value
    name = f"queue-of-{topic}"
    assert api.post("/v1/subscriptions", {"name": name, "topics": [topic]}).status == 201
    (pulled,) = api.post(f"/v1/subscriptions/{name}:pull", {"encoding": "json", "wait_ms": 30_000}).json["messages"]
    assert pulled["value"] == value
    (peeked,) = api.post(f"/v1/subscriptions/{name}:peek?encoding=json").json["messages"]
    assert peeked["value"] == value
