"""A topic with a codec of its own: whatever comes is stored in it, in order, once, and is read back the same."""

import os

import pytest

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.wire.batch import read_header
from clarion.wire.compression import Codec
from clarion.wire.records import decode_batch
from tests.broker.harness import Node, running, until
from tests.broker.talk import batch, produce_frame

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE}
LARGE = 200_000  # bytes: these are compressed in a thread
TYPES = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def codecs(node: Node) -> list[int]:
    return [read_header(one).compression for one in node.partition().log.batches(0)]


async def values(node: Node) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < node.partition().next_offset:
        found += (await node.client.fetch({T0: len(found)})).values()
    return found


@pytest.mark.parametrize("wanted", sorted(TYPES))
@pytest.mark.parametrize("durability", list(Durability))
async def test_whatever_codec_comes_the_topics_own_is_stored(tmp_path, wanted, durability):
    async with running(tmp_path, durability=durability) as node:
        await node.topic(compression_type=wanted)
        sent = []
        for codec in Codec:
            for size in (10, LARGE):
                sent.append(os.urandom(size // 2).hex().encode())
                answer = (await node.client.produce({T0: batch(sent[-1], compression=codec)}))[T0]
                assert (answer.error_code, answer.base_offset) == (0, len(sent) - 1)
        assert codecs(node) == [TYPES[wanted]] * len(sent)
        assert await values(node) == sent


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_small_batches_do_not_overtake_large_ones_and_none_is_written_twice(tmp_path, acks):
    def numbered(sequence: int) -> bytes:
        value = b"%d " % sequence + (b"x" * LARGE if sequence % 3 == 0 else b"")
        return batch(value, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async with running(tmp_path, **QUICK) as node:
        await node.topic(compression_type="gzip")
        for sequence in range(12):
            node.client.post(produce_frame({T0: numbered(sequence)}, acks=acks))
        await until(lambda: node.partition().next_offset == 12)
        if acks:
            for _ in range(12):
                await node.client.next_frame()
        again = (await node.client.produce({T0: numbered(11)}))[T0]
        assert (again.error_code, again.base_offset) == (0, 11), "known by its sequence"
        assert [int(value.split()[0]) for value in await values(node)] == list(range(12))
        assert set(codecs(node)) == {Codec.GZIP}


async def test_a_new_setting_counts_for_the_next_batch_also_of_a_producer_that_repeats_itself(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        for wanted in ("producer", "zstd", "producer", "snappy"):
            await node.broker.configure_topic("t", lambda topic, wanted=wanted: {"compression.type": wanted})
            for _ in range(3):
                assert (await node.client.produce({T0: batch(b"v")}))[T0].error_code == 0
        assert codecs(node) == [0] * 3 + [4] * 3 + [0] * 3 + [2] * 3


async def test_what_becomes_too_large_when_it_is_unpacked_is_refused(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(compression_type="uncompressed", max_message_bytes="10000")
        packed = batch(bytes(20_000), compression=Codec.ZSTD)
        assert (await node.client.produce({T0: packed}))[T0].error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert node.partition().next_offset == 0


async def test_the_time_of_the_append_is_stamped_into_what_is_stored(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(compression_type="lz4", message_timestamp_type="LogAppendTime")
        assert (await node.client.produce({T0: batch(b"v", at=5)}))[T0].error_code == 0
        (record,) = decode_batch((await node.client.fetch({T0: 0})).records())
        assert (record.timestamp > 5, record.value) == (True, b"v")
        assert codecs(node) == [Codec.LZ4]
