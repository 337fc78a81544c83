"""Taking over the journal of older versions: all of it or not yet, wherever the power goes in the middle."""

from __future__ import annotations

import json
import random
from uuid import UUID, uuid4

import pytest
from crc32c import crc32c

from clarion.cluster import ProducerIds, StoreDamagedError, TopicRegistry
from clarion.cluster.coordination import CoordinationStore, Put
from clarion.cluster.counters import next_broker_epoch
from clarion.cluster.journal_import import IMPORTED, JOURNAL, import_journal, read_journal
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore
from clarion.world import make_lasting_folder, read_file, replace_file
from tests.sim.disk import PowerLoss, SimDisk

DATA = "/data"
ORDERS, GONE = UUID(int=7), UUID(int=9)


def line(key: str, value: object) -> bytes:
    body = json.dumps({"key": key, "value": value}, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(body), body)


def topic(topic_id: UUID, partitions: int, **settings: str) -> dict[str, object]:
    return {"id": str(topic_id), "partitions": partitions, "settings": settings}


def journal(topics: int = 300) -> bytes:
    lines = [
        line("cluster-id", "q1w2e3"),
        line("broker-epoch", 0),
        line("topics/orders", topic(ORDERS, 3)),
        line("topics/gone", topic(GONE, 1)),
        line("topics/orders", topic(ORDERS, 5, **{"retention.ms": "1000"})),
        line(f"deleting/{GONE}", "gone"),
        line("topics/gone", None),
        line("next-producer-id", 2000),
        *(line(f"topics/t{number}", topic(UUID(int=1000 + number), 1)) for number in range(topics)),
        line("broker-epoch", 41),
    ]
    return b"".join(lines)


def disk_with(content: bytes) -> SimDisk:
    disk = SimDisk()
    make_lasting_folder(disk, DATA)
    replace_file(disk, f"{DATA}/{JOURNAL}", content)
    return disk


def store_of(service: SimulatedService, disk: SimDisk) -> SimulatedStore:
    """A crash may come before every commit and after it."""
    return SimulatedStore(
        service,
        random.Random(0),
        before_change=lambda: disk.happen("write", "registry.db"),
        after_change=lambda: disk.happen("commit", "registry.db"),
    )


async def load(store: CoordinationStore) -> TopicRegistry:
    return await TopicRegistry.load(store, uuid4, partitions_max=1000)


async def check_everything_is_there(store: CoordinationStore, topics: int = 300) -> None:
    registry = await load(store)
    assert registry.image.cluster_id == "q1w2e3"
    orders = registry.image.topic("orders")
    assert orders is not None
    assert (orders.id, orders.partition_count, dict(orders.overrides)) == (ORDERS, 5, {"retention.ms": "1000"})
    assert len(registry.image.topics) == topics + 1
    assert registry.being_deleted == {GONE}
    assert await ProducerIds(store, "one").next() == 2000
    assert await next_broker_epoch(store, -1, "one") == 42


async def test_everything_in_the_journal_is_in_the_store_afterwards():
    disk, service = disk_with(journal()), SimulatedService()
    store = SimulatedStore(service, random.Random(0))
    await import_journal(disk, DATA, store)
    await check_everything_is_there(store)
    assert disk.names(DATA) == [JOURNAL, IMPORTED]
    assert disk.names(f"{DATA}/{JOURNAL}") == [], "a folder: older versions cannot open it"
    assert read_file(disk, f"{DATA}/{IMPORTED}") == journal()


async def test_a_crash_anywhere_leaves_something_to_begin_anew_from():
    """Before every write, commit, rename and sync; with everything unsynced kept, or any part of it."""
    crashes = 0
    for crash_at in range(1000):
        disk, service = disk_with(journal()), SimulatedService()
        disk.crash_at = len(disk.operations) + crash_at
        try:
            await import_journal(disk, DATA, store_of(service, disk))
        except PowerLoss:
            crashes += 1
        else:
            break
        disk.crash_at = None
        for chance in (None, *map(random.Random, range(4))):
            after, service_then = disk.power_loss(chance), service.copy()
            store = store_of(service_then, after)
            await import_journal(after, DATA, store)
            await check_everything_is_there(store)
            assert after.names(DATA) == [JOURNAL, IMPORTED]
            assert after.power_loss().names(DATA) == [JOURNAL, IMPORTED], "and all that is durable"
    assert crashes > 8


async def test_after_the_import_only_the_store_counts():
    disk, service = disk_with(journal()), SimulatedService()
    store = SimulatedStore(service, random.Random(0))
    await import_journal(disk, DATA, store)
    registry = await load(store)
    await registry.delete("orders")
    for _ in range(2):
        await import_journal(disk, DATA, store)
    assert (await load(store)).image.topic("orders") is None


async def test_a_journal_that_an_older_version_began_in_between_is_put_aside():
    """It found no journal, wrote one with a new cluster id, and then refused the folder."""
    disk, service = disk_with(journal()), SimulatedService()
    store = SimulatedStore(service, random.Random(0))
    await import_journal(disk, DATA, store)
    disk.remove_folder(f"{DATA}/{JOURNAL}")
    replace_file(disk, f"{DATA}/{JOURNAL}", line("cluster-id", "another"))
    await import_journal(disk, DATA, store)
    await check_everything_is_there(store)
    assert disk.names(DATA) == [JOURNAL, "registry.journal.ignored", IMPORTED]
    assert read_file(disk, f"{DATA}/{IMPORTED}") == journal()


async def test_what_an_import_that_was_interrupted_left_in_the_store_does_not_stay():
    disk, service = disk_with(journal(3)), SimulatedService()
    store = SimulatedStore(service, random.Random(0))
    await store.transact((), [Put("topics/no-more", b"{}"), Put("topics/orders", b"{}")])
    await import_journal(disk, DATA, store)
    await check_everything_is_there(store, 3)


async def test_a_new_folder_gets_the_same_guard():
    disk, service = SimDisk(), SimulatedService()
    make_lasting_folder(disk, DATA)
    await import_journal(disk, DATA, SimulatedStore(service, random.Random(0)))
    assert disk.power_loss().names(DATA) == [JOURNAL]
    assert disk.names(f"{DATA}/{JOURNAL}") == []


def test_a_torn_last_line_was_never_written():
    whole = journal(2)
    torn = line("topics/torn", topic(uuid4(), 1))
    expected = read_journal(whole, "j")
    for length in range(len(torn)):
        assert read_journal(whole + torn[:length], "j") == expected
    damaged = bytearray(torn)
    damaged[20:40] = bytes(20)  # its middle is lost, its newline is there
    assert read_journal(whole + damaged, "j") == expected


async def test_a_damaged_line_in_the_middle_stops_the_import_and_says_where():
    content = bytearray(journal(2))
    content[12] ^= 1
    disk, service = disk_with(bytes(content)), SimulatedService()
    with pytest.raises(StoreDamagedError, match="line 1"):
        await import_journal(disk, DATA, SimulatedStore(service, random.Random(0)))
    assert read_file(disk, f"{DATA}/{JOURNAL}") == content, "nobody touches what he does not understand"
    assert service.entries == {}
