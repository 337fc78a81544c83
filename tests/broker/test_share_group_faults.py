"""What goes wrong around share groups: brokers that end between two steps, long requests, gaps, lost clients."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from unittest.mock import patch

import pytest

from clarion.broker import share_leaders
from clarion.broker.config import Durability
from clarion.broker.share_states import _OURSELVES
from clarion.model.errors import ErrorCode
from clarion.queues.state_batches import Delta
from clarion.queues.state_records import ShareKey
from clarion.replication.membership import Term
from clarion.wire.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchTopic,
)
from clarion.wire.records import decode_batch, encode_batch
from tests.broker.disks import StoryDisk
from tests.broker.harness import running, until
from tests.broker.kept import settle
from tests.broker.share_words import (
    ACCEPT,
    QUICK,
    ShareConsumer,
    earliest,
    fetch_codes,
    joined,
    offsets,
    produce,
)


async def test_a_topic_named_many_times_is_answered_once_and_acknowledgements_that_come_twice_are_refused(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one", b"two")
        consumer = await joined(node)
        await consumer.fetch()

        def named(*at: int, index: int = 0) -> ShareFetchTopic:
            acks = [AcknowledgementBatch(first_offset=one, last_offset=one, acknowledge_types=(1,)) for one in at]
            one = ShareFetchPartition(partition_index=index, acknowledgement_batches=tuple(acks))
            return ShareFetchTopic(topic_id=consumer.topic_id, partitions=(one,))

        async def say(*topics: ShareFetchTopic):
            epoch = consumer.session_epoch
            return await node.ask(
                ShareAcknowledgeRequest(group_id="g", member_id="m", share_session_epoch=epoch, topics=topics), 2
            )

        assert (await say(named(0), named(1))).error_code == ErrorCode.INVALID_REQUEST
        many = [named(0, index=index) for index in range(1, 100)]
        (told,) = (await say(named(), *many, named(0))).responses
        assert [one.partition_index for one in told.partitions] == list(range(100))
        assert told.partitions[0].error_code == ErrorCode.NONE
        assert (await offsets(node))["t", 0].start_offset == 1


@pytest.mark.parametrize("what", ["delete", "alter"])
async def test_a_broker_that_ends_while_offsets_are_deleted_or_altered_leaves_a_group_that_can_read(
    tmp_path: Path, what: str
) -> None:
    async with running(tmp_path, durability=Durability.FSYNC) as node:
        await node.topic("t", 1)
        await node.topic("u", 1)
        await earliest(node)
        await produce(node, b"one", topic="t")
        await produce(node, b"one", topic="u")
        consumer = await joined(node)
        await consumer.beat(-1)
        shares, topics = node.broker.shares, node.broker.image.topics
        if what == "delete":
            begun = shares.group("g").initialized[topics["t"].id]
            work = shares.delete("g", topics["t"].id, begun, _OURSELVES)
        else:
            work = shares.alter("g", topics["u"], {0: 0}, _OURSELVES)
        ending = asyncio.create_task(work)
        await asyncio.sleep(0)  # as far as its first step to the disk, and no further
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        topic = "t" if what == "delete" else "u"
        consumer = await ShareConsumer(node, node, "later", topic=topic).join()
        assert await consumer.fetch() == {0: 1}


async def test_a_state_that_is_deleted_while_it_is_loaded_leads_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, durability=Durability.FSYNC) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one", b"two")
        consumer = await joined(node)
        await consumer.fetch()
        assert await consumer.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
        shares, key = node.broker.shares, ShareKey("g", consumer.topic_id, 0)
        known = await shares.states.summary(key)
        epoch = known.state_epoch
        shares.leaders.forget(key)
        writing = asyncio.create_task(shares.states.write(key, epoch, 0, known.version, Delta(1, 0, ())))
        loading = asyncio.create_task(shares.leaders.get("g", consumer.topic_id, node.partition()))
        await asyncio.sleep(0)  # it has read, and waits until what it has read is on disk
        shares.leaders.forget(key)
        await shares.states.delete(key)
        await asyncio.gather(writing, loading, return_exceptions=True)
        assert shares.leaders.known("g", consumer.topic_id, 0) is None
        await shares.states.initialize(key, epoch)
        assert await consumer.fetch(max_wait=60_000) == {0: 1, 1: 1}


async def test_a_consumer_that_has_gone_while_it_waited_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        consumer = await joined(node, "stays")
        assert await consumer.fetch() == {}
        leader = node.broker.shares.leaders.known("g", consumer.topic_id, 0)
        assert leader is not None
        async with node.another() as other:
            gone = await joined(node, "goes", other)
            waiting = asyncio.create_task(gone.fetch(max_wait=300_000))
            await until(lambda: leader._line)
        waiting.cancel()
        await until(lambda: not leader._line)  # nor does it wait on
        await produce(node, b"one")
        assert await consumer.fetch() == {0: 1}


async def test_what_compaction_has_emptied_is_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1, cleanup_policy="compact", segment_bytes="1024", min_cleanable_dirty_ratio="0.01")
        await earliest(node)
        for _ in range(2):
            for number in range(50):
                batch = encode_batch([(b"%d" % number, b"x" * 100, (), node.broker.clock.now_ms())])
                await node.client.produce({("t", 0): bytes(batch)})
        await settle(node)
        await node.server.housekeeping.compact()
        consumer = await joined(node)
        given = await consumer.fetch()
        reply = await consumer.fetch()
        held = {record.offset for batch in node.partition().batches() for record in decode_batch(batch)}
        assert len(held) < 100
        assert {**given, **reply} == dict.fromkeys(held, 1)


async def test_a_fetch_reads_no_more_than_it_needs_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 2)
        await earliest(node, share_partition_max_record_locks=10_000)
        now_ms = node.broker.clock.now_ms()
        for _ in range(30):
            node.partition("t", 0).append_own(encode_batch([(None, b"x" * 100_000, (), now_ms)]), now_ms)
        for _ in range(2_500):
            node.partition("t", 1).append_own(encode_batch([(None, b"", (), now_ms)]), now_ms)
        await until(lambda: node.partition("t", 1).high_watermark.offset == 2_500)
        consumer = await joined(node)
        all_of_it = {"max_records": 100_000, "max_bytes": 50_000_000}
        (told,) = (await consumer.ask(**all_of_it)).responses
        large, many = sorted(told.partitions, key=lambda one: one.partition_index)
        assert len(large.records) <= 1_048_576
        assert many.acquired_records[-1].last_offset == 1_999
        (told,) = (await consumer.ask(**all_of_it)).responses
        assert {one.partition_index: one.acquired_records[-1].last_offset for one in told.partitions}[1] == 2_499


async def test_a_disk_that_cannot_be_read_is_told_to_who_fetches_and_ends_nothing(tmp_path: Path) -> None:
    disk = StoryDisk()
    async with running(tmp_path, **QUICK, disk=disk) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one")
        consumer = await joined(node)
        disk.on_read = lambda path: OSError(errno.EIO, "broken") if "/t-0/" in path else None
        assert fetch_codes(await consumer.ask()) == [ErrorCode.KAFKA_STORAGE_ERROR]
        disk.on_read = lambda path: None
        assert await consumer.fetch() == {0: 1}


async def test_share_partitions_that_are_led_elsewhere_by_now_take_nobodys_place(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 2)
        await earliest(node)
        await produce(node, b"one", partition=1)
        consumer = await joined(node)
        leaders = node.broker.shares.leaders
        with patch.object(share_leaders, "_LEADERS_MAX", 1):
            (await leaders.get("g", consumer.topic_id, node.partition("t", 0))).stop()
            consumer.partitions = (1,)
            assert await consumer.fetch(max_wait=60_000) == {0: 1}
        assert len(leaders) == 1


async def test_state_that_was_read_before_another_broker_led_is_read_again(tmp_path: Path) -> None:
    """It led for a moment between two terms of this one, and wrote what has been acknowledged meanwhile."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one")
        consumer = await joined(node)
        partition, states, epochs = node.partition("t"), node.broker.shares.states, []
        read = states.read

        async def read_while_the_leader_changes(key: ShareKey, leader_epoch: int):
            state = await read(key, leader_epoch)
            epochs.append(leader_epoch)
            if len(epochs) == 1:
                me = (node.broker.node_id,)
                partition.lead(Term(me[0], leader_epoch + 2, me, me, partition_epoch=99), node.broker.clock.now_ms())
            return state

        with patch.object(states, "read", read_while_the_leader_changes):
            assert await consumer.fetch(max_wait=10_000) == {0: 1}
        assert epochs == [epochs[0], epochs[0] + 2]
