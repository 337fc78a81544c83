"""A broker that pushes, in the tests' own words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.config import Durability
from clarion.gateway.director import Director
from clarion.model.push_endpoint import PushEndpoint
from clarion.model.subscription import Subscription
from clarion.wire.records import decode_batch, encode_batch
from tests.broker.harness import Node, running, until
from tests.broker.talk import split

QUICK = {"durability": Durability.PAGE_CACHE, "push_private_networks": ("127.0.0.0/8",)}
AT_ONCE = {"backoff_min_ms": 1, "backoff_max_ms": 5}  # tests do not wait for seconds


@asynccontextmanager
async def pushing(data_dir: Path, partitions: int = 1, **settings: Any) -> AsyncIterator[Node]:
    """With a topic `t`."""
    async with running(data_dir, **{**QUICK, **settings}) as node:
        if "t" not in node.broker.image.topics:
            await node.topic("t", partitions)
        director = Director(node.broker)
        director.start()
        node.server.on_stop(director.stop)
        yield node


async def subscribe(node: Node, push: PushEndpoint, name: str = "hook", **rules: Any) -> Subscription:
    wanted = Subscription(name=name, push=push, **{"topics": ("t",), **AT_ONCE, **rules})
    await node.broker.subscriptions.create(wanted, ANONYMOUS)
    return wanted


async def write(node: Node, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
    batch = encode_batch([(key, value, (), node.broker.clock.now_ms()) for value in values])
    await node.client.produce({("t", partition): bytes(batch)})


async def dead_letters(node: Node, count: int, topic: str = "hook.dead-letters") -> list[dict[str, bytes]]:
    """Their values and headers, when there are so many."""

    def is_there() -> bool:
        known = node.broker.image.topics.get(topic)
        partition = None if known is None else node.broker.partitions.find(known.id, 0)
        return partition is not None and partition.high_watermark.offset >= count

    await until(is_there)
    found = await node.client.fetch({(topic, 0): 0})
    records = [record for batch in split(found.records(topic)) for record in decode_batch(batch)]
    return [{"value": one.value, **dict(one.headers)} for one in records]
