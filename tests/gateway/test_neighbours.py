"""Stream readers, a queue and webhooks on one topic at once: who stops, hangs or fails takes nothing from the others.

What is compared is work done, not time taken: with a reader that no longer reads, an endpoint that never answers and
one that always fails, everybody else gets every message, while those three still hold what they hold.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from clarion.consumers.push import FAILURES_TO_OPEN, WINDOW_START
from clarion.wire.records import encode_batch
from tests.broker.harness import Client, Node, until
from tests.broker.share_words import ShareConsumer, earliest
from tests.gateway.endpoint import TestEndpoint, endpoint
from tests.gateway.push_words import pushing, subscribe

READERS = 10
PARTITIONS = 3
BATCH = 50
PATIENCE_SECONDS = 240  # push has a part of the loop, which broker, endpoints and readers share here


def never_answers(place: TestEndpoint) -> asyncio.Event:
    """Until the event is set."""
    end = asyncio.Event()

    async def wait(received: Any) -> web.Response:
        await end.wait()
        return web.Response(status=204)

    place.respond = wait
    return end


async def produce(node: Node, messages: int) -> int:
    """How many were acknowledged."""
    done = 0
    for first in range(0, messages, BATCH):
        now = node.broker.clock.now_ms()
        batch = encode_batch([(None, b"%d" % number, (), now) for number in range(first, first + BATCH)])
        place = ("t", first // BATCH % PARTITIONS)
        reply = await node.client.produce({place: bytes(batch)})
        assert reply[place].error_code == 0
        done += BATCH
    return done


async def read_stream(client: Client, messages: int) -> Counter[bytes]:
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    found: Counter[bytes] = Counter()
    while sum(found.values()) < messages:
        answer = await client.fetch({("t", at): offset for at, offset in offsets.items()})
        for at in offsets:
            values = answer.values("t", at)
            found.update(values)
            offsets[at] += len(values)
    return found


async def work_off(consumer: ShareConsumer, messages: int) -> Counter[tuple[int, int]]:
    """Each record of the queue is taken and accepted, one partition after the other."""
    found: Counter[tuple[int, int]] = Counter()
    while len(found) < messages:
        reply = await consumer.ask()
        for topic in reply.responses:
            for one in topic.partitions:
                runs = [(run.first_offset, run.last_offset) for run in one.acquired_records]
                found.update((one.partition_index, at) for first, last in runs for at in range(first, last + 1))
                if runs:
                    await consumer.acknowledge(*((*run, 1) for run in runs), index=one.partition_index)
    return found


async def everybody(data_dir: Path, messages: int) -> None:
    async with (
        endpoint() as well,
        endpoint() as hanging,
        endpoint() as failing,
        pushing(data_dir, partitions=PARTITIONS) as node,
    ):
        end = never_answers(hanging)
        failing.answer(500)
        await subscribe(node, hanging.push(timeout_ms=300_000), name="hanging")
        await subscribe(node, failing.push(), name="failing", max_deliveries=100)
        await subscribe(node, well.push(), name="well")
        await earliest(node)
        async with asyncio.TaskGroup() as group:
            clients = [await Client.connect(*node.server.addresses[0]) for _ in range(READERS + 2)]
            consumer = await ShareConsumer(clients[-2], node).join()
            clients[-1].post_fetch({("t", at): 0 for at in range(PARTITIONS)})  # and never reads the answer
            streams = [group.create_task(read_stream(client, messages)) for client in clients[:READERS]]
            queue = group.create_task(work_off(consumer, messages))
            assert await produce(node, messages) == messages
        assert all(one.result() == streams[0].result() for one in streams)
        assert len(streams[0].result()) == messages
        assert set(queue.result().values()) == {1}
        await until(lambda: len(well.effects) == messages, PATIENCE_SECONDS)
        assert set(well.effects.values()) == {1}
        assert len(hanging.received) <= WINDOW_START
        assert node.broker.endpoints.of("hanging").under_way == len(hanging.received)
        assert node.broker.endpoints.of("failing").circuit != "closed"
        assert len(failing.received) < FAILURES_TO_OPEN + WINDOW_START + 20  # and one more for each rest
        end.set()
        for client in clients:
            client.close()


async def test_who_stops_hangs_or_fails_changes_nothing_for_the_others(tmp_path: Path) -> None:
    await everybody(tmp_path, messages=600)


@pytest.mark.campaign
async def test_the_same_with_many_messages(tmp_path: Path) -> None:
    await everybody(tmp_path, messages=6_000)
