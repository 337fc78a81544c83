"""What a broker leaves behind on a disk that is full or loses power at the wrong moment."""

import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from clarion.broker.config import BrokerConfig, ListenerConfig
from clarion.broker.server import BrokerServer, OnFailure
from clarion.cluster import CoordinationStore
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import OFFSETS_TOPIC
from tests.sim.disk import SimDisk


@asynccontextmanager
async def broker_on(disk: SimDisk, registry: SimulatedService) -> AsyncIterator[BrokerServer]:
    async def open_store(on_failure: OnFailure) -> CoordinationStore:
        return SimulatedStore(registry, random.Random(0), before_change=lambda: disk.happen("write", "registry.db"))

    config = BrokerConfig(data_dir="/var/lib/data", listeners=(ListenerConfig(port=0),), offsets_partitions=2)
    server = BrokerServer(config, disk=disk, open_store=open_store)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(drain_seconds=0)


async def test_a_new_data_directory_survives_a_power_loss():
    disk, registry = SimDisk(), SimulatedService()
    async with broker_on(disk, registry) as server:
        await server.broker.create_topic("t", 1, {})
        after = disk.power_loss()
    async with broker_on(after, registry) as server:
        assert server.broker.image.topic("t") is not None


@pytest.mark.parametrize("kind", ["mkdir", "create", "write", "sync", "sync_folder"])
async def test_a_topic_that_could_not_be_made_can_be_made_later(kind: str):
    """Whatever fails, and even if nothing can be written afterwards to take it back."""
    for number in range(12):
        disk, registry = SimDisk(), SimulatedService()
        async with broker_on(disk, registry) as server:
            countdown = iter(range(number, -1, -1))
            disk.fail_when(lambda what, left=countdown: what.kind == kind and next(left) == 0, errno.ENOSPC)
            try:
                await server.broker.create_topic("t", 3, {})
            except OSError:
                assert server.broker.image.topic("t") is None, "half a topic"
                await server.broker.create_topic("t", 3, {})
            disk.heal()
            assert len(server.broker.partitions.of_topic(server.broker.image.topics["t"])) == 3
            server.broker.resolver.partition(server.broker.image.topics["t"], 2)


@pytest.mark.parametrize("kind", ["mkdir", "create", "write", "sync", "sync_folder"])
async def test_a_topic_that_could_not_grow_leaves_nothing_behind_and_can_grow_later(kind: str):
    """Nor does it stand in the way of a topic that is made under its name afterwards, with another id."""
    for number in range(9):
        disk, registry = SimDisk(), SimulatedService()
        async with broker_on(disk, registry) as server:
            await server.broker.create_topic("t", 1, {})
            countdown = iter(range(number, -1, -1))
            disk.fail_when(lambda what, left=countdown: what.kind == kind and next(left) == 0, errno.ENOSPC)
            try:
                await server.broker.grow_topic("t", 3)
            except OSError:
                assert server.broker.image.topics["t"].partition_count == 1
                assert [one for one in disk.names("/var/lib/data") if one.startswith("t-")] == ["t-0"]
            disk.heal()
            await server.broker.delete_topic("t")
            await server.broker.create_topic("t", 1, {})
            await server.broker.grow_topic("t", 3)
            assert len(server.broker.partitions.of_topic(server.broker.image.topics["t"])) == 3


async def test_what_another_topic_left_where_a_topic_grows_is_in_nobodys_way():
    disk, registry = SimDisk(), SimulatedService()
    async with broker_on(disk, registry) as server:
        await server.broker.create_topic("old", 2, {})
        await server.broker.create_topic("t", 1, {})
        disk.rename("/var/lib/data/old-1", "/var/lib/data/t-1")  # as a growth that failed and could not be taken back
        await server.broker.grow_topic("t", 2)
        assert len(server.broker.partitions.of_topic(server.broker.image.topics["t"])) == 2


async def test_on_a_full_disk_no_topic_is_half_there_before_or_after_a_restart():
    disk, registry = SimDisk(), SimulatedService()
    async with broker_on(disk, registry) as server:
        disk.is_full = True
        with pytest.raises(OSError):
            await server.broker.create_topic("t", 3, {})
        with pytest.raises(KafkaError) as refused:
            await server.groups.runtime.ensure_topic()
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.is_full = False
        after, registry_then = disk.power_loss(), registry.copy()
        await server.groups.runtime.ensure_topic()
        assert len(server.groups.shards) == 2
    async with broker_on(after, registry_then) as server:
        assert server.broker.image.topic(OFFSETS_TOPIC) is None
        assert not [name for name in after.names("/var/lib/data") if name.startswith(("t-", "__"))]
