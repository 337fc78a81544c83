"""A wall clock that was wrong for a while and is right again: nothing goes because of what it said meanwhile."""

import shutil

from clarion.cli.backup_files import copy_data_dir
from clarion.log.clock_trust import CLOCK_FILE
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from clarion.wire.records import encode_batch
from tests.broker import group_words
from tests.broker.harness import Node, until
from tests.broker.kept import Kept, commit, keeping, settle
from tests.broker.talk import batch

MONTH = 30 * 24 * 3600
OFTEN = {"offsets_retention_check_interval_ms": 1, "offsets_partitions": 1}
WRITTEN_BY_SEVEN = {"producer_id": 7, "producer_epoch": 0}


async def set_wrong(kept: Kept) -> None:
    """While the broker runs, which notices."""
    await kept.house.retain()
    kept.clock.advance(-MONTH)
    await kept.house.retain()
    assert not kept.node.broker.clock_trust.is_trusted()


async def set_right(kept: Kept) -> None:
    kept.clock.advance(MONTH)
    await kept.house.expire()
    await kept.house.retain()
    assert kept.node.broker.clock_trust.is_trusted()


async def test_what_was_written_meanwhile_stays_for_its_grace_period_and_without_a_time_for_good(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await node.topic("t")
        await node.topic("untimed")
        await set_wrong(kept)
        await kept.write(b"carries the wrong time")
        untimed = bytes(encode_batch([(None, b"carries no time", (), -1)]))
        await node.client.produce({("untimed", 0): untimed})
        await kept.house.retain()
        await set_right(kept)
        assert await kept.read() == [b"carries the wrong time"]
        assert await kept.read("untimed") == [b"carries no time"]
        await kept.pass_time(600)
        assert await kept.read() == []
        assert await kept.read("untimed") == [b"carries no time"]
        await kept.pass_time(8 * 24 * 3600)
        assert await kept.read("untimed") == []


async def test_what_the_broker_stamped_meanwhile_carries_the_time_that_it_was(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await node.topic("t", message_timestamp_type="LogAppendTime")
        await node.topic("own")
        before = clock.now_ms()
        await set_wrong(kept)
        await kept.write(b"stamped")
        right = batch(b"of a producer whose clock is right", at=before)
        assert (await node.client.produce({("own", 0): right}))["own", 0].error_code == 0
        await set_right(kept)
        await kept.pass_time(600)
        assert await kept.read() == [b"stamped"]
        ((header, _),) = node.partition().log.batch_headers(0)
        assert before <= header.max_timestamp <= clock.now_ms()
        await kept.pass_time(8 * 24 * 3600)
        assert await kept.read() == []


async def test_a_producer_that_wrote_meanwhile_is_still_known(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await node.topic("t")
        await set_wrong(kept)
        written = batch(b"once", at=clock.now_ms(), base_sequence=0, **WRITTEN_BY_SEVEN)
        await node.client.produce({("t", 0): written})
        await set_right(kept)
        assert (await node.client.produce({("t", 0): written}))["t", 0].base_offset == 0
        assert node.partition().next_offset == 1


async def test_a_producer_is_still_known_when_the_clock_is_set_right_between_two_lives(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await node.topic("t")
        await set_wrong(kept)
        written = batch(b"once", at=clock.now_ms(), base_sequence=0, **WRITTEN_BY_SEVEN)
        await node.client.produce({("t", 0): written})
    clock.advance(MONTH)
    async with keeping(tmp_path, clock) as node:
        await Kept(node, clock).house.expire()
        assert node.broker.clock_trust.is_trusted()
        assert (await node.client.produce({("t", 0): written}))["t", 0].base_offset == 0
        assert node.partition().next_offset == 1


async def test_offsets_that_were_committed_meanwhile_are_not_forgotten(tmp_path, clock):
    async with keeping(tmp_path, clock, **OFTEN) as node:
        kept = Kept(node, clock)
        await node.topic("t")
        await set_wrong(kept)
        await commit(node, "g", 5)
        await _commit_for_a_millisecond(node, "short")
        await set_right(kept)
        await until(lambda: not _has_committed(node, "short"))  # so the groups were looked through
        assert await group_words.committed(node) == 5
        clock.advance(days=8)
        node.broker.clock_trust.trust()  # now a week has passed
        await until(lambda: not _has_committed(node, "g"))


async def test_a_backup_that_is_restored_a_month_later_keeps_everything_for_a_day(tmp_path, clock):
    async with keeping(tmp_path / "data", clock) as node:
        await node.topic("t")
        await Kept(node, clock).write(b"saved")
        await node.server.housekeeping.save_checkpoints()
        (tmp_path / "copy").mkdir()
        list(copy_data_dir(tmp_path / "data", tmp_path / "copy"))
    clock.advance(MONTH)
    async with keeping(tmp_path / "copy", clock) as node:
        kept = Kept(node, clock)
        await kept.house.retain()
        assert await kept.read() == [b"saved"]
        await kept.pass_time(24 * 3600)
        assert await kept.read() == []


async def test_who_cannot_tell_when_the_broker_was_last_alive_deletes_nothing_for_a_day(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic("t")
        await Kept(node, clock).write(b"old")
    (tmp_path / CLOCK_FILE).write_bytes(b"damaged\n")
    clock.advance(MONTH)
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await kept.house.retain()
        assert await kept.read() == [b"old"]


COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "delete_retention_ms": "3600000"}


async def compact(kept: Kept) -> None:
    """Twice: the first run notes of tombstones when they may go, the second one takes those whose time is over."""
    partition = kept.node.partition()
    partition.roll(kept.clock.now_ms())
    for _ in range(2):
        partition.flush_soon()
        await settle(kept.node)
        await kept.house.compact()


async def test_no_tombstone_goes_by_a_clock_that_jumped_ahead(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await node.topic("t", **COMPACTED)
        await _delete_a_key(kept)
        await compact(kept)
        clock.advance(days=2)
        assert not node.broker.clock_trust.is_trusted()
        await kept.write(b"more", key=b"b")
        await compact(kept)
        assert await kept.read() == [None, b"more"]
        clock.advance(days=-2)
        await kept.write(b"and more", key=b"c")
        await compact(kept)
        assert await kept.read() == [None, b"more", b"and more"]
        await kept.pass_time(3601)
        await compact(kept)
        assert await kept.read() == [b"more", b"and more"]


async def test_a_tombstone_that_was_cleaned_by_a_clock_which_was_behind_keeps_its_time(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        kept = Kept(node, clock)
        await node.topic("t", **COMPACTED)
        await set_wrong(kept)
        await _delete_a_key(kept)
        await compact(kept)
        await set_right(kept)
        await compact(kept)
        assert await kept.read() == [None]
        await kept.pass_time(3601)
        await compact(kept)
        assert await kept.read() == []


async def _delete_a_key(kept: Kept) -> None:
    await kept.write(b"value", key=b"a")
    deleted = bytes(encode_batch([(b"a", None, (), kept.clock.now_ms())]))
    assert (await kept.node.client.produce({("t", 0): deleted}))["t", 0].error_code == 0


async def _commit_for_a_millisecond(node: Node, group: str) -> None:
    """As old clients can ask for."""
    asked = OffsetCommitRequestTopic(
        name="t", partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=1),)
    )
    reply = await node.ask(OffsetCommitRequest(group_id=group, retention_time=1, topics=(asked,)), 4)
    assert reply.topics[0].partitions[0].error_code == 0


def _has_committed(node: Node, group: str) -> bool:
    return node.broker.groups.committed_offset(group, node.partition().tp) is not None


async def test_a_broker_that_died_in_its_first_seconds_has_said_when_that_was(tmp_path, clock):
    here, after = tmp_path / "here", tmp_path / "after"
    async with keeping(here, clock) as node:
        await node.topic("t")
        await Kept(node, clock).write(b"young")
        shutil.copytree(here, after, ignore=shutil.ignore_patterns(".lock"))  # what a kill leaves
    clock.advance(MONTH)
    async with keeping(after, clock) as node:
        kept = Kept(node, clock)
        await kept.house.retain()
        assert await kept.read() == [b"young"]
