"""Messages written and read inside the process are worth what those of clients are worth."""

from __future__ import annotations

import asyncio

import pytest

from clarion.broker.authorizer import ANONYMOUS, Operation, Principal, ResourceKind
from clarion.broker.config import Durability
from clarion.broker.messages import read, write
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.records import decode_batch, encode_batch
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, until
from tests.broker.talk import batch

QUICK = {"durability": Durability.PAGE_CACHE}
T0 = ("t", 0)


def made(*values: bytes, size: int = 0) -> bytearray:
    return encode_batch([(None, value + bytes(size), (), 1_000) for value in values])


async def values(node: Node, offset: int = 0, **how: int) -> list[bytes | None]:
    found = await read(node.broker, ANONYMOUS, "t", 0, offset, **how)
    records = [record for one in found.batches for record in decode_batch(one)]
    return [record.value for record in records if record.offset >= offset]


async def test_clients_read_what_was_written_here_and_the_other_way_round(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        appended = await write(node.broker, ANONYMOUS, "t", 0, made(b"a", b"b"))
        assert (appended.base_offset, appended.last_offset) == (0, 1)
        await node.client.produce({T0: batch(b"c")})
        assert (await node.client.fetch({T0: 0})).values() == [b"a", b"b", b"c"]
        assert await values(node) == [b"a", b"b", b"c"]
        assert await values(node, 1) == [b"b", b"c"], "the batch begins before it"
        assert await values(node, 3) == []
        found = await read(node.broker, ANONYMOUS, "t", 0, 0)
        assert (found.high_watermark, found.start_offset) == (3, 0)


async def test_a_read_ends_at_its_limit_and_holds_one_batch_at_least(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        for number in range(10):
            await write(node.broker, ANONYMOUS, "t", 0, made(b"%d" % number, size=1000))
        assert [one[:1] for one in await values(node, bytes_max=3_500)] == [b"0", b"1", b"2"]
        assert [one[:1] for one in await values(node, 4, bytes_max=1)] == [b"4"]


async def test_a_write_returns_when_it_is_on_disk_and_a_read_sees_it_then(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        await write(node.broker, ANONYMOUS, "t", 0, made(b"first"))
        disk.hold_flushes()
        writing = asyncio.ensure_future(write(node.broker, ANONYMOUS, "t", 0, made(b"second")))
        await until(lambda: len(node.broker.waiting_produces) == 1)
        assert await values(node) == [b"first"]
        waiting = asyncio.ensure_future(values(node, 1, wait_ms=20_000))
        await until(lambda: node.partition().watchers)
        disk.let_flushes_go()
        assert (await writing).base_offset == 1
        assert await waiting == [b"second"]
        assert (len(node.broker.waiting_produces), node.partition().watchers) == (0, {}), "nobody is left behind"


async def test_who_waits_too_long_hears_so_and_leaves_nothing_behind(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        disk.hold_flushes()
        with pytest.raises(KafkaError) as refused:
            await write(node.broker, ANONYMOUS, "t", 0, made(b"v"), timeout_ms=1)
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert await values(node, wait_ms=1) == []
        writing = asyncio.ensure_future(write(node.broker, ANONYMOUS, "t", 0, made(b"w")))
        await until(lambda: len(node.broker.waiting_produces) == 1)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert len(node.broker.waiting_produces) == 0
        disk.let_flushes_go()
        await until(lambda: node.partition().high_watermark.offset == 2)


async def test_a_reader_that_waits_hears_when_the_topic_goes(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        waiting = asyncio.ensure_future(values(node, wait_ms=20_000))
        await until(lambda: node.partition().watchers)
        await node.broker.delete_topic("t")
        with pytest.raises(KafkaError) as refused:
            await waiting
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_has_to_be_looked_into_is_refused_and_changed_like_a_clients(tmp_path):
    """A compacted topic takes no message without a key; another codec than the producer's is applied."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic(cleanup_policy="compact")
        with pytest.raises(KafkaError) as refused:
            await write(node.broker, ANONYMOUS, "t", 0, made(b"v"))
        assert refused.value.code is ErrorCode.INVALID_RECORD
        keyed = encode_batch([(b"k", b"v", (), 1_000)])
        assert (await write(node.broker, ANONYMOUS, "t", 0, keyed)).base_offset == 0
        await node.topic("packed", compression_type="gzip")
        await write(node.broker, ANONYMOUS, "packed", 0, made(b"v" * 10_000))
        (packed,) = (await read(node.broker, ANONYMOUS, "packed", 0, 0)).batches
        assert (len(packed) < 1_000, decode_batch(packed)[0].value) == (True, b"v" * 10_000)


@pytest.mark.parametrize(
    ("topic", "index", "offset", "code"),
    [
        ("nowhere", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 9, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
async def test_what_cannot_be_read_is_refused_with_its_own_code(tmp_path, topic, index, offset, code):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        with pytest.raises(KafkaError) as refused:
            await read(node.broker, ANONYMOUS, topic, index, offset)
        assert refused.value.code is code
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            assert str(refused.value) == "t-0 begins at offset 0 and ends at 0"


async def test_it_is_asked_who_writes_and_reads(tmp_path):
    alice = Principal("User", "alice")

    class Writers:
        def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
            return (principal, operation, kind, name) == (alice, Operation.WRITE, ResourceKind.TOPIC, "t")

    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        node.broker.resolver.authorizer = Writers()
        await write(node.broker, alice, "t", 0, made(b"v"))
        for attempt in (
            write(node.broker, ANONYMOUS, "t", 0, made(b"v")),
            read(node.broker, alice, "t", 0, 0),
            write(node.broker, alice, "__consumer_offsets", 0, made(b"v")),
        ):
            with pytest.raises(KafkaError) as refused:
                await attempt
            assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert node.partition().next_offset == 1
