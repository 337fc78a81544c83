"""Subscriptions, and what a queue leaves behind, in the tests' own words."""

from __future__ import annotations

from collections.abc import Sequence

from clarion.broker import messages
from clarion.broker.authorizer import ANONYMOUS
from clarion.model.subscription import Subscription
from clarion.wire.records import Record, decode_batch, encode_batch
from tests.broker.harness import Node


async def subscribe(node: Node, *, name: str = "g", topics: tuple[str, ...] = ("t",), **rules) -> None:
    """Made, or changed to have these rules."""
    wanted = Subscription(name=name, topics=topics, **rules)
    if node.broker.subscriptions.get(name) is None:
        await node.broker.subscriptions.create(wanted, ANONYMOUS)
        return
    fields = {key: value for key, value in wanted.to_json().items() if key not in ("name", "created", "revision")}
    await node.broker.subscriptions.update(name, fields, ANONYMOUS)


async def write(node: Node, *records: tuple, topic: str = "t", partition: int = 0, compression: int = 0) -> None:
    """(key, value, headers, timestamp); headers and timestamp may be left out."""
    now_ms = node.broker.clock.now_ms()
    whole = [(*one, *((), now_ms)[len(one) - 2 :]) for one in records]
    batch = encode_batch(whole, compression=compression)
    await messages.write(node.broker, ANONYMOUS, topic, partition, batch)


async def content(node: Node, topic: str, partition: int = 0) -> list[Record]:
    found = await messages.read(node.broker, ANONYMOUS, topic, partition, 0)
    return [record for batch in found.batches for record in decode_batch(batch)]


def texts(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in headers}
