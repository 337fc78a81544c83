"""Old messages go from a running broker: to the message, held by groups, and trouble in one place stays there."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from clarion.broker import cleaner_state, cleaning
from clarion.broker.config import Durability
from clarion.log import retention
from clarion.model.ids import TopicPartition
from clarion.wire.records import encode_batch
from tests.broker.disks import StoryDisk
from tests.broker.harness import until
from tests.broker.kept import HOUR, T0, Kept, WitnessDisk, commit, keeping, settle
from tests.broker.talk import batch

# Retention


async def test_a_crash_at_any_point_of_a_sweep_neither_loses_what_stays_nor_brings_back_what_went(tmp_path, clock):
    disk, copies = WitnessDisk(), []

    def copy(path: str) -> None:
        copies.append(tmp_path / f"crash-{len(copies)}")
        shutil.copytree(tmp_path / "data", copies[-1])

    async with keeping(tmp_path / "data", clock, disk=disk) as node:
        await node.topic(retention_ms=str(11 * HOUR * 1000), segment_bytes="1000000")
        kept = Kept(node, clock)
        for number in range(8):
            await kept.write(b"%d" % number, b"%d, too" % number)
            if number % 2:
                node.partition().roll(clock.now_ms())
            clock.advance(2 * HOUR)
        await kept.house.save_checkpoints()
        await until(lambda: not node.partition().is_flushing)
        disk.before_rename = copy
        await kept.pass_time(0.001)
        disk.before_rename = lambda path: None
        copy("afterwards")
        start, left = node.partition().start_offset, await kept.read()
        assert (start, len(left)) == (6, 10)
    starts = []
    for folder in copies:
        async with keeping(folder, clock) as node:
            first = node.partition().start_offset
            assert (await Kept(node, clock).read())[start - first :] == left
            starts.append(first)
    assert starts[0] == 0
    assert starts[1:] == [start] * (len(copies) - 1), "it is saved before the first file goes"


@pytest.mark.parametrize("durability", list(Durability))
async def test_a_message_goes_when_its_time_is_over_and_its_bytes_go_too(tmp_path, clock, durability):
    async with keeping(tmp_path, clock, durability=durability) as node:
        await node.topic(retention_ms=str(10 * HOUR * 1000), file_delete_delay_ms="0")
        kept = Kept(node, clock)
        await kept.write(b"old", b"old too")
        await kept.pass_time(6 * HOUR)
        await kept.write(b"young")
        assert len(await kept.read()) == 3
        await kept.pass_time(5 * HOUR)
        assert await kept.read() == [b"young"]
        assert node.partition().start_offset == 2
        assert node.partition().log.size_bytes == len(batch(b"young")), "the file is written anew without the head"
        await kept.pass_time(6 * HOUR)
        assert await kept.read() == []
        await kept.pass_time(1)
        await kept.pass_time(1)
        assert node.partition().log.size_bytes == 0
        assert not list((tmp_path / "t-0").glob("*.deleted"))
        await kept.write(b"new")
        assert node.partition().next_offset == 4


async def test_a_backfill_of_old_messages_stays_for_the_grace_period_and_is_told_of_once(tmp_path, clock, caplog):
    async with keeping(tmp_path, clock) as node:
        await node.topic(partitions=2)
        kept = Kept(node, clock)
        for partition in (0, 1):
            old = batch(b"from long ago", at=clock.now_ms() - 1000 * HOUR * 1000)
            assert (await node.client.produce({("t", partition): old}))["t", partition].error_code == 0
        for _ in range(4):
            await kept.pass_time(60)
            assert await kept.read() == [b"from long ago"]
        assert caplog.text.count("messages_too_old_to_stay") == 1
        await kept.pass_time(61)
        assert await kept.read() == []


@pytest.mark.uncompiled
async def test_a_batch_that_expires_message_by_message_is_unpacked_only_when_one_of_them_does(
    tmp_path, clock, monkeypatch
):
    async with keeping(tmp_path, clock) as node:
        await node.topic(retention_ms=str(10 * HOUR * 1000), clarion_retention_grace_ms="0")
        kept = Kept(node, clock)
        now = clock.now_ms()
        ages = [12, 11, 5]
        records = [(None, b"%d" % age, (), now - age * HOUR * 1000) for age in ages]
        assert (await node.client.produce({T0: bytes(encode_batch(records))}))[T0].error_code == 0
        unpacked = []
        original = retention.records_data
        monkeypatch.setattr(retention, "records_data", lambda *batch: unpacked.append(1) or original(*batch))
        for _ in range(20):
            await kept.pass_time(60)
            assert node.partition().start_offset == 2
        assert len(unpacked) <= 3
        await kept.pass_time(5 * HOUR)
        assert await kept.read() == []


async def test_a_topic_keeps_no_more_bytes_than_it_may(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        one = len(batch(b"x" * 1000))
        await node.topic(retention_bytes=str(3 * one), segment_bytes=str(2 * one))
        kept = Kept(node, clock)
        await kept.write(*[b"%04d" % number * 250 for number in range(10)])
        await kept.pass_time(1)
        assert node.partition().start_offset == 7


async def test_a_group_holds_back_what_it_has_not_read(tmp_path, clock):
    hold = {"clarion_retention_hold_groups": "slow", "clarion_retention_hold_max_ms": str(100 * HOUR * 1000)}
    async with keeping(tmp_path, clock) as node:
        await node.topic(retention_ms=str(HOUR * 1000), **hold)
        kept = Kept(node, clock)
        await kept.write(b"a", b"b", b"c")
        await kept.pass_time(2 * HOUR)
        assert len(await kept.read()) == 3, "a group that has committed nothing holds everything"
        await commit(node, "slow", 2)
        await kept.pass_time(1)
        assert await kept.read() == [b"c"]
        await kept.pass_time(99 * HOUR)
        assert await kept.read() == [], "no longer than it may"


async def test_a_clock_that_jumps_deletes_nothing(tmp_path, clock, caplog):
    async with keeping(tmp_path, clock) as node:
        await node.topic(retention_ms=str(HOUR * 1000))
        kept = Kept(node, clock)
        await kept.write(b"v")
        await kept.house.retain()
        clock.advance(1000 * HOUR)
        await kept.house.retain()
        assert await kept.read() == [b"v"]
        assert "deletion_paused" in caplog.text
        clock.advance(-1000 * HOUR)
        await kept.house.retain()
        assert await kept.read() == [b"v"]


async def test_a_clock_that_is_ahead_at_the_start_deletes_nothing(tmp_path, clock, caplog):
    async with keeping(tmp_path, clock) as node:
        await node.topic(retention_ms=str(HOUR * 1000))
        await node.topic("by-size", retention_bytes="1")
        kept = Kept(node, clock)
        await kept.write(b"v")
        await kept.write(b"1", b"2", topic="by-size")
    clock.advance(1000 * HOUR)
    for _ in range(2):
        async with keeping(tmp_path, clock) as node:
            kept = Kept(node, clock)
            await kept.house.retain()
            await kept.house.save_checkpoints()
            assert await kept.read() == [b"v"]
            assert await kept.read("by-size") == [b"2"], "what is too large goes whatever the clock says"
            assert "deletion_paused" in caplog.text
    clock.advance(24 * HOUR)
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await kept.house.retain()
        assert await kept.read() == [b"v"], "what was noted while the clock was doubted does not end its grace"
        await kept.pass_time(600)
        assert await kept.read() == [], "the new time has stood for a day"


async def test_a_clock_that_jumps_forgets_neither_producers_nor_committed_offsets(tmp_path, clock):
    async with keeping(tmp_path, clock, offsets_partitions=1) as node:
        await node.topic()
        records = batch(b"v", at=clock.now_ms(), producer_id=7, producer_epoch=0, base_sequence=0)
        assert (await node.client.produce({T0: records}))[T0].error_code == 0
        await commit(node, "g", 1)
        (shard,) = node.server.groups.shards
        clock.advance(1000 * HOUR)
        await node.server.housekeeping.expire()
        expire_offsets(shard)
        assert len(node.partition().producers) == 1
        assert node.server.groups.committed_offset("g", TopicPartition(*T0)) == 1
        node.broker.clock_trust.trust()
        await node.server.housekeeping.expire()
        expire_offsets(shard)
        assert len(node.partition().producers) == 0
        assert node.server.groups.committed_offset("g", TopicPartition(*T0)) is None


def expire_offsets(shard) -> None:
    """As if the time of the next look at the groups had come."""
    shard.coordinator.shard.schedule_expiry(-(10**12))
    shard._on_timer()


async def test_offsets_of_a_shard_that_is_still_loading_hold_everything(tmp_path, clock):
    async with keeping(tmp_path, clock, offsets_partitions=1) as node:
        await node.topic()
        await commit(node, "g", 5)
        (shard,) = node.server.groups.shards
        assert node.server.groups.committed_offset("g", TopicPartition(*T0)) == 5
        shard._is_loaded = False  # what was read so far may not be where the group went back to later
        assert node.server.groups.committed_offset("g", TopicPartition(*T0)) is None


async def test_new_settings_count_from_the_next_look(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(retention_ms="-1")
        kept = Kept(node, clock)
        await kept.write(b"a", b"b")
        await kept.pass_time(1000 * HOUR)
        assert len(await kept.read()) == 2
        await node.broker.configure_topic("t", lambda topic: {"retention.ms": str(HOUR * 1000)})
        await kept.pass_time(0)
        assert await kept.read() == []
        await kept.write(b"c", b"d")
        await node.broker.configure_topic("t", lambda topic: {"retention.bytes": str(len(batch(b"d")))})
        await kept.pass_time(0)
        assert await kept.read() == [b"d"]


async def test_settings_that_come_while_a_sweep_decides_are_the_ones_that_count(tmp_path, clock, monkeypatch):
    plan, is_reached, may_go = cleaner_state.RetentionWalk, threading.Event(), threading.Event()

    def held(*what, **how):
        is_reached.set()
        assert may_go.wait(20)
        return plan(*what, **how)

    async with keeping(tmp_path, clock) as node:
        await node.topic(retention_ms=str(HOUR * 1000))
        kept = Kept(node, clock)
        await kept.write(b"a", b"b")
        monkeypatch.setattr(cleaner_state, "RetentionWalk", held)
        sweeping = asyncio.ensure_future(kept.pass_time(2 * HOUR))
        await until(is_reached.is_set)
        await node.broker.configure_topic("t", lambda topic: {"retention.ms": str(10 * HOUR * 1000)})
        may_go.set()
        await sweeping
        assert await kept.read() == [b"a", b"b"]
        await kept.pass_time(9 * HOUR)
        assert await kept.read() == []


class HeldDisk(WitnessDisk):
    """Waits in the middle of a sync of a partition's folder, once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.may_go, self.holds = threading.Event(), threading.Event(), False

    def sync_folder(self, path: str) -> None:
        if self.holds and path.endswith("t-0"):
            self.is_reached.set()
            assert self.may_go.wait(60)
        super().sync_folder(path)


async def test_settings_that_come_while_a_sweep_waits_for_the_disk_count_too(tmp_path, clock):
    disk = HeldDisk()
    async with keeping(tmp_path, clock, disk=disk) as node:
        await node.topic(retention_ms=str(HOUR * 1000))
        kept = Kept(node, clock)
        await kept.write(b"a", b"b")
        disk.holds = True
        sweeping = asyncio.ensure_future(kept.pass_time(2 * HOUR))
        await until(disk.is_reached.is_set)
        await node.broker.configure_topic("t", lambda topic: {"retention.ms": "-1"})
        disk.may_go.set()
        await sweeping
        assert await kept.read() == [b"a", b"b"]


async def test_quiet_partitions_are_passed_over(tmp_path, clock, monkeypatch):
    async with keeping(tmp_path, clock) as node:
        one = len(batch(b"v"))
        await node.topic("by-time", retention_ms=str(HOUR * 1000))
        await node.topic("by-size", retention_bytes=str(one), segment_bytes="2000000")
        await node.topic("for-ever", retention_ms="-1")
        await node.topic("empty")
        await node.topic("keys", cleanup_policy="compact")
        kept = Kept(node, clock)
        for name in ("by-time", "by-size", "for-ever", "keys"):
            for _ in range(3):
                await kept.write(b"v", topic=name, key=b"k")
        node.partition("keys").roll(clock.now_ms())
        for _ in range(3):
            await kept.pass_time(1)
            await kept.house.compact()
        looked: list[str] = []

        def watched(plan):
            def planned(view, *args, **more):
                looked.append(view.home.path)
                return plan(view, *args, **more)

            return planned

        monkeypatch.setattr(cleaner_state, "RetentionWalk", watched(cleaner_state.RetentionWalk))
        monkeypatch.setattr(cleaning, "plan_compaction", watched(cleaning.plan_compaction))
        for _ in range(5):
            await kept.pass_time(1)
            await kept.house.compact()
        assert looked == []
        await kept.write(b"v", topic="by-size")
        await kept.pass_time(2 * HOUR)
        assert {Path(one).name for one in looked} == {"by-time-0", "by-size-0"}


async def test_a_damaged_log_does_not_keep_the_others_from_being_swept(tmp_path, clock, caplog):
    async with keeping(tmp_path, clock) as node:
        for name in ("a", "b", "c"):
            await node.topic(name, retention_ms=str(HOUR * 1000))
            await node.topic(f"{name}-keys", cleanup_policy="compact", segment_bytes="1024")
        kept = Kept(node, clock)
        for name in ("a", "b", "c"):
            await kept.write(b"1", b"2", topic=name)
            await kept.write(*[b"%d" % n * 500 for n in range(4)], topic=f"{name}-keys", key=b"k")
        for name in ("a", "a-keys"):
            node.partition(name).log.segments[0].handle().write([b"\xff" * 40], 0)
        await kept.pass_time(2 * HOUR)
        await kept.house.compact()
        await settle(node)
        await kept.house.compact()
        assert [node.partition(name).start_offset for name in ("b", "c")] == [2, 2]
        for name in ("b-keys", "c-keys"):
            assert len(await kept.read(name)) == 2, "the newest, and the one in the file that is written now"
        assert "cleaning_put_off" in caplog.text
        assert node.partition("a").log.failed is None


async def test_a_mistake_in_one_partition_does_not_keep_the_others_from_being_swept(
    tmp_path, clock, caplog, monkeypatch
):
    async with keeping(tmp_path, clock) as node:
        for name in ("a", "b", "c"):
            await node.topic(name, retention_ms=str(HOUR * 1000))
        kept = Kept(node, clock)
        for name in ("a", "b", "c"):
            await kept.write(b"1", topic=name)
        plan = cleaner_state.RetentionWalk

        def mistaken(view, *how, **more):
            return 1 / 0 if view.home.path.endswith("a-0") else plan(view, *how, **more)

        monkeypatch.setattr(cleaner_state, "RetentionWalk", mistaken)
        await kept.pass_time(2 * HOUR)
        assert [node.partition(name).start_offset for name in ("a", "b", "c")] == [0, 1, 1]
        assert "cleaning_failed" in caplog.text


async def test_a_full_disk_does_not_keep_old_messages_from_going(tmp_path, clock):
    disk = StoryDisk()
    async with keeping(tmp_path, clock, disk=disk) as node:
        await node.topic(retention_ms=str(HOUR * 1000))
        kept = Kept(node, clock)
        await kept.write(b"a", b"b")
        disk.on_open = lambda path: OSError(28, "No space left on device") if path.endswith("2.log") else None
        await kept.pass_time(2 * HOUR)
        assert node.partition().start_offset == 2
        assert node.partition().log.failed is None
