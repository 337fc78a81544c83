"""A broker's life: it starts whole or not at all, stops cleanly whatever is under way, and leaves nothing behind."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import shutil
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from clarion.broker.config import BrokerConfig, Durability, ListenerConfig, TlsConfig
from clarion.broker.descriptors import connections_max
from clarion.broker.limits import Limits
from clarion.broker.server import BrokerServer
from clarion.broker.settings import broker_config
from clarion.cluster import SqliteStore
from clarion.cluster.coordination import Compare, Operation, Put, TransactionResult
from clarion.cluster.counters import BROKER_EPOCH
from clarion.cluster.schema import PARTITIONS, partition_key, write_partition
from clarion.log.checkpoints import PARTITION_OFFSETS, CleanShutdown
from clarion.log.data_directory import REGISTRY_FILE, WrongFolderError
from clarion.model.errors import ErrorCode
from clarion.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from clarion.world import RealDisk
from clarion.world.lock import FolderTakenError
from tests.broker.disks import StoryDisk
from tests.broker.harness import Client, running, until
from tests.broker.talk import batch, produce_frame

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE}


def config(data_dir, **more) -> BrokerConfig:
    return broker_config(str(data_dir), **{"listeners": (ListenerConfig(port=0),), "metrics_port": 0, **more})


def was_left_cleanly(data_dir) -> bool:
    return CleanShutdown(RealDisk(), str(data_dir)).take()


def open_things() -> tuple[int, set[str]]:
    gc.collect()
    threads = {one.name for one in threading.enumerate() if "clarion" in one.name}
    return len(os.listdir("/proc/self/fd")), threads


async def some_work(server: BrokerServer) -> None:
    """Of everything a little: topics, messages, a waiting reader, a group, a scrape."""
    client = await Client.connect(*server.addresses[0])
    await server.broker.create_topic("t", 3, {})
    await client.produce({T0: batch(b"v")})
    await client.ask(FindCoordinatorRequest(key="g", key_type=0), 2)
    asked = OffsetCommitRequestTopic(
        name="t", partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=1),)
    )
    await client.ask(OffsetCommitRequest(group_id="g", topics=(asked,)), 5)
    reader = await Client.connect(*server.addresses[0])
    reader.post_fetch({T0: 1}, max_wait=60_000)
    await until(lambda: next(iter(server.broker.partitions)).watchers)
    scraper, writer = await asyncio.open_connection(*server.metrics_address)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await scraper.read()
    writer.close()


async def test_start_and_stop_leave_no_task_no_thread_and_no_descriptor(tmp_path):
    async def live(number: int) -> None:
        server = BrokerServer(config(tmp_path / str(number)))
        await server.start()
        await some_work(server)
        await server.stop(drain_seconds=0)

    await live(0)  # what is loaded once is loaded now
    await asyncio.sleep(0.05)
    before, tasks = open_things(), asyncio.all_tasks()
    for number in (1, 2, 3):
        await live(number)
    await until(lambda: asyncio.all_tasks() == tasks)
    await until(lambda: open_things()[0] <= before[0] + 1 and open_things()[1] == before[1])


async def test_a_taken_port_leaves_the_folder_free_and_clean(tmp_path):
    async with running(tmp_path / "data", **QUICK) as node:
        await node.topic()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = open_things()
        for listeners in ((ListenerConfig(port=port),), (ListenerConfig(port=0), ListenerConfig(port=port))):
            server = BrokerServer(config(tmp_path / "data", listeners=listeners))
            with pytest.raises(OSError, match="address already in use"):
                await server.start()
        await until(lambda: open_things()[0] <= before[0] + 1 and open_things()[1] == before[1])
    assert was_left_cleanly(tmp_path / "data")
    async with running(tmp_path / "data", **QUICK) as node:
        assert len(node.broker.image.topics) == 1


async def test_a_taken_port_for_metrics_is_refused_too(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = BrokerServer(config(tmp_path, metrics_port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="address already in use"):
            await server.start()
    async with running(tmp_path):
        pass


async def test_a_certificate_that_is_not_there_is_refused_before_anybody_can_connect(tmp_path):
    tls = TlsConfig(certificate=str(tmp_path / "nothing"), key=str(tmp_path / "nothing"))
    server = BrokerServer(config(tmp_path, listeners=(ListenerConfig(port=0), ListenerConfig(port=0, tls=tls))))
    with pytest.raises(OSError):
        await server.start()
    assert server.addresses == []


async def test_a_folder_that_is_in_use_is_refused_and_stays_with_its_owner(tmp_path):
    async with running(tmp_path) as node:
        second = BrokerServer(config(tmp_path))
        with pytest.raises(FolderTakenError):
            await second.start()
        await node.topic()
        assert (await node.client.produce({T0: batch(b"v")}))[T0].error_code == 0


async def test_a_folder_of_another_node_or_cluster_is_refused(tmp_path):
    async with running(tmp_path, node_id=1):
        pass
    with pytest.raises(WrongFolderError, match=r"node\.id=1"):
        await BrokerServer(config(tmp_path, node_id=2)).start()
    (tmp_path / "registry.db").unlink()
    with pytest.raises(WrongFolderError, match=r"cluster\.id"):
        await BrokerServer(config(tmp_path, node_id=1)).start()


async def test_stopping_twice_or_without_a_start_does_nothing(tmp_path):
    server = BrokerServer(config(tmp_path))
    await server.stop()
    await server.start()
    await asyncio.gather(server.stop(drain_seconds=0), server.stop(drain_seconds=0))
    await server.stop()
    assert was_left_cleanly(tmp_path)


async def test_a_stop_answers_what_is_under_way_and_begins_nothing_new(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        disk.hold_flushes()
        produced = asyncio.ensure_future(node.client.produce({T0: batch(b"v")}))
        await until(lambda: disk.held)
        async with node.another() as late:
            stopping = asyncio.ensure_future(node.server.stop(drain_seconds=10))
            await asyncio.sleep(0.02)
            late.post(produce_frame({T0: batch(b"too late")}))
            await asyncio.sleep(0.02)
            assert not produced.done()
            disk.let_flushes_go()
            assert (await produced)[T0].error_code == 0
            await stopping
            assert await late.is_refused()
    async with running(tmp_path) as node:
        assert node.partition().next_offset == 1


async def test_a_polling_reader_does_not_hold_up_a_stop(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()

        async def poll() -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await reader.fetch({T0: 0}, max_wait=50)

        polling = asyncio.ensure_future(poll())
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        await node.server.stop(drain_seconds=60)
        assert asyncio.get_running_loop().time() - began < 30
        await polling


async def test_a_stop_with_a_flush_in_flight_waits_for_it(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        disk.hold_flushes()
        node.client.post(produce_frame({T0: batch(b"a")}))
        await until(lambda: disk.held)
        node.client.post(produce_frame({T0: batch(b"b")}))  # needs another flush behind the one that hangs
        await until(lambda: node.partition().next_offset == 2)
        stopping = asyncio.ensure_future(node.server.stop(drain_seconds=0))
        await until(lambda: not node.server.net.connections)
        await asyncio.sleep(0.02)
        assert not stopping.done()
        disk.let_flushes_go()
        await stopping
    assert was_left_cleanly(tmp_path)


async def test_a_stop_while_groups_are_loading(tmp_path):
    async with running(tmp_path, offsets_partitions=1, **QUICK) as node:
        await node.topic()
        for number in range(50):
            await commit(node.client, f"g{number}")
    server = BrokerServer(config(tmp_path, offsets_partitions=1, **QUICK))
    await server.start()
    await server.stop(drain_seconds=0)
    async with running(tmp_path, **QUICK) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert len(list(node.server.groups.summaries())) == 50


async def test_a_killed_server_leaves_its_folder_as_a_dead_process_does(tmp_path):
    server = BrokerServer(config(tmp_path, **QUICK))
    await server.start()
    await server.broker.create_topic("t", 1, {})
    client = await Client.connect(*server.addresses[0])
    await client.produce({("t", 0): batch(b"kept")})
    await server.kill()
    assert not server.net.connections
    with pytest.raises(ConnectionError):
        await Client.connect(*server.addresses[0])
    client.close()
    assert not was_left_cleanly(tmp_path), "nothing was closed, and no mark was left"
    async with running(tmp_path, **QUICK) as node:  # the lock is free
        assert (await node.client.fetch({("t", 0): 0})).values() == [b"kept"]


async def commit(client: Client, group: str, offset: int = 1) -> None:
    await client.ask(FindCoordinatorRequest(key=group, key_type=0), 2)
    asked = OffsetCommitRequestTopic(
        name="t", partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=offset),)
    )
    reply = await client.ask(OffsetCommitRequest(group_id=group, topics=(asked,)), 5)
    assert reply.topics[0].partitions[0].error_code == 0


async def test_a_log_that_cannot_be_closed_keeps_the_others_from_nothing_but_the_mark(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        await node.topic(partitions=3)
        for index in range(3):
            await node.client.produce({("t", index): batch(b"v")})
        disk.on_sync = lambda path: OSError(5, "Input/output error") if "t-1/" in path else None
    assert not was_left_cleanly(tmp_path)
    async with running(tmp_path, **QUICK) as node:
        assert [node.partition("t", index).next_offset for index in range(3)] == [1, 1, 1]


async def test_a_stop_in_the_middle_of_a_topics_making_leaves_the_topic_or_nothing(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        node.client.post(create_frame("t", 300))
        await until(lambda: (tmp_path / "t-3").exists())
        await node.server.stop(drain_seconds=0)
    async with running(tmp_path, **QUICK) as node:
        made = node.broker.image.topic("t")
        folders = [one.name for one in tmp_path.iterdir() if one.name.startswith("t-")]
        assert len(folders) == (made.partition_count if made else 0)


def create_frame(name: str, partitions: int) -> bytes:
    from clarion.wire.bridge import encode
    from clarion.wire.frames import request_frame
    from clarion.wire.messages.topics import CreatableTopic, CreateTopicsRequest

    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
    body = encode(CreateTopicsRequest(topics=(topic,), timeout=10_000, validate_only=False), 19, 4, "request")
    return request_frame(19, 4, 1, "tests", body)


# Listeners


async def test_each_listener_advertises_its_own_address(tmp_path):
    listeners = (
        ListenerConfig(port=0),
        ListenerConfig(port=0, advertised_host="broker.example", advertised_port=19092),
        ListenerConfig(port=0, advertised_host="inside.example"),
    )
    async with running(tmp_path, listeners=listeners, **QUICK) as node:
        told = []
        for address in node.server.addresses:
            client = await Client.connect(*address)
            broker = (await client.ask(MetadataRequest(topics=()), 9)).brokers[0]
            found = await client.ask(FindCoordinatorRequest(key="g", key_type=0), 2)
            assert (found.host, found.port) == (broker.host, broker.port)
            told.append((broker.host, broker.port))
            client.close()
        ports = [address.port for address in node.server.addresses]
        assert told == [("127.0.0.1", ports[0]), ("broker.example", 19092), ("inside.example", ports[2])]


# Terms


async def test_every_start_begins_a_new_term(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 2)
    for term in range(1, 4):
        async with running(tmp_path, **QUICK) as node:
            assert node.broker.registry.broker_epoch == term
            assert [one.leader_epoch for one in node.broker.partitions] == [term, term]
            told = (await node.ask(MetadataRequest(topics=None), 9)).topics[0].partitions
            assert [one.leader_epoch for one in told] == [term, term]


async def test_partitions_have_epochs_of_their_own(tmp_path):
    """Each is one above what it had, whatever the others have been through."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("old")
    for _ in range(3):
        async with running(tmp_path, **QUICK):
            pass
    async with running(tmp_path, **QUICK) as node:
        (old,) = node.broker.image.topics["old"].partitions
        key = partition_key(node.broker.image.topics["old"].id, 0)
        ahead = write_partition(old._replace(leader_epoch=40))
        await node.topic("new", 2)
        await node.server.store.transact((), [Put(key, ahead)])
    async with running(tmp_path, **QUICK) as node:
        assert (node.partition("old").leader_epoch, node.partition("new", 1).leader_epoch) == (41, 5)
        await node.topic("newest")
        assert node.partition("newest").leader_epoch == 41, "no topic of that name had a later one"


@pytest.mark.parametrize("at", [BROKER_EPOCH, PARTITIONS])
async def test_a_start_that_failed_vouches_for_no_epoch(tmp_path, at):
    """The store is an older copy, and the start that would have seen it ended before its term began."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data, **QUICK) as node:
        await node.topic()
    shutil.copy(data / REGISTRY_FILE, copy)
    for _ in range(3):
        async with running(data, **QUICK) as node:
            assert (await node.client.produce({T0: batch(b"before")}))[T0].error_code == 0
    shutil.copy(copy, data / REGISTRY_FILE)

    async def open_store(on_failure) -> RefusingStore:
        return RefusingStore(await SqliteStore.open(str(data / REGISTRY_FILE), on_failure), at)

    with pytest.raises(OSError, match="refused"):
        await BrokerServer(config(data, **QUICK), open_store=open_store).start()
    async with running(data, **QUICK) as node:
        assert node.partition().leader_epoch > node.partition().log.epochs.latest
        assert (await node.client.produce({T0: batch(b"after")}))[T0].error_code == 0
        assert (await node.client.fetch({T0: 0})).values() == [b"before"] * 3 + [b"after"]


class RefusingStore:
    """Lets nobody change certain keys."""

    def __init__(self, store: SqliteStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        if any(one.key.startswith(self._prefix) for one in operations):
            raise OSError(errno.EIO, "refused")
        return await self._store.transact(compares, operations)


# Topics and what is being done to them


async def test_a_topic_with_the_longest_name_can_be_deleted_and_made_again(tmp_path):
    name = "n" * 249
    async with running(tmp_path, **QUICK) as node:
        await node.topic(name, 2)
        await node.broker.delete_topic(name)
        assert not [one for one in tmp_path.iterdir() if one.name.startswith("nn")]
        await node.topic(name, 2)
        assert (await node.client.produce({(name, 1): batch(b"v")}))[name, 1].error_code == 0


async def test_a_topic_made_again_gets_nothing_from_a_flush_of_the_old_one(tmp_path):
    """The old flush hangs in the device. It would write the leader epochs of the old log by the folder's name."""
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        disk.hold_flushes()
        produced = asyncio.ensure_future(node.client.produce({T0: batch(b"old")}))
        await until(lambda: disk.held)
        deleting = asyncio.ensure_future(node.broker.delete_topic("t"))
        assert (await produced)[T0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        making = asyncio.ensure_future(node.topic())
        await asyncio.sleep(0.02)
        assert not deleting.done()
        disk.let_flushes_go()
        await asyncio.gather(deleting, making)
        assert not (tmp_path / "t-0" / "leader-epoch-checkpoint").exists()
        assert node.partition().log.failed is None
        assert (await node.client.produce({T0: batch(b"new")}))[T0].base_offset == 0


async def test_topics_come_and_go_while_many_partitions_share_few_handles(tmp_path):

    limits = replace(Limits(), open_files_max=8)
    async with running(tmp_path, limits=limits, **QUICK) as node, node.another() as writer:
        await node.topic(partitions=30)
        sent = 0

        async def write() -> None:
            nonlocal sent
            while not is_over:
                await writer.produce({("t", sent % 30): batch(b"%d" % sent * 100)}, acks=1)
                sent += 1

        is_over = False
        writing = asyncio.ensure_future(write())
        for number in range(15):
            await node.topic(f"other{number}", 5)
            await node.broker.delete_topic(f"other{number}")
        is_over = True
        await writing
        answer = await node.client.fetch({("t", index): 0 for index in range(30)})
        assert sum(len(answer.values("t", index)) for index in range(30)) == sent


async def test_settings_change_while_clients_read_metadata(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        first = (await node.ask(MetadataRequest(topics=None), 12)).topics[0]
        await node.broker.grow_topic("t", 4)
        grown = (await node.ask(MetadataRequest(topics=None), 12)).topics[0]
        await node.broker.delete_topic("t")
        await node.topic()
        again = (await node.ask(MetadataRequest(topics=None), 12)).topics[0]
        assert [len(one.partitions) for one in (first, grown, again)] == [1, 4, 1]
        assert first.topic_id == grown.topic_id != again.topic_id


async def test_producers_of_a_log_that_was_damaged_after_a_clean_stop_are_remembered(tmp_path):
    def numbered(sequence: int) -> bytes:
        return batch(b"v%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async with running(tmp_path) as node:
        await node.topic()
        for sequence in range(3):
            assert (await node.client.produce({("t", 0): numbered(sequence)}))["t", 0].base_offset == sequence
    (tmp_path / PARTITION_OFFSETS).unlink()
    os.truncate(tmp_path / "t-0" / f"{0:020d}.log", 2 * len(numbered(0)) + 7)
    async with running(tmp_path) as node:
        offsets = [(await node.client.produce({("t", 0): numbered(one)}))["t", 0].base_offset for one in (1, 2)]
        assert offsets == [1, 2]
        assert (await node.client.fetch({("t", 0): 0})).values() == [b"v0", b"v1", b"v2"]


@pytest.mark.parametrize(
    ("files", "asked", "is_told"),
    [(20_000, None, False), (1_000, None, True), (10_000, 12_000, True), (1_000_000, 12_000, False)],
)
def test_a_limit_of_connections_is_told_to_who_asked_for_more_or_has_few(
    tmp_path, monkeypatch, caplog, files, asked, is_told
):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    limits = Limits() if asked is None else Limits(connections_max=asked)
    with caplog.at_level(logging.INFO):
        assert connections_max(config(tmp_path, limits=limits)) <= limits.connections_max
    assert ("connections_limited" in caplog.text) == is_told
