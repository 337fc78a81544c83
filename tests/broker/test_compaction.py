"""Keys are compacted in a running broker, whatever else happens to their topic meanwhile."""

import asyncio

from clarion.model.names import OFFSETS_TOPIC
from tests.broker.harness import Node, until
from tests.broker.kept import Gate, Kept, commit, halfway_through_compaction, keeping, settle

# Compaction


async def test_of_every_key_the_newest_value_stays(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(cleanup_policy="compact", segment_bytes="1024", min_cleanable_dirty_ratio="0.01")
        kept = Kept(node, clock)
        for round_ in range(5):
            for key in (b"a", b"b", b"c"):
                await kept.write(key + b"%d" % round_ + b"." * 300, key=key)
        node.partition().roll(clock.now_ms())
        await settle(node)
        for _ in range(3):
            await kept.house.compact()
            await settle(node)
        assert [value[:2] for value in await kept.read()] == [b"a4", b"b4", b"c4"]
        assert node.partition().next_offset == 15


async def test_the_internal_topic_shrinks_to_what_groups_need(tmp_path, clock):
    async with keeping(tmp_path, clock, offsets_partitions=1) as node:
        await node.topic()
        for offset in range(300):
            await commit(node, "g", offset)
        log = node.partition(OFFSETS_TOPIC).log
        before = log.size_bytes
        node.partition(OFFSETS_TOPIC).roll(clock.now_ms())
        node.partition(OFFSETS_TOPIC).flush_soon()
        await settle(node)
        await node.server.housekeeping.compact()
        assert log.size_bytes < before / 20
        await commit(node, "g", 300)
    async with keeping(tmp_path, clock) as node:
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert {(group, offset) for group, _, offset in node.server.groups.committed()} == {("g", 300)}


async def test_a_topic_that_is_being_loaded_is_not_compacted(tmp_path, clock):
    async with keeping(tmp_path, clock, offsets_partitions=1) as node:
        await node.topic()
        for offset in range(20):
            await commit(node, "g", offset)
        partition = node.partition(OFFSETS_TOPIC)
        partition.roll(clock.now_ms())
        partition.flush_soon()
        await settle(node)
        (shard,) = node.server.groups.shards
        shard._is_loaded = False
        size = partition.log.size_bytes
        await node.server.housekeeping.compact()
        assert partition.log.size_bytes == size
        shard._is_loaded = True
        await node.server.housekeeping.compact()
        assert partition.log.size_bytes < size


async def dirty(node: Node, kept: Kept) -> None:
    await node.topic(cleanup_policy="compact,delete", segment_bytes="1024", min_cleanable_dirty_ratio="0.01")
    for number in range(8):
        await kept.write(b"%d" % number * 500, key=b"k")
    node.partition().flush_soon()
    await settle(node)


async def test_records_deleted_during_a_compaction_do_not_come_back(tmp_path, clock, monkeypatch):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await dirty(node, kept)
        async with halfway_through_compaction(kept.house, monkeypatch):
            node.partition().log.advance_start(6)
        assert node.partition().start_offset == 6
        assert [value[:1] for value in await kept.read()] == [b"6", b"7"]
        await kept.house.compact()
        assert [value[:1] for value in await kept.read()][-1] == b"7"


async def test_a_topic_that_is_compacted_no_longer_keeps_what_it_has(tmp_path, clock, monkeypatch):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await dirty(node, kept)
        async with halfway_through_compaction(kept.house, monkeypatch):
            await node.broker.configure_topic("t", lambda topic: {**topic.overrides, "cleanup.policy": "delete"})
        assert len(await kept.read()) == 8
        assert not list((tmp_path / "t-0").glob("*.cleaned"))


async def test_a_topic_can_be_deleted_and_made_again_in_the_middle_of_its_compaction(tmp_path, clock, monkeypatch):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await dirty(node, kept)
        async with halfway_through_compaction(kept.house, monkeypatch):
            deleting = asyncio.ensure_future(node.broker.delete_topic("t"))
            await asyncio.sleep(0.02)
            assert not deleting.done()
        await deleting
        await node.topic(cleanup_policy="compact")
        await kept.write(b"new", key=b"k")
        assert await kept.read() == [b"new"]
        assert not list((tmp_path / "t-0").glob("*.cleaned"))


async def test_a_stop_does_not_wait_for_the_end_of_a_compaction_but_for_its_thread(tmp_path, clock, monkeypatch):
    async with keeping(tmp_path, clock, compaction_check_seconds=0.01) as node:
        gate = Gate(monkeypatch)
        kept = Kept(node, clock)
        await dirty(node, kept)
        await until(gate.is_reached.is_set)
        stopping = asyncio.ensure_future(node.server.stop(drain_seconds=0))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        gate.open()
        await asyncio.wait_for(stopping, 60)
    assert not list((tmp_path / "t-0").glob("*.cleaned"))
    async with keeping(tmp_path, clock) as node:
        assert (await Kept(node, clock).read())[-1] == b"7" * 500
