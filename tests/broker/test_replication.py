"""A follower fetches from its leader over the protocol: the same bytes, the same watermark, and what to do when not."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from clarion.log.producer_snapshot import snapshot_offsets
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC
from clarion.model.seeking import EARLIEST, LATEST
from clarion.replication import Membership
from clarion.wire.batch import HEADER_BYTES, stamp
from clarion.wire.limits import WorkBudget
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.messages.offsets import OffsetFetchRequest
from clarion.world import RealDisk
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, until
from tests.broker.replicas import FOLLOWER, LIFE, NOW_MS, Agreement, Pair, two_replicas
from tests.broker.talk import batch
from tests.replication.bench import turns

PLACE = ("t", 0)
QUICK = {"clarion_durability": "page-cache"}
DURABLE = {"clarion_durability": "fsync"}


async def test_a_follower_has_the_leaders_bytes_and_joins_the_in_sync_set(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, **QUICK) as pair:
        for number in range(5):
            await pair.node.client.produce({PLACE: batch(b"%d" % number, b"x" * 100)}, acks=1)
        pair.follow()
        await until(lambda: pair.follower.next_offset == 10)
        await until(lambda: pair.agreement.states[-1].in_sync == (1, FOLLOWER))
        assert pair.agreement.seen == [{FOLLOWER: LIFE}]
        assert pair.bytes_of(pair.follower) == pair.bytes_of(pair.leader)
        assert pair.follower.log.epochs.entries == pair.leader.log.epochs.entries
        await pair.node.client.produce({PLACE: batch(b"more")}, acks=-1)
        assert pair.follower.next_offset == 11, "acknowledged by all means that it is there"
        await until(lambda: pair.follower.high_watermark.offset == 11)


async def test_a_follower_says_everything_again_in_another_life(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **QUICK) as pair:
        pair.follow()
        await until(lambda: pair.leader._leader.life_of(FOLLOWER) == LIFE)
        pair.life = LIFE + 1
        await until(lambda: pair.leader._leader.life_of(FOLLOWER) == LIFE + 1)
        await pair.node.client.produce({PLACE: batch(b"v")}, acks=-1)
        assert pair.follower.next_offset == 1


async def test_acks_all_waits_for_a_follower_that_is_in_sync(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **QUICK) as pair:
        answer = asyncio.ensure_future(pair.node.client.produce({PLACE: batch(b"v")}, acks=-1))
        await until(lambda: pair.leader.next_offset == 1)
        await turns()
        assert not answer.done()
        assert pair.leader.high_watermark.offset == 0
        pair.follow()
        assert (await answer)[PLACE].error_code == 0
        assert pair.follower.next_offset == 1


async def test_with_durability_a_follower_counts_when_it_has_flushed(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, held=True, in_sync=(1, FOLLOWER), **DURABLE) as pair:
        pair.follow()
        answer = asyncio.ensure_future(pair.node.client.produce({PLACE: batch(b"v")}, acks=-1))
        await until(lambda: pair.follower.next_offset == 1 and pair.leader.is_flushed_to(1))
        await until(lambda: pair.executor.held)
        assert not answer.done()
        assert pair.leader.high_watermark.offset == 0
        await pair.executor.run()
        assert (await answer)[PLACE].error_code == 0


async def test_a_new_leader_says_what_is_latest_when_it_knows_what_is_committed(tmp_path: Path) -> None:
    """What it has may be committed, by a leader before it: an older answer would take readers back."""
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **QUICK) as pair:
        await pair.node.client.produce({PLACE: batch(b"v")}, acks=1)
        now = pair.agreement.states[-1]
        pair.agreement.states.append(now._replace(leader_epoch=now.leader_epoch + 1, partition_epoch=2))
        pair.leader.lead(pair.agreement.states[-1])
        assert await offset_of(pair.node, LATEST, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await offset_of(pair.node, LATEST, 4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await offset_of(pair.node, EARLIEST, 5) == (0, 0)
        fetched = await pair.node.client.fetch({PLACE: 1})
        assert fetched.partitions[PLACE].error_code == ErrorCode.OFFSET_NOT_AVAILABLE, "read from the leader before"
        pair.follow()
        await until(lambda: pair.leader.is_watermark_current)
        assert await offset_of(pair.node, LATEST, 5) == (0, 1)
        assert (await pair.node.client.fetch({PLACE: 1})).partitions[PLACE].error_code == 0


async def offset_of(node: Node, timestamp: int, version: int) -> tuple[int, int]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    topics = (ListOffsetsTopic(name="t", partitions=(asked,)),)
    found = await node.ask(ListOffsetsRequest(replica_id=-1, topics=topics), version)
    answer = found.topics[0].partitions[0]
    return answer.error_code, answer.offset


async def test_where_too_few_are_in_sync_nothing_is_taken_for_all(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, min_insync_replicas="2", **QUICK) as pair:
        produced = await pair.node.client.produce({PLACE: batch(b"v")}, acks=-1)
        assert produced[PLACE].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert pair.leader.next_offset == 0
        pair.follow()
        await until(lambda: pair.leader.takes_all)
        produced = await pair.node.client.produce({PLACE: batch(b"v")}, acks=-1)
        assert produced[PLACE].error_code == 0


async def test_what_was_written_when_too_few_are_left_is_answered_so(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), min_insync_replicas="2", **QUICK) as pair:
        answer = asyncio.ensure_future(pair.node.client.produce({PLACE: batch(b"v")}, acks=-1))
        await until(lambda: pair.leader.next_offset == 1)
        now = pair.agreement.states[-1]
        pair.agreement.states.append(now._replace(in_sync=(1,), partition_epoch=now.partition_epoch + 1))
        pair.leader.lead(pair.agreement.states[-1])
        assert (await answer)[PLACE].error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_a_tail_that_the_new_leader_does_not_have_is_cut_and_replaced(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, **QUICK) as pair:
        await pair.node.client.produce({PLACE: batch(b"both")}, acks=1)
        pair.follow()
        await until(lambda: pair.follower.next_offset == 1)
        # The follower leads for a term that nobody hears of, and writes.
        now = pair.agreement.states[-1]
        pair.fetchers.forget(pair.follower)
        pair.follower.lead(now._replace(leader=FOLLOWER, leader_epoch=now.leader_epoch + 1, replicas=(FOLLOWER,)))
        for value in (b"lost", b"and gone"):
            pair.follower.append(memoryview(bytearray(batch(value, at=NOW_MS))), NOW_MS)
        pair.begin_term(leader_epoch=now.leader_epoch + 2, partition_epoch=now.partition_epoch + 2)
        await pair.node.client.produce({PLACE: batch(b"kept")}, acks=1)
        pair.follow()
        await until(lambda: pair.bytes_of(pair.follower) == pair.bytes_of(pair.leader))
        assert b"lost" not in pair.bytes_of(pair.follower)
        assert pair.follower.log.epochs.entries == pair.leader.log.epochs.entries


async def test_a_follower_hears_what_is_committed_also_when_its_log_was_cut_for_it(tmp_path: Path) -> None:
    """The watermark came with the answer that had it cut its log, and counts for nothing then."""
    async with two_replicas(tmp_path, **QUICK) as pair:
        await pair.node.client.produce({PLACE: batch(b"both")}, acks=1)
        pair.follow()
        await until(lambda: pair.follower.next_offset == 1)
        now = pair.agreement.states[-1]
        pair.fetchers.forget(pair.follower)
        pair.follower.lead(now._replace(leader=FOLLOWER, leader_epoch=now.leader_epoch + 1, replicas=(FOLLOWER,)))
        pair.follower.append(memoryview(bytearray(batch(b"lost", at=NOW_MS))), NOW_MS)
        pair.begin_term(leader_epoch=now.leader_epoch + 2, partition_epoch=now.partition_epoch + 2)
        pair.follower.restore_watermark(0)  # as after a restart
        pair.follow()
        await until(lambda: pair.bytes_of(pair.follower) == pair.bytes_of(pair.leader))
        await until(lambda: pair.follower.high_watermark.offset == 1)


async def test_who_follows_no_longer_leaves_the_session_also_when_another_term_had_just_begun(tmp_path: Path) -> None:
    """Else the leader answers every request at once with what nobody wants, as fast as it is asked."""
    async with two_replicas(tmp_path, **QUICK) as pair:
        await pair.follow_another()
        pair.follow()
        await pair.node.client.produce({PLACE: batch(b"v")}, acks=1)
        await until(lambda: pair.follower.next_offset == 1)
        pair.begin_term()
        pair.follow()
        pair.fetchers.forget(pair.follower)  # in the same turn: the leader has not been told of the term
        session = pair.node.broker.sessions._followers[FOLLOWER]
        await until(lambda: len(session.partitions) == 1)
        assert session.id in pair.node.broker.sessions._sessions, "the conversation goes on in the same session"


async def lead_alone_and_write(pair: Pair) -> None:
    """Both have a message of a producer; the follower leads for a term that nobody hears of, and writes another one."""
    await pair.node.client.produce({PLACE: batch(b"both", producer_id=5, producer_epoch=0, base_sequence=0)}, acks=1)
    pair.follow()
    await until(lambda: pair.follower.next_offset == 1)
    now = pair.agreement.states[-1]
    pair.fetchers.forget(pair.follower)
    pair.follower.lead(now._replace(leader=FOLLOWER, leader_epoch=now.leader_epoch + 1, replicas=(FOLLOWER,)))
    pair.follower.append(memoryview(bytearray(batch(b"lost", at=NOW_MS))), NOW_MS)
    pair.begin_term(leader_epoch=now.leader_epoch + 2, partition_epoch=now.partition_epoch + 2)


async def test_a_follower_without_room_for_a_snapshot_cuts_its_log_and_knows_its_producers(tmp_path: Path) -> None:
    disk = StoryDisk()
    async with two_replicas(tmp_path, disk=disk, **QUICK) as pair:
        await lead_alone_and_write(pair)
        disk.on_open = lambda path: OSError(errno.ENOSPC, "full") if ".snapshot" in path else None
        pair.follow()
        await until(lambda: pair.bytes_of(pair.follower) == pair.bytes_of(pair.leader))
        assert pair.follower.producers.find(5) is not None
        assert pair.follower.recovery_point == 0, "the next start reads what no snapshot knows"


async def test_a_snapshot_of_producers_whose_batches_were_cut_meanwhile_does_not_stay(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, held=True, **QUICK) as pair:
        await lead_alone_and_write(pair)
        pair.follower.roll(NOW_MS)  # its flush takes a snapshot along
        await until(lambda: pair.executor.held)
        pair.follow()
        await until(lambda: pair.bytes_of(pair.follower) == pair.bytes_of(pair.leader))
        await pair.executor.run()
        await until(lambda: pair.executor.held)  # the next one saves what the log knows now
        await pair.executor.run()
        assert snapshot_offsets(RealDisk(), pair.follower.log.folder) == [1]


async def test_a_disk_that_cannot_be_read_when_a_log_is_cut_stops_this_partition_alone(tmp_path: Path) -> None:
    disk = StoryDisk()
    async with two_replicas(tmp_path, disk=disk, **QUICK) as pair:
        await lead_alone_and_write(pair)
        another = await pair.follow_another()
        disk.on_read = lambda _path: OSError(errno.EIO, "broken") if pair.follower.next_offset == 1 else None
        pair.follow()
        await until(lambda: pair.follower.unsound)  # without its producers it must not lead
        await pair.node.client.produce({("another", 0): batch(b"v")}, acks=1)
        await until(lambda: another.next_offset == 1)


async def test_a_follower_begins_anew_where_the_leaders_log_begins_now(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, **QUICK) as pair:
        for value in (b"a", b"b", b"c"):
            await pair.node.client.produce({PLACE: batch(value)}, acks=1)
        pair.leader.raise_start(2)
        pair.follow()
        await until(lambda: pair.follower.next_offset == 3)
        assert pair.follower.start_offset == 2
        await pair.node.client.produce({PLACE: batch(b"d")}, acks=-1)
        pair.leader.raise_start(3)
        await pair.node.client.produce({PLACE: batch(b"e")}, acks=-1)
        await pair.node.client.produce({PLACE: batch(b"f")}, acks=-1)
        await until(lambda: pair.follower.start_offset == 3)


async def test_a_leader_whose_lease_is_over_promises_nothing(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, **QUICK) as pair:
        client = pair.node.client
        assert (await client.produce({PLACE: batch(b"v")}, acks=1))[PLACE].error_code == 0
        pair.agreement.has_lease = False
        for acks in (1, -1):
            produced = await client.produce({PLACE: batch(b"v")}, acks=acks)
            assert produced[PLACE].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert pair.leader.next_offset == 1
        fetched = await client.fetch({PLACE: 0})
        assert fetched.errors()[PLACE] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        asked = ListOffsetsTopic(name="t", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),))
        listed = await client.ask(ListOffsetsRequest(replica_id=-1, topics=(asked,)), 5)
        assert listed.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_who_waits_when_the_leader_resigns_is_sent_to_another(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **QUICK) as pair:
        answer = asyncio.ensure_future(pair.node.client.produce({PLACE: batch(b"v")}, acks=-1))
        await until(lambda: pair.leader.next_offset == 1)
        now = pair.agreement.states[-1]
        pair.leader.follow(now._replace(leader=FOLLOWER, leader_epoch=now.leader_epoch + 1, partition_epoch=9))
        assert (await answer)[PLACE].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        produced = await pair.node.client.produce({PLACE: batch(b"v")}, acks=1)
        assert produced[PLACE].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_quiet_partition_is_not_named_again(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, **QUICK) as pair:
        await pair.node.client.produce({PLACE: batch(b"v")}, acks=1)
        pair.follow()
        await until(lambda: pair.follower.high_watermark.offset == 1)
        (session,) = pair.node.broker.sessions._sessions.values()
        (asked,) = session.partitions.values()
        epoch = session.epoch
        await until(lambda: session.epoch >= epoch + 2)
        assert not asked.is_fresh
        assert not session.ready


async def test_what_follows_a_batch_that_found_no_leader_waits_for_it(tmp_path: Path) -> None:
    """Told of a wrong order when the lease is back, librdkafka would double what other partitions have."""
    batches = [batch(b"%d" % number, producer_id=3, producer_epoch=0, base_sequence=number) for number in range(4)]

    async with two_replicas(tmp_path, **QUICK) as pair:

        async def code(number: int) -> int:
            return (await pair.node.client.produce({PLACE: batches[number]}))[PLACE].error_code

        for first in (0, 2):  # of a producer that is not known yet, and of one that is
            pair.agreement.has_lease = False
            assert await code(first) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            pair.agreement.has_lease = True
            assert await code(first + 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert [await code(first), await code(first + 1)] == [ErrorCode.NONE] * 2
        assert (await pair.node.client.fetch({PLACE: 0})).values() == [b"0", b"1", b"2", b"3"]


async def test_also_where_it_came_before_this_broker_led(tmp_path: Path) -> None:
    first, second = (batch(b"v", producer_id=3, producer_epoch=0, base_sequence=number) for number in (0, 1))
    async with two_replicas(tmp_path, **QUICK) as pair:
        client, term = pair.node.client, pair.agreement.states[-1]
        pair.leader.follow(term._replace(leader=FOLLOWER, leader_epoch=term.leader_epoch + 1))
        assert (await client.produce({PLACE: first}))[PLACE].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        pair.begin_term(leader_epoch=term.leader_epoch + 2)
        codes = [(await client.produce({PLACE: one}))[PLACE].error_code for one in (second, first, second)]
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.NONE]


async def test_a_coordinator_whose_lease_is_over_answers_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, offsets_partitions=1) as node:
        request = OffsetFetchRequest(group_id="g", topics=None)
        await node.broker.groups.runtime.ensure_topic()
        assert (await node.client.ask(request, 7)).error_code == 0
        node.partition(OFFSETS_TOPIC).membership = Membership(lambda: False, Agreement(), lambda: None)
        assert (await node.client.ask(request, 7)).error_code == ErrorCode.NOT_COORDINATOR


async def test_a_batch_that_is_damaged_on_the_leaders_disk_goes_no_further(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with two_replicas(tmp_path, **QUICK) as pair:
        await pair.node.client.produce({PLACE: batch(b"v" * 100)}, acks=1)
        pair.leader.log.segments[0].handle().write([b"\xff"], HEADER_BYTES + 20)
        pair.follow()
        await until(lambda: "replica_fetch_put_off" in caplog.messages)
        assert pair.follower.next_offset == 0
        assert pair.agreement.states[-1].in_sync == (1,)


@pytest.mark.uncompiled  # a stand-in for the preparation of batches decides when it ends
async def test_an_offset_that_another_leaders_message_has_by_now_acknowledges_nothing(tmp_path: Path) -> None:
    """Another batch of the request is in a thread while the leader is deposed, its log cut, and filled by the next."""
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **QUICK) as pair:
        node, leader = pair.node, pair.leader
        await node.topic("compacted", cleanup_policy="compact", **QUICK)
        slow = node.partition("compacted")
        may_go, preparation = threading.Event(), slow.preparation
        assert preparation is not None

        def wait_and_prepare(records: memoryview, budget: WorkBudget) -> memoryview:
            assert may_go.wait(20)
            return preparation(records, budget)

        slow.preparation = wait_and_prepare
        batches = {PLACE: batch(b"lost"), ("compacted", 0): batch(bytes(100_000), keys=[b"k"])}
        answer = asyncio.ensure_future(node.client.produce(batches, acks=-1))
        await until(lambda: leader.next_offset == 1)
        now = pair.agreement.states[-1]
        epoch = now.leader_epoch + 1
        leader.follow(now._replace(leader=FOLLOWER, leader_epoch=epoch, partition_epoch=now.partition_epoch + 1))
        leader.cut_where_logs_part(now.leader_epoch, 0, NOW_MS)
        theirs = bytearray(batch(b"theirs", at=NOW_MS))
        stamp(memoryview(theirs), 0, epoch)
        leader.append_fetched(memoryview(theirs), NOW_MS)
        leader.note_leader(1, 0)
        assert leader.high_watermark.offset == 1
        may_go.set()
        produced = await answer
        assert produced[PLACE].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert produced["compacted", 0].error_code == 0


async def test_a_follower_flushes_what_it_has_when_the_topic_becomes_durable(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **QUICK) as pair:
        pair.follow()
        assert (await pair.node.client.produce({PLACE: batch(b"v")}, acks=-1))[PLACE].error_code == 0
        assert not pair.follower.is_flushed_to(1)
        pair.follower.configure(replace(pair.follower.settings, durability="fsync"))
        await until(lambda: pair.follower.is_flushed_to(1))
