"""Fetch: committed batches from an offset on, in the wanted measure, and a clear word where there is nothing."""

import asyncio
from uuid import uuid4

import pytest

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.wire.batch import read_header
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, until, versions_of
from tests.broker.talk import batch, split

T0 = ("t", 0)
PAGE_CACHE = {"durability": Durability.PAGE_CACHE}


async def fill(node: Node, count: int, partition: int = 0, size: int = 100) -> None:
    """Batches of one message each, all of one size."""
    for number in range(count):
        values = b"%0*d" % (size, number)
        await node.client.produce({("t", partition): batch(values)})


@pytest.mark.parametrize("version", versions_of("Fetch"))
async def test_every_version_brings_what_was_written(tmp_path, version):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await node.client.produce({T0: batch(b"a", b"b")})
        place = (node.broker.image.topics["t"].id, 0) if version >= 13 else T0
        answer = await node.client.fetch({place: 0}, version=version)
        assert (answer.error, answer.errors()) == (0, {place: 0})
        assert answer.values(place[0]) == [b"a", b"b"]
        assert answer.partitions[place].high_watermark == 2


async def test_batches_come_with_the_offset_and_epoch_that_the_broker_gave_them(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await fill(node, 3)
        heads = [read_header(one) for one in split((await node.client.fetch({T0: 0})).records())]
        assert [head.base_offset for head in heads] == [0, 1, 2]
        assert {head.leader_epoch for head in heads} == {node.partition("t", 0).leader_epoch}


async def test_an_offset_inside_a_batch_brings_the_whole_batch(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await node.client.produce({T0: batch(b"a", b"b", b"c")})
        assert (await node.client.fetch({T0: 2})).values() == [b"a", b"b", b"c"]


async def test_an_offset_outside_of_the_log_is_refused_on_both_sides(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await fill(node, 5)
        node.partition().log.advance_start(2)
        for offset in (-1, 1, 6):
            answer = await node.client.fetch({T0: offset}, max_wait=10_000)
            assert answer.errors() == {T0: ErrorCode.OFFSET_OUT_OF_RANGE}, offset
        assert (await node.client.fetch({T0: 5})).errors() == {T0: 0}
        at_start = await node.client.fetch({T0: 2})
        assert at_start.partitions[T0].log_start_offset == 2
        assert len(split(at_start.records())) == 3


async def test_the_limit_of_a_partition_and_of_the_whole_are_kept(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic(partitions=2)
        await fill(node, 10, 0)
        await fill(node, 10, 1)
        one = len(batch(b"0" * 100))
        answer = await node.client.fetch({T0: 0, ("t", 1): 0}, partition_max_bytes=3 * one)
        assert [len(split(answer.records("t", index))) for index in (0, 1)] == [3, 3]
        answer = await node.client.fetch({T0: 0, ("t", 1): 0}, max_bytes=4 * one)
        assert [len(split(answer.records("t", index))) for index in (0, 1)] == [4, 0]


async def test_a_first_batch_larger_than_every_limit_comes_all_the_same(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic(partitions=2)
        await fill(node, 1, 0, size=5000)
        await fill(node, 1, 1, size=5000)
        answer = await node.client.fetch({T0: 0, ("t", 1): 0}, max_bytes=10, partition_max_bytes=10)
        assert [len(answer.records("t", index)) > 5000 for index in (0, 1)] == [True, False]
        answer = await node.client.fetch({T0: 1, ("t", 1): 0}, max_bytes=10, partition_max_bytes=10)
        assert len(answer.records("t", 1)) > 5000


async def test_what_does_not_exist_has_an_error_of_its_own_and_does_not_hide_the_rest(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await fill(node, 1)
        answer = await node.client.fetch({("nowhere", 0): 0, ("t", 7): 0, T0: 0}, max_wait=10_000)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.errors() == {("nowhere", 0): unknown, ("t", 7): unknown, T0: 0}
        assert len(answer.values()) == 1
        nobody = uuid4()
        answer = await node.client.fetch({(nobody, 0): 0}, version=13)
        assert answer.errors() == {(nobody, 0): ErrorCode.UNKNOWN_TOPIC_ID}


async def test_a_topic_made_again_is_another_one_for_whoever_asks_by_id(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        old = node.broker.image.topics["t"].id
        await node.broker.delete_topic("t")
        await node.topic()
        answer = await node.client.fetch({(old, 0): 0}, version=13)
        assert answer.errors() == {(old, 0): ErrorCode.UNKNOWN_TOPIC_ID}


async def test_a_stale_leader_epoch_is_fenced_and_one_from_the_future_has_to_wait(tmp_path):
    for _ in range(2):
        async with running(tmp_path, **PAGE_CACHE) as node:
            if node.broker.image.topic("t") is None:
                await node.topic()
                await fill(node, 1)
            epoch = node.partition("t", 0).leader_epoch
            codes = {
                asked: (await node.client.fetch({T0: 0}, leader_epoch=asked)).errors()[T0]
                for asked in (-1, epoch - 1, epoch, epoch + 1)
                if asked >= -1
            }
    assert epoch == 1
    fenced, unknown = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
    assert codes == {-1: 0, epoch - 1: fenced, epoch: 0, epoch + 1: unknown}


async def test_a_reader_of_a_tail_that_was_lost_learns_where_the_logs_part(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await fill(node, 2)
    async with running(tmp_path, **PAGE_CACHE) as node:
        await fill(node, 1)
        answer = await node.client.fetch({T0: 5}, last_fetched_epoch=0)
        assert answer.errors() == {T0: 0}
        diverging = answer.partitions[T0].diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (0, 2)
        answer = await node.client.fetch({T0: 2}, last_fetched_epoch=0)
        assert len(answer.values()) == 1


async def test_a_term_that_left_nothing_here_parts_the_logs_too(tmp_path):
    """The offset alone would fit: what the reader has of the term between is not what comes next here."""
    for writes in (2, 0):
        async with running(tmp_path, **PAGE_CACHE) as node:
            if writes:
                await node.topic()
                await fill(node, writes)
    async with running(tmp_path, **PAGE_CACHE) as node:
        await fill(node, 1)
        answer = await node.client.fetch({T0: 2}, last_fetched_epoch=1)
        diverging = answer.partitions[T0].diverging_epoch
        assert (answer.values(), diverging.epoch, diverging.end_offset) == ([], 0, 2)


async def test_where_the_logs_part_is_told_without_waiting(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await fill(node, 2)
        answer = await node.client.fetch({T0: 5}, last_fetched_epoch=0, max_wait=600_000)
        assert answer.partitions[T0].diverging_epoch.end_offset == 2


async def test_who_followed_a_term_that_has_not_been_is_out_of_range(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic()
        await fill(node, 2)
        for offset in (0, 2, 5):
            answer = await node.client.fetch({T0: offset}, last_fetched_epoch=7, max_wait=600_000)
            assert answer.errors() == {T0: ErrorCode.OFFSET_OUT_OF_RANGE}
        node.partition().log.advance_start(1)
        answer = await node.client.fetch({T0: 0}, last_fetched_epoch=0)
        assert answer.errors() == {T0: ErrorCode.OFFSET_OUT_OF_RANGE}


@pytest.mark.parametrize("version", [12, 15])
async def test_only_brokers_may_fetch_as_replicas(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic()
        place = (node.broker.image.topics["t"].id, 0) if version >= 13 else T0
        answer = await node.client.fetch({place: 0}, version=version, replica_id=2)
        assert answer.error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_nothing_is_read_before_it_is_on_disk(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        await fill(node, 1)
        disk.hold_flushes()
        async with node.another() as producer:
            produced = asyncio.ensure_future(producer.produce({T0: batch(b"not yet")}))
            await until(lambda: node.partition().next_offset == 2)
            answer = await node.client.fetch({T0: 1}, max_wait=50)
            assert (answer.values(), answer.partitions[T0].high_watermark) == ([], 1)
            assert len((await node.client.fetch({T0: 0})).values()) == 1
            assert not produced.done()
            node.client.post_fetch({T0: 1}, max_wait=20_000)
            disk.let_flushes_go()
            assert (await node.client.fetched()).values() == [b"not yet"]
            assert (await produced)[T0].base_offset == 1


async def test_a_damaged_log_is_an_error_of_its_partition_alone(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic(partitions=2, segment_bytes="1024")
        for index in (0, 1):
            await fill(node, 4, index, size=1000)
        first = node.partition("t", 0).log.segments[0]
        first.handle().write([b"\xff" * 100], 0)
        answer = await node.client.fetch({T0: 0, ("t", 1): 0})
        assert answer.errors() == {T0: ErrorCode.CORRUPT_MESSAGE, ("t", 1): 0}
        assert len(answer.values("t", 1)) == 4


async def test_a_large_answer_arrives_whole(tmp_path):
    async with running(tmp_path, **PAGE_CACHE) as node:
        await node.topic(partitions=4, max_message_bytes="2000000", segment_bytes="3000000")
        sent = {index: [bytes([index, n]) * 450_000 for n in range(5)] for index in range(4)}
        for index, values in sent.items():
            for value in values:
                await node.client.produce({("t", index): batch(value)})
        answer = await node.client.fetch({("t", index): 0 for index in range(4)}, max_bytes=50_000_000)
        assert {index: answer.values("t", index) for index in range(4)} == sent
