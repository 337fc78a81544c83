"""DeleteRecords in a cluster: what is deleted stays so when another broker leads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clarion.broker.apis import k21_delete_records
from clarion.broker.config import Durability
from clarion.log.checkpoints import PARTITION_OFFSETS, load_partitions
from clarion.model.errors import ErrorCode
from clarion.replication import conversation
from clarion.replication.partition import Partition
from clarion.wire.messages.topics import CreatableTopicConfig
from clarion.world import RealDisk
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import write
from tests.broker.replicas import FOLLOWER, NOW_MS, two_replicas
from tests.broker.talk import batch
from tests.broker.test_cluster import _leads, cluster_of, create, topic
from tests.broker.test_delete_records import delete


def start_at(node: Node) -> int:
    partition = node.broker.partitions.find(node.broker.image.topics["t"].id, 0)
    assert partition is not None
    return partition.start_offset


async def test_it_is_answered_when_those_in_sync_know_the_new_start(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2, 3),)))
        await until(lambda: _leads(cluster[1], "t", 0) and len(cluster[1].partition().state.in_sync) == 3)
        for rounds in (1, 2):
            await write(cluster[1], *[(None, b"%d" % number) for number in range(5)])
            assert await delete(cluster[1], 5 * rounds - 1) == (ErrorCode.NONE, 5 * rounds - 1)
            assert [start_at(cluster[node]) for node in (1, 2, 3)] == [5 * rounds - 1] * 3


@pytest.mark.uncompiled
async def test_followers_that_wait_for_messages_hear_of_the_new_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "MAX_WAIT_MS", 20_000)  # far longer than DeleteRecords may take
    async with cluster_of(tmp_path, 3) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2, 3),)))
        await until(lambda: _leads(cluster[1], "t", 0) and len(cluster[1].partition().state.in_sync) == 3)
        await write(cluster[1], (None, b"one"), (None, b"two"))
        assert await delete(cluster[1], 1) == (ErrorCode.NONE, 1)


@pytest.mark.uncompiled
async def test_that_a_follower_does_not_hear_of_it_in_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(tmp_path, 2) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2),)))
        await until(lambda: _leads(cluster[1], "t", 0) and len(cluster[1].partition().state.in_sync) == 2)
        await write(cluster[1], (None, b"one"), (None, b"two"))
        with monkeypatch.context() as deaf:
            deaf.setattr(Partition, "note_leader", lambda *_: None)
            assert await delete(cluster[1], 1) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        await write(cluster[1], (None, b"three"))  # with which it hears of the start, too
        assert await delete(cluster[1], 1) == (ErrorCode.NONE, 1), "asked again"
        assert start_at(cluster[2]) == 1


async def test_a_follower_whose_own_retention_went_further_says_so(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2),)))
        await until(lambda: _leads(cluster[1], "t", 0) and len(cluster[1].partition().state.in_sync) == 2)
        await write(cluster[1], (None, b"one"), (None, b"two"), (None, b"three"))
        follower = cluster[2].broker.partitions.find(cluster[2].broker.image.topics["t"].id, 0)
        assert follower is not None
        await until(lambda: follower.high_watermark.offset == 3)
        follower.raise_start(2)
        assert await delete(cluster[1], 1) == (ErrorCode.NONE, 1)
        assert await delete(cluster[1], 2) == (ErrorCode.NONE, 2)


@pytest.mark.uncompiled
async def test_who_waits_for_long_looks_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def is_known(*_: object) -> bool:
        nonlocal looks
        looks += 1
        return False

    async with running(tmp_path) as node:
        await node.topic()
        await write(node, (None, b"one"))
        monkeypatch.setattr(k21_delete_records, "_is_known", is_known)
        assert await delete(node, 1) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert looks < 30, "in a second"


async def test_what_a_follower_has_said_to_know_outlives_the_crash_of_its_machine(tmp_path: Path) -> None:
    """Its disk as it was when DeleteRecords was answered: whoever is elected with it has the new start."""
    async with cluster_of(tmp_path, 2, durability=Durability.FSYNC) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2),)))
        await until(lambda: _leads(cluster[1], "t", 0) and len(cluster[1].partition().state.in_sync) == 2)
        await write(cluster[1], *[(None, b"%d" % number) for number in range(5)])
        assert await delete(cluster[1], 4) == (ErrorCode.NONE, 4)
        saved = load_partitions(RealDisk(), str(Path(cluster[2].broker.config.data_dir) / PARTITION_OFFSETS))
        assert saved[cluster[2].broker.image.topics["t"].id, 0].start == 4


async def test_one_that_may_be_elected_though_it_is_not_in_sync_must_know_it_too(tmp_path: Path) -> None:
    """Below min.insync.replicas nothing is acknowledged without it: it may lead next, and has not heard."""
    async with cluster_of(tmp_path, 3) as cluster:
        two = replace(
            topic("t", assignments=((1, 2),)), configs=(CreatableTopicConfig(name="min.insync.replicas", value="2"),)
        )
        await create(cluster[1], two)
        await until(lambda: _leads(cluster[1], "t", 0) and len(cluster[1].partition().state.in_sync) == 2)
        await write(cluster[1], (None, b"one"), (None, b"two"))
        await cluster.stop(2)
        await until(lambda: tuple(cluster[1].partition().state.in_sync) == (1,))
        assert await delete(cluster[1], 1) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        await cluster.start(2)
        await until(lambda: len(cluster[1].partition().state.in_sync) == 2)
        assert await delete(cluster[1], 1) == (ErrorCode.NONE, 1)


@pytest.mark.uncompiled
async def test_one_that_is_on_its_way_into_the_in_sync_set_must_know_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_replicas(tmp_path) as pair:
        monkeypatch.setattr(pair.agreement, "ask", lambda _, followers: pair.agreement.seen.append(followers))
        await write(pair.node, (None, b"one"), (None, b"two"))
        pair.follow()
        await until(lambda: bool(pair.agreement.seen))
        monkeypatch.setattr(pair.follower, "note_leader", lambda *_: None)  # it hears nothing more
        assert await delete(pair.node, 1) == (ErrorCode.REQUEST_TIMED_OUT, -1)


@pytest.mark.uncompiled
async def test_who_led_no_longer_while_it_waited_cannot_say_that_all_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it leads again by then: the records may have been acknowledged to somebody in between."""
    async with two_replicas(tmp_path) as pair:
        await write(pair.node, (None, b"one"), (None, b"two"))
        looks = 0

        def is_known(*_: object) -> bool:
            nonlocal looks
            looks += 1
            pair.leader.is_leader = looks > 1
            return looks > 2

        monkeypatch.setattr(k21_delete_records, "_is_known", is_known)
        assert await delete(pair.node, 1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_who_begins_anew_where_a_batch_was_deleted_in_part_gets_all_the_same(tmp_path: Path) -> None:
    """A new replica, or one whose disk was replaced: the batch is sent whole, and begins before its log."""
    async with two_replicas(tmp_path, clarion_durability="page-cache") as pair:
        for first in (0, 10):
            values = [b"%d" % number for number in range(first, first + 10)]
            await pair.node.client.produce({("t", 0): batch(*values)}, acks=1)
        assert await delete(pair.node, 5) == (ErrorCode.NONE, 5)
        pair.follow()
        await until(lambda: pair.agreement.states[-1].in_sync == (1, FOLLOWER))
        assert (pair.follower.start_offset, pair.follower.next_offset) == (5, 20)
        assert pair.bytes_of(pair.follower) == pair.bytes_of(pair.leader)
        assert pair.follower.log.epochs.entries == pair.leader.log.epochs.entries
        assert await delete(pair.node, 15) == (ErrorCode.NONE, 15)


async def test_who_was_killed_with_more_than_is_committed_learns_where_the_log_begins(tmp_path: Path) -> None:
    """Its checkpoint has an old watermark, and of what came later it knows no batch's end but the last. While it may
    not join nothing more is committed: it would wait for that, and the leader for it."""
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), min_insync_replicas="2") as pair:
        pair.follow()
        for number in range(4):
            await pair.node.client.produce({("t", 0): batch(b"%d" % number)}, acks=-1)
        pair.fetchers.forget(pair.follower)
        await pair.node.client.produce({("t", 0): batch(b"not committed")}, acks=1)
        sent = b"".join(one.read() for one in pair.leader.read_as_replica(4, 1 << 20))
        pair.follower.append_fetched(memoryview(sent), NOW_MS)  # it is killed before it says so
        now = pair.agreement.states[-1]
        pair.agreement.states.append(now._replace(in_sync=(1,), partition_epoch=now.partition_epoch + 1))
        pair.leader.lead(pair.agreement.states[-1], NOW_MS)
        assert await delete(pair.node, 3) == (ErrorCode.NONE, 3)
        pair.life += 1
        pair.follower = pair.open_follower()
        pair.follower.restore_watermark(1)
        pair.follow()
        await until(lambda: pair.agreement.states[-1].in_sync == (1, FOLLOWER))
        assert (pair.follower.start_offset, pair.leader.high_watermark.offset) == (3, 5)


async def test_who_has_begun_anew_further_back_says_what_its_disk_has_since(tmp_path: Path) -> None:
    """After an election that may lose messages. That an earlier start was on disk says nothing of the present one."""
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER)) as pair:
        pair.follow()
        await write(pair.node, *[(None, b"%d" % number) for number in range(4)])
        await until(lambda: pair.follower.high_watermark.offset == 4)
        pair.follower.raise_start(3)
        pair.follower.note_start_saved(3)
        pair.fetchers.forget(pair.follower)
        pair.follower.begin_anew(0, NOW_MS)
        saved = pair.follower.membership
        pair.follower.membership = saved._replace(save_starts=lambda: None)  # its disk takes long
        pair.follow()
        await until(lambda: pair.follower.high_watermark.offset == 4)
        assert await delete(pair.node, 2) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        pair.follower.note_start_saved(2)
        assert await delete(pair.node, 2) == (ErrorCode.NONE, 2)
