"""Queues over Kafka's wire: share consumers join, fetch, acknowledge, die, and find everything after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.wire.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from clarion.wire.messages.metadata import FindCoordinatorRequest
from clarion.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
)
from clarion.wire.records import encode_batch
from tests.broker.harness import running, until
from tests.broker.share_words import (
    ACCEPT,
    QUICK,
    REJECT,
    RELEASE,
    RENEW,
    ShareConsumer,
    acknowledge_codes,
    earliest,
    fetch_codes,
    joined,
    offsets,
    produce,
    values,
)


async def test_records_are_fetched_acknowledged_and_not_seen_again(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one", b"two", b"three")
        consumer = await joined(node)
        reply = await consumer.ask()
        assert values(reply) == [b"one", b"two", b"three"]
        assert reply.acquisition_lock_timeout == 30_000
        assert await consumer.acknowledge((0, 1, ACCEPT), (2, 2, RELEASE)) is ErrorCode.NONE
        assert await consumer.fetch() == {2: 2}
        assert await consumer.fetch([(2, 2, ACCEPT)]) == {}
        told = (await offsets(node))["t", 0]
        assert (told.start_offset, told.lag) == (3, 0)


async def test_what_a_fetch_acknowledges_and_what_it_acquires_is_written_down_in_one_record(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, *(b"%d" % number for number in range(20)))
        consumer = await joined(node)
        assert list(await consumer.fetch(max_records=10, share_acquire_mode=1)) == list(range(10))
        (shard,) = [one for one in node.broker.shares.states.runtime.shards if one.coordinator.known_keys()]
        written = shard.partition.next_offset
        each = [(at, at, ACCEPT) for at in range(10)]
        assert list(await consumer.fetch(each, max_records=10, share_acquire_mode=1)) == list(range(10, 20))
        assert shard.partition.next_offset == written + 1
        assert await consumer.acknowledge(*((at, at, ACCEPT) for at in range(11, 20, 2))) is ErrorCode.NONE
        assert await consumer.acknowledge(*((at, at, ACCEPT) for at in range(12, 20, 2))) is ErrorCode.NONE
        assert (await offsets(node))["t", 0].start_offset == 10


async def test_two_consumers_share_one_partition(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic("t", 1)
        await earliest(node)
        first, second = await joined(node, "a"), await joined(node, "b", other)
        await first.beat()
        assert first.partitions == second.partitions == (0,)
        for value in (b"one", b"two"):
            await produce(node, value)
        assert await first.fetch(max_records=1) == {0: 1}
        assert await second.fetch(max_records=1) == {1: 1}
        assert await second.acknowledge((0, 0, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
        assert await second.acknowledge((1, 1, ACCEPT)) is ErrorCode.NONE
        assert await first.acknowledge((0, 0, REJECT)) is ErrorCode.NONE
        assert (await offsets(node))["t", 0].start_offset == 2


async def test_a_fetch_waits_for_records_and_for_what_others_release(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic("t", 1)
        first, second = await joined(node, "a"), await joined(node, "b", other)
        assert await first.fetch() == {}
        waiting = asyncio.create_task(second.fetch(max_wait=60_000))
        leader = node.broker.shares.leaders.known("g", first.topic_id, 0)
        assert leader is not None
        await until(lambda: leader._line)
        await produce(node, b"one")
        assert await waiting == {0: 1}
        waiting = asyncio.create_task(first.fetch(max_wait=60_000))
        await until(lambda: leader._line)
        assert await second.acknowledge((0, 0, RELEASE)) is ErrorCode.NONE
        assert await waiting == {0: 2}
        assert not leader._line
        assert leader not in leader.partition.watchers


async def test_who_says_more_while_its_fetch_waits_ends_the_wait(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one")
        consumer = await joined(node, "a")
        assert await consumer.fetch() == {0: 1}
        leader = node.broker.shares.leaders.known("g", consumer.topic_id, 0)
        assert leader is not None
        for last_words in (False, True):
            waiting = asyncio.create_task(consumer.fetch(max_wait=3_600_000))
            await until(lambda: leader._line)
            beside = ShareConsumer(other, node, "a")  # the same member
            beside.session_epoch = -1 if last_words else consumer.session_epoch + 1
            assert await beside.acknowledge(*[] if last_words else [(0, 0, ACCEPT)]) is ErrorCode.NONE
            assert await waiting == {}
            consumer.session_epoch += 1


async def test_a_group_begins_at_the_end_unless_told_otherwise_and_stays_where_it_began(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await produce(node, b"before")
        consumer = await joined(node)
        assert await consumer.fetch() == {}
    async with running(tmp_path, **QUICK) as node:
        await produce(node, b"after")
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {1: 1}


async def test_a_group_can_begin_so_long_ago(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        now_ms = node.broker.clock.now_ms()
        for age_ms in (7_200_000, 1_800_000, 0):
            await node.write("t", [now_ms - age_ms])
        node.broker.groups.configure_group("g", share_auto_offset_reset="by_duration:PT1H")
        assert await (await joined(node)).fetch() == {1: 1, 2: 1}


@pytest.mark.parametrize("durability", list(Durability))
async def test_positions_and_delivery_counts_survive_a_restart(tmp_path: Path, durability: Durability) -> None:
    async with running(tmp_path, durability=durability) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, *(b"%d" % number for number in range(6)))
        consumer = await joined(node)
        assert len(await consumer.fetch()) == 6
        assert await consumer.acknowledge((0, 0, ACCEPT), (2, 2, RELEASE), (4, 4, REJECT)) is ErrorCode.NONE
        assert await consumer.fetch() == {2: 2}
    async with running(tmp_path, durability=durability) as node:
        await earliest(node)
        consumer = await joined(node)
        # What was delivered and never acknowledged has that delivery counted.
        assert await consumer.fetch(max_wait=60_000) == {1: 2, 2: 3, 3: 2, 5: 2}


async def test_who_closes_its_session_gives_back_what_it_holds(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one", b"two")
        first = await joined(node, "a")
        await first.fetch()
        assert await first.acknowledge((0, 0, ACCEPT), epoch=-1) is ErrorCode.NONE
        second = await joined(node, "b")
        assert await second.fetch() == {1: 1}


async def test_a_lock_ends_and_a_renewal_begins_it_anew(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node, share_record_lock_duration_ms=3_000)
        await produce(node, b"one")
        first, second = await joined(node, "a"), await joined(node, "b")
        await first.fetch()
        assert await first.acknowledge((0, 0, RENEW), is_renew_ack=True) is ErrorCode.NONE
        assert await second.fetch(max_wait=60_000) == {0: 2}
        assert await first.acknowledge((0, 0, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
        assert await first.acknowledge((0, 0, RENEW)) is ErrorCode.INVALID_REQUEST  # without saying so beforehand


async def test_a_record_that_nobody_wants_is_given_up_after_the_last_delivery(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node, share_delivery_count_limit=2)
        await produce(node, b"bad")
        consumer = await joined(node)
        assert await consumer.fetch() == {0: 1}
        assert await consumer.fetch([(0, 0, RELEASE)]) == {0: 2}
        assert await consumer.fetch([(0, 0, RELEASE)]) == {}
        assert (await offsets(node))["t", 0].start_offset == 1


async def test_sessions_are_opened_kept_and_refused_as_kafka_does(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        node.broker.shares.sessions.sessions_max = 1
        await node.topic("t", 1)
        await produce(node, b"one")
        consumer = await joined(node)
        assert await consumer.acknowledge((0, 0, ACCEPT), epoch=4) is ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await consumer.ask(epoch=4)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await consumer.fetch() == {}
        assert (await consumer.ask(epoch=7)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await consumer.acknowledge(epoch=0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await consumer.ask([(0, 0, ACCEPT)], epoch=0)).error_code == ErrorCode.INVALID_REQUEST
        other = await joined(node, "other")
        assert (await other.ask()).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert await consumer.fetch(epoch=0) == {}
        assert (await consumer.ask(epoch=-1)).error_code == ErrorCode.NONE
        assert (await other.ask()).error_code == ErrorCode.NONE


async def test_what_cannot_be_is_refused_partition_by_partition(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one")
        consumer = await joined(node)
        await consumer.fetch()
        reply = await consumer.ask([(5, 5, ACCEPT)])
        assert acknowledge_codes(reply) == [ErrorCode.INVALID_RECORD_STATE]
        assert acknowledge_codes(await consumer.ask([(1, 0, ACCEPT)])) == [ErrorCode.INVALID_REQUEST]
        assert (await consumer.ask(share_acquire_mode=9)).error_code == ErrorCode.INVALID_REQUEST
        consumer.partitions = (7,)
        assert fetch_codes(await consumer.ask(epoch=0)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        stranger = ShareConsumer(node, node, "m", "never-joined")
        stranger.partitions = (0,)
        assert fetch_codes(await stranger.ask(epoch=0)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_record_limit_is_never_exceeded_and_whole_batches_are_by_default(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, *[b"x"] * 10)
        consumer = await joined(node)
        assert list(await consumer.fetch(max_records=3, share_acquire_mode=1)) == [0, 1, 2]
        assert list(await consumer.fetch(max_records=3)) == [3, 4, 5, 6, 7, 8, 9]


async def test_offsets_are_altered_and_deleted_when_nobody_is_in_the_group(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one", b"two", b"three")
        consumer = await joined(node)
        assert len(await consumer.fetch()) == 3
        asked = AlterShareGroupOffsetsRequestTopic(
            topic_name="t", partitions=(AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=1),)
        )
        alter = AlterShareGroupOffsetsRequest(group_id="g", topics=(asked,))
        delete = DeleteShareGroupOffsetsRequest(
            group_id="g", topics=(DeleteShareGroupOffsetsRequestTopic(topic_name="t"),)
        )
        assert (await node.ask(alter, 0)).error_code == ErrorCode.NON_EMPTY_GROUP
        assert (await node.ask(delete, 0)).error_code == ErrorCode.NON_EMPTY_GROUP
        await consumer.beat(-1)
        reply = await node.ask(alter, 0)
        assert [one.error_code for topic in reply.responses for one in topic.partitions] == [ErrorCode.NONE]
        assert (await offsets(node))["t", 0].start_offset == 1
        # The leader that had the state as it was is fenced: its member has nothing to acknowledge any more.
        assert await consumer.acknowledge((1, 1, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
        consumer = await joined(node, "later")
        assert await consumer.fetch() == {1: 1, 2: 1}
        await consumer.beat(-1)
        reply = await node.ask(delete, 0)
        assert [topic.error_code for topic in reply.responses] == [ErrorCode.NONE]
        assert await offsets(node) == {}
        assert len(await (await joined(node, "last")).fetch()) == 3


async def test_groups_are_listed_described_and_deleted_with_all_they_had(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 2)
        consumer = await joined(node)
        (listed,) = (await node.ask(ListGroupsRequest(types_filter=("share",)), 5)).groups
        assert (listed.group_id, listed.group_type) == ("g", "share")
        (described,) = (await node.ask(ShareGroupDescribeRequest(group_ids=("g",)), 1)).groups
        assert [member.member_id for member in described.members] == ["m"]
        assert set(await offsets(node)) == {("t", 0), ("t", 1)}
        await consumer.beat(-1)
        reply = await node.ask(DeleteGroupsRequest(groups_names=("g",)), 2)
        assert reply.results[0].error_code == ErrorCode.NONE
        assert (await node.ask(ListGroupsRequest(), 5)).groups == ()
        assert node.broker.shares.states.keys_of_topic(consumer.topic_id) == []


async def test_a_deleted_topic_takes_its_share_state_along(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one")
        consumer = await joined(node)
        await consumer.fetch()
        gone = consumer.topic_id
        await node.broker.delete_topic("t")
        await until(lambda: not node.broker.shares.states.keys_of_topic(gone))
        await node.topic("t", 1)
        await produce(node, b"new")
        later = await joined(node, "later")
        async with asyncio.timeout(60):
            while not later.partitions:  # coordinators hear of topics a moment later
                await later.beat()
        assert values(await later.ask()) == [b"new"]


async def test_records_that_retention_took_away_are_not_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        for value in (b"one", b"two", b"three"):
            await produce(node, value)
        consumer = await joined(node)
        assert await consumer.fetch(max_records=1) == {0: 1}
        node.partition().raise_start(2)
        assert await consumer.fetch() == {2: 1}
        assert await consumer.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE


async def test_share_coordinators_are_found(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        key = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
        (found,) = (await node.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=(key,)), 6)).coordinators
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, node.broker.node_id)
        (found,) = (await node.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=("g",)), 6)).coordinators
        assert found.error_code == ErrorCode.INVALID_REQUEST


async def test_the_state_topic_is_pruned_and_acknowledgements_share_their_writes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("clarion.broker.share_states._PRUNED_RECORDS_MIN", 20)
    async with running(tmp_path, **QUICK, share_updates_per_snapshot=10) as node:
        await node.topic("t", 1)
        await earliest(node)
        consumer = await joined(node)
        for number in range(100):
            await produce(node, b"%d" % number)
            acks = [(number - 1, number - 1, ACCEPT)] if number else []
            assert await consumer.fetch(acks) == {number: 1}
        (shard,) = [one for one in node.broker.shares.states.runtime.shards if one.coordinator.known_keys()]
        await until(lambda: shard.partition.start_offset > 0)
        assert shard.partition.next_offset <= 250  # two for each round at most, and snapshots
    async with running(tmp_path, **QUICK) as node:
        await earliest(node)
        assert await (await joined(node)).fetch(max_wait=60_000) == {99: 2}


async def test_the_state_topic_is_the_brokers_own(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await joined(node)
        assert node.broker.image.topics[SHARE_STATE_TOPIC].partition_count == 16
        reply = await node.client.produce({(SHARE_STATE_TOPIC, 0): bytes(encode_batch([(None, b"x", (), 1)]))})
        assert reply[SHARE_STATE_TOPIC, 0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_fifty_of_a_hundred_consumers_die_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 3)
        await earliest(node, share_record_lock_duration_ms=3_000, share_delivery_count_limit=10)
        for partition in range(3):
            for number in range(100):
                await produce(node, b"%d-%d" % (partition, number), partition=partition)
        done: list[tuple[int, int]] = []

        async def work(number: int) -> None:
            async with node.another() as client:
                consumer = await ShareConsumer(client, node, f"m{number}").join()
                if number % 2:
                    await consumer.ask(max_records=2, share_acquire_mode=1)
                    return  # and never heard of again
                while len(done) < 300:
                    reply = await consumer.ask(max_records=2, share_acquire_mode=1, max_wait=100)
                    for topic in reply.responses:
                        for one in topic.partitions:
                            for run in one.acquired_records:
                                for at in range(run.first_offset, run.last_offset + 1):
                                    place = (one.partition_index, at)
                                    acks = (at, at, ACCEPT)
                                    code = await consumer.acknowledge(acks, index=one.partition_index)
                                    if code is ErrorCode.NONE:
                                        done.append(place)

        await asyncio.gather(*[work(number) for number in range(100)])
        assert len(done) == len(set(done)) == 300
