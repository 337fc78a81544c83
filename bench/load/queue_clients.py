"""A queue through its Python client: receive, and acknowledge every message by itself. Clarion's against nats-py."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from uuid import uuid4

from bench.load.meter import Meter

_WITHIN_S = 30.0
_FETCHED = 1_000  # at a time, by both: what Clarion's client fetches ahead by default


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClientJob:
    peer: str
    port: int
    pid: int
    topic: str
    messages: int  # that are there; more are not waited for
    seconds: float
    value_bytes: int


def run(job: QueueClientJob) -> dict[str, float]:
    done, meter = asyncio.run(_nats(job)) if job.peer == "nats" else _clarion(job)
    return meter.figures() | {
        "messages_per_s": done / meter.seconds,
        "mb_per_s": done * job.value_bytes / meter.seconds / 1e6,
        "gb": done * job.value_bytes / 1e9,
        "messages": done,
    }


def _clarion(job: QueueClientJob) -> tuple[int, Meter]:
    import clarion

    group = f"bench-{uuid4().hex}"
    address = f"127.0.0.1:{job.port}"
    _begin_at_the_start(address, group)
    with clarion.connect(address) as bus, bus.read(job.topic, subscription=group, mode="queue", timeout=1) as reading:
        first = reading.next(timeout=_WITHIN_S)  # connected before the clock runs
        if first is None:
            raise RuntimeError("no message came")
        first.ack()
        done, until = 0, time.perf_counter() + job.seconds
        with Meter(job.pid) as meter:
            for message in reading:
                message.ack()
                done += 1
                if done == job.messages - 1 or (not done % 100 and time.perf_counter() > until):
                    break
            reading.flush()
    return done, meter


def _begin_at_the_start(address: str, group: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": address})
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[earliest])
    admin.incremental_alter_configs([resource])[resource].result()


async def _nats(job: QueueClientJob) -> tuple[int, Meter]:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{job.port}")
    stream = connection.jetstream()
    subscription = await stream.pull_subscribe(job.topic, durable=f"bench-{uuid4().hex}", stream=job.topic)
    for message in await subscription.fetch(1, timeout=_WITHIN_S):
        await message.ack()
    done, until = 0, time.perf_counter() + job.seconds
    with Meter(job.pid) as meter:
        while done < job.messages - 1 and time.perf_counter() < until:
            for message in await subscription.fetch(min(_FETCHED, job.messages - 1 - done), timeout=_WITHIN_S):
                await message.ack()
                done += 1
        await connection.flush()
    await stream.delete_consumer(job.topic, (await subscription.consumer_info()).name)
    await connection.close()
    return done, meter
