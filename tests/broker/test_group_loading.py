"""Groups are loaded after a start: in turns, again after trouble, and with an error for who asks too early."""

import asyncio
import errno
import threading

import pytest

from clarion.broker import coordinator_runtime, coordinator_shard
from clarion.groups.placement import partition_for
from clarion.groups.records import Key, encode_key
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC
from clarion.wire.messages.groups import (
    HeartbeatRequest,
    ListGroupsRequest,
)
from clarion.wire.records import encode_batch
from tests.broker.disks import StoryDisk
from tests.broker.group_words import QUICK, commit, committed, find, hold_loading
from tests.broker.harness import running, until


@pytest.mark.parametrize("version", [1, 5])
async def test_while_groups_load_there_is_an_error_and_never_no_offset(tmp_path, version):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 5)
        hold_loading(node)
        assert await committed(node, version=version) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await commit(node, 6) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await node.ask(ListGroupsRequest(), 3)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await node.ask(heartbeat, 3)).error_code == 0, "Kafka says yes while it does not know"
        assert (await find(node)).error_code == 0


async def test_groups_whose_records_cannot_be_read_stay_closed_and_the_others_open(tmp_path):
    async with running(tmp_path, offsets_partitions=4, metrics_port=0, **QUICK) as node:
        await node.topic()
        groups = [f"g{number}" for number in range(16)]
        for group in groups:
            assert await commit(node, 7, group) == 0
        damaged = max(node.server.groups.shards, key=lambda shard: shard.partition.next_offset).partition
        file = damaged.log.segments[0].handle()
        file.write([b"\xff" * 20], 30)
    async with running(tmp_path, offsets_partitions=4, metrics_port=0, **QUICK) as node:
        await until(lambda: not any(shard.is_loading for shard in node.server.groups.shards))
        assert [shard.partition.tp for shard in node.server.groups.shards if shard.failure] == [damaged.tp]
        answers = [await committed(node, group) for group in groups]
        assert set(answers) == {7, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        reader, writer = await asyncio.open_connection(*node.server.metrics_address)
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        page = await reader.read()
        writer.close()
        assert page.startswith(b"HTTP/1.1 503")
        assert str(damaged.tp).encode() in page


def noting_threads(work, threads: set):
    def noted(*what):
        threads.add(threading.current_thread())
        return work(*what)

    return noted


async def test_many_groups_load_in_turns_that_hold_nobody_up(tmp_path):
    count = 1_000
    async with running(tmp_path, offsets_partitions=2, **QUICK) as node:
        await node.topic()
        await find(node)
        for number in range(count):
            await commit(node, number, f"group-{number}")
    async with running(tmp_path, **QUICK) as node:
        assert await committed(node, "group-7") in (7, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert len((await node.ask(ListGroupsRequest(), 3)).groups) == count
        assert [await committed(node, f"group-{number}") for number in (0, 500, 999)] == [0, 500, 999]


async def test_groups_are_read_in_a_thread_and_replayed_in_turns(tmp_path, monkeypatch):
    """However long the disk takes, and however many groups there are, others have their turn."""
    monkeypatch.setattr(coordinator_shard, "_RECORDS_PER_TURN", 10)
    async with running(tmp_path, offsets_partitions=1, **QUICK) as node:
        await node.topic()
        for number in range(500):
            await commit(node, number, f"group-{number}")
        (shard,) = node.server.groups.shards
        readers, turns = set(), 0
        shard.start_over()
        monkeypatch.setattr(coordinator_shard, "_decoded", noting_threads(coordinator_shard._decoded, readers))
        loading = asyncio.ensure_future(shard.load())
        while not loading.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await node.ask(ListGroupsRequest(), 3)).groups) == 500
        assert threading.main_thread() not in readers
        assert readers
        assert turns >= 50


async def test_groups_that_a_bad_disk_kept_closed_are_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "_RETRY_SECONDS", (0.01,))
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await commit(node, 7)
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        tries = []

        def break_offsets(path):
            if OFFSETS_TOPIC not in path:
                return None
            tries.append(path)
            return OSError(errno.EIO, "it broke")

        disk.on_read = break_offsets
        shard = node.server.groups.shards[partition_for("g", 16)]
        shard.start_over()
        await shard.load()
        assert "it broke" in shard.failure
        assert await committed(node) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        tries.clear()
        retrying = asyncio.ensure_future(node.server.groups.runtime._load_until_done(node.server.groups.shards))
        await until(lambda: len(tries) > 2)
        assert not shard.is_loaded
        disk.on_read = lambda path: None
        await until(lambda: shard.is_loaded)
        await retrying
        assert await committed(node) == 7


async def test_a_record_that_nobody_can_read_is_passed_over_and_what_was_said_before_holds(tmp_path):
    async with running(tmp_path, offsets_partitions=1, **QUICK) as node:
        await node.topic()
        for group in ("g", "h"):
            await commit(node, 7, group)
        garbage = [
            (encode_key(Key(1, "g", "t", 0)), b"\x7f\xff from the future", (), 0),
            (encode_key(Key(2, "g")), b"\0\3", (), 0),
            (b"\0", None, (), 0),
            (b"", b"", (), 0),
        ]
        node.partition(OFFSETS_TOPIC).append_own(encode_batch(garbage), 0)
        await commit(node, 8, "h")
    async with running(tmp_path, offsets_partitions=1, **QUICK) as node:
        (shard,) = node.server.groups.shards
        await until(lambda: shard.is_loaded or shard.failure)
        assert (await committed(node, "g"), await committed(node, "h")) == (7, 8)
        assert await commit(node, 9, "g") == 0
