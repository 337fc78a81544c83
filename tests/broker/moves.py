"""A compacted topic whose replicas are moved between the brokers of a cluster."""

from __future__ import annotations

import dataclasses

from clarion.cluster import PartitionState
from clarion.replication import Partition
from clarion.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from clarion.wire.messages.topics import CreatableTopicConfig
from clarion.wire.records import decode_batch
from tests.broker.harness import until
from tests.broker.kept import settle
from tests.broker.talk import batch
from tests.broker.test_cluster import Cluster, create, topic

COMPACTED = {"cleanup_policy": "compact", "delete_retention_ms": "0", "min_cleanable_dirty_ratio": "0.01"}


def state(cluster: Cluster, seen_by: int = 1) -> PartitionState:
    return cluster[seen_by].broker.image.topics["t"].partitions[0]


def replica(cluster: Cluster, number: int) -> Partition:
    broker = cluster[number].broker
    found = broker.partitions.find(broker.image.topics["t"].id, 0)
    assert found is not None
    return found


def records(one: Partition) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for each in one.batches() for record in decode_batch(memoryview(each))]


async def make(cluster: Cluster, *replicas: int, **settings: str) -> None:
    made = topic("t", assignments=(replicas,))
    named = {name.replace("_", "."): value for name, value in (settings or COMPACTED).items()}
    configs = tuple(CreatableTopicConfig(name=name, value=value) for name, value in named.items())
    await create(cluster[1], dataclasses.replace(made, configs=configs))
    await in_sync(cluster, *replicas)
    for node in cluster.nodes.values():
        await until(lambda node=node: "t" in node.broker.image.topics)


async def in_sync(cluster: Cluster, *replicas: int, seen_by: int = 1) -> None:
    """Also in the eyes of each of them."""
    seen = {seen_by, *replicas} & {*cluster.nodes}
    for one in seen:
        await until(
            lambda one=one: (
                "t" in cluster[one].broker.image.topics and set(state(cluster, one).in_sync) == set(replicas)
            )
        )


async def write(cluster: Cluster, to: int, *pairs: tuple[bytes, bytes | None]) -> None:
    for key, value in pairs:
        answer = await cluster[to].client.produce({("t", 0): batch(value, keys=[key])}, acks=-1)
        assert answer["t", 0].error_code == 0, answer


async def has_all(cluster: Cluster, number: int, leader: int = 1) -> None:
    await until(lambda: replica(cluster, number).high_watermark.offset == replica(cluster, leader).next_offset)


async def move(cluster: Cluster, *replicas: int) -> None:
    assert await asked_to_move(cluster, replicas) == 0


async def asked_to_move(cluster: Cluster, replicas: tuple[int, ...] | None) -> int:
    """None: back to where it was."""
    asked = ReassignableTopic(name="t", partitions=(ReassignablePartition(partition_index=0, replicas=replicas),))
    request = AlterPartitionReassignmentsRequest(topics=(asked,), allow_replication_factor_change=True)
    answer = await cluster[1].ask(request, 1)
    code: int = answer.responses[0].partitions[0].error_code
    return code


async def compact(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        one = replica(cluster, number)
        one.roll(cluster[number].broker.clock.now_ms())
        one.flush_soon()
        await settle(cluster[number])
        await cluster[number].server.housekeeping.compact()


async def drop_tombstones(cluster: Cluster, *numbers: int) -> None:
    """A tombstone gets its time in the first run, and goes in a later one."""
    for _ in range(3):
        for number in numbers:
            await has_all(cluster, number)
        await compact(cluster, *numbers)
        await write(cluster, 1, (b"filler", b"f"))
