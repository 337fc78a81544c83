"""Produce: what is taken gets its place, what is refused gets its reason, and the answer says no more than is true."""

import asyncio
import errno
from uuid import uuid4

import pytest

from clarion.broker import session, waiting
from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.wire.apis import PRODUCE
from clarion.wire.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, read_header
from clarion.wire.compression import Codec
from clarion.wire.frames import parse_request_header, request_frame
from clarion.wire.records import decode_batch
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, refusal, running, until, versions_of
from tests.broker.talk import batch, now_ms, produce_frame, read_produced, split

T0, T1 = ("t", 0), ("t", 1)


QUICK = {"durability": Durability.PAGE_CACHE}


HOUR_MS = 3_600_000


async def values(node: Node, place=T0) -> list[bytes | None]:
    return (await node.client.fetch({place: 0})).values(*place)


@pytest.mark.parametrize("version", versions_of("Produce"))
async def test_every_version_writes(tmp_path, version):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        place = (node.broker.image.topics["t"].id, 0) if version >= 13 else T0
        for offset in (0, 2):
            produced = (await node.client.produce({place: batch(b"a", b"b")}, version=version))[place]
            assert (produced.error_code, produced.base_offset) == (0, offset)
        assert await values(node) == [b"a", b"b"] * 2


@pytest.mark.parametrize("version", versions_of("Produce"))
async def test_zstd_is_taken_from_the_version_on_that_knows_it(tmp_path, version):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        place = (node.broker.image.topics["t"].id, 0) if version >= 13 else T0
        assert await refusal(node, batch(b"v"), place, version=version) == 0
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 7 else ErrorCode.NONE
        for _ in range(2):
            assert await refusal(node, batch(b"v", compression=Codec.ZSTD), place, version=version) == code
        assert await refusal(node, batch(b"v", compression=Codec.LZ4), place, version=version) == 0


# How safe is safe


async def test_all_waits_for_the_disk_and_one_does_not(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node, node.another() as careful:
        await node.topic()
        disk.hold_flushes()
        assert (await node.client.produce({T0: batch(b"quick")}, acks=1))[T0].base_offset == 0
        produced = asyncio.ensure_future(careful.produce({T0: batch(b"safe")}, acks=-1))
        await until(lambda: len(node.broker.waiting_produces) == 1)
        assert not produced.done()
        disk.let_flushes_go()
        assert (await produced)[T0].base_offset == 1
        assert len(node.broker.waiting_produces) == 0


async def test_without_acknowledgement_there_is_no_answer_and_an_error_ends_the_connection(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        client.post(produce_frame({T0: batch(b"a")}, acks=0))
        assert (await client.produce({T0: batch(b"b")}, acks=1))[T0].base_offset == 1
        client.post(produce_frame({("nowhere", 0): batch(b"c")}, acks=0))
        assert await client.is_refused()
        assert await values(node) == [b"a", b"b"]


async def test_requests_without_acknowledgement_that_begin_alike_have_no_answer_either(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        for value in (b"a", b"b", b"c"):
            client.post(produce_frame({T0: batch(value)}, acks=0))
        assert (await client.produce({T0: batch(b"d")}, acks=1))[T0].base_offset == 3
        client.post(produce_frame({T0: batch(b"e")[:-1]}, acks=0))
        assert await client.is_refused()
        assert await values(node) == [b"a", b"b", b"c", b"d"]


@pytest.mark.uncompiled
async def test_time_out_means_that_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.02)
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic(partitions=2)
        await node.topic("quick", clarion_durability="page-cache")
        disk.hold_flushes()
        produced = await node.client.produce({T0: batch(b"v"), ("quick", 0): batch(b"v")}, timeout=50)
        assert produced[T0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (produced["quick", 0].error_code, produced["quick", 0].base_offset) == (0, 0)
        assert len(node.broker.waiting_produces) == 0
        disk.let_flushes_go()
        await until(lambda: node.partition().high_watermark.offset == 1)
        assert await values(node) == [b"v"]


async def test_a_client_that_goes_while_it_waits_leaves_nothing(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        disk.hold_flushes()
        async with node.another() as client:
            client.post(produce_frame({T0: batch(b"v")}))
            await until(lambda: len(node.broker.waiting_produces) == 1)
            client.reset()
        await until(lambda: len(node.server.net.connections) == 1)
        disk.let_flushes_go()
        await until(lambda: len(node.broker.waiting_produces) == 0)
        assert await values(node) == [b"v"]


async def test_a_deleted_topic_answers_whoever_waits(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        disk.hold_flushes()
        produced = asyncio.ensure_future(node.client.produce({T0: batch(b"v")}))
        await until(lambda: len(node.broker.waiting_produces) == 1)
        deleting = asyncio.ensure_future(node.broker.delete_topic("t"))
        assert (await produced)[T0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        disk.let_flushes_go()
        await deleting


async def test_pipelined_requests_are_written_and_answered_in_order(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        for number in range(300):
            node.client.post(produce_frame({T0: batch(b"%d" % number)}, acks=(-1, 1)[number % 2], correlation=number))
        for number in range(300):
            frame = await node.client.next_frame()
            assert int.from_bytes(frame[:4], "big") == number
            assert read_produced(frame, 9)[T0].base_offset == number
        assert await values(node) == [b"%d" % number for number in range(300)]


# Producers that repeat themselves are known by how their requests begin


async def test_requests_that_begin_alike_are_still_told_apart(tmp_path):
    """Another partition, another topic with a name as long, another `acks`: each is taken for what it says."""
    places = [("t", 0), ("u", 0), ("t", 1), ("longer", 0)]
    async with running(tmp_path, **QUICK) as node, node.another() as second:
        await node.topic(partitions=2)
        await node.topic("u")
        await node.topic("longer")
        for turn in range(6):
            for client, name in ((node.client, b"1"), (second, b"2")):
                for place in places:
                    value = b"%s of %s, %d" % (name, str(place).encode(), turn)
                    produced = await client.produce({place: batch(value)}, acks=turn % 2 or -1)
                    assert list(produced) == [place]
                    assert (await client.fetch({place: produced[place].base_offset})).values(*place) == [value]
        assert len(node.broker.clients.open().templates._known) == 2 * len(places)


async def test_a_topic_made_again_gets_the_messages_of_a_producer_that_knew_the_old_one(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        for _ in range(3):
            assert await refusal(node, batch(b"old")) == 0
        await node.broker.delete_topic("t")
        assert await refusal(node, batch(b"lost")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await node.topic()
        for _ in range(2):
            assert await refusal(node, batch(b"new")) == 0
        assert await values(node) == [b"new", b"new"]


async def test_a_known_producer_waits_for_the_disk_too(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        assert (await node.client.produce({T0: batch(b"first")}))[T0].base_offset == 0
        disk.hold_flushes()
        produced = asyncio.ensure_future(node.client.produce({T0: batch(b"second")}))
        await until(lambda: len(node.broker.waiting_produces) == 1)
        assert not produced.done()
        disk.let_flushes_go()
        assert (await produced)[T0].base_offset == 1


@pytest.mark.parametrize("version", [8, 9])
async def test_a_known_beginning_with_a_broken_end_ends_the_connection_and_nothing_is_written(tmp_path, version):
    async with running(tmp_path, **QUICK) as node, node.another() as liar:
        await node.topic()
        good = produce_frame({T0: batch(b"good")}, version=version)
        for _ in range(2):
            liar.post(good)
            await liar.next_frame()
        body = good[4:-8]
        liar.post(len(body).to_bytes(4, "big") + body)
        assert await liar.is_refused()
        assert await values(node) == [b"good", b"good"]


@pytest.mark.uncompiled
async def test_the_memory_of_producers_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "_TEMPLATES_MAX", 3)
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=10)
        for index in range(10):
            assert await refusal(node, batch(b"v"), ("t", index)) == 0
            assert len(node.broker.clients.open().templates._known) <= 3


async def test_a_client_with_an_enormous_name_is_served_and_not_remembered(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        frame = produce_frame({T0: batch(b"v")}, version=8)
        header = parse_request_header(frame[4:])
        renamed = request_frame(PRODUCE, 8, 1, "n" * 30_000, frame[4 + header.body_at :])
        for offset in range(2):
            node.client.post(renamed)
            assert read_produced(await node.client.next_frame(), 8)[T0].base_offset == offset
        assert not node.broker.clients.open().templates._known


# Refusals


async def test_partitions_of_one_request_succeed_and_fail_on_their_own(tmp_path):
    async with running(tmp_path) as node:
        await node.topic(partitions=2)
        await node.topic("small", max_message_bytes="100")
        answer = await node.client.produce(
            {
                T0: batch(b"good"),
                ("nowhere", 0): batch(b"v"),
                ("t", 9): batch(b"v"),
                ("small", 0): batch(b"v" * 200),
                T1: batch(b"good too"),
                ("__consumer_offsets", 0): batch(b"v"),
            }
        )
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert {place: int(one.error_code) for place, one in answer.items()} == {
            T0: 0,
            ("nowhere", 0): unknown,
            ("t", 9): unknown,
            ("small", 0): ErrorCode.MESSAGE_TOO_LARGE,
            T1: 0,
            ("__consumer_offsets", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert "100 (max.message.bytes)" in answer["small", 0].error_message
        assert await values(node, T1) == [b"good too"]


def changed(records: bytes, at: int, new: bytes) -> bytes:
    return records[:at] + new + records[at + len(new) :]


def with_attributes(bits: int) -> bytes:
    from crc32c import crc32c

    records = bytearray(batch(b"v"))
    records[21:23] = bits.to_bytes(2, "big")
    records[17:21] = crc32c(memoryview(records)[21:]).to_bytes(4, "big")
    return bytes(records)


REFUSED = {
    "no records": (None, ErrorCode.INVALID_RECORD),
    "empty records": (b"", ErrorCode.INVALID_RECORD),
    "less than a header": (batch(b"v")[:40], ErrorCode.INVALID_RECORD),
    "less than a length": (b"\0" * 11, ErrorCode.INVALID_RECORD),
    "a batch shorter than a header": (changed(batch(b"v")[:40], 8, (28).to_bytes(4, "big")), ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (changed(batch(b"v"), 8, b"\xff" * 4), ErrorCode.CORRUPT_MESSAGE),
    "a cut batch": (batch(b"v" * 100)[:-3], ErrorCode.INVALID_RECORD),
    "a batch and a rest": (batch(b"v") + b"xyz", ErrorCode.INVALID_RECORD),
    "garbage": (b"garbage, not a batch" * 10, ErrorCode.CORRUPT_MESSAGE),
    "two batches": (batch(b"v") * 2, ErrorCode.INVALID_RECORD),
    "a flipped bit": (changed(batch(b"value"), 65, b"X"), ErrorCode.CORRUPT_MESSAGE),
    "the format before": (changed(batch(b"v"), 16, b"\1"), ErrorCode.INVALID_RECORD),
    "the first format": (changed(batch(b"v"), 16, b"\0"), ErrorCode.INVALID_RECORD),
    "a format of the future": (changed(batch(b"v"), 16, b"\3"), ErrorCode.CORRUPT_MESSAGE),
    "a control batch": (with_attributes(CONTROL), ErrorCode.INVALID_RECORD),
    "the broker's own time": (with_attributes(LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP),
    "a transaction": (with_attributes(TRANSACTIONAL), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    "an unknown compression": (with_attributes(7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a far future": (batch(b"v", at=now_ms() + 2 * HOUR_MS), ErrorCode.INVALID_TIMESTAMP),
    "a producer without sequence": (batch(b"v", producer_id=1), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_batch_that_cannot_be_is_refused_and_the_next_one_taken(tmp_path, what):
    records, code = REFUSED[what]
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        assert await refusal(node, records) == code
        assert await refusal(node, batch(b"good")) == 0
        assert await refusal(node, records) == code, "now that the producer is known"
        assert await refusal(node, batch(b"good again")) == 0
        assert await values(node) == [b"good", b"good again"]


async def test_a_topic_says_how_old_its_messages_may_be(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(message_timestamp_before_max_ms=str(HOUR_MS))
        assert await refusal(node, batch(b"v", at=now_ms() - 2 * HOUR_MS)) == ErrorCode.INVALID_TIMESTAMP
        assert await refusal(node, batch(b"v", at=-1)) == 0


async def test_what_the_request_says_of_itself_is_refused_for_every_partition(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        assert await refusal(node, batch(b"v"), acks=2) == ErrorCode.INVALID_REQUIRED_ACKS
        assert await refusal(node, batch(b"v"), acks=-2) == ErrorCode.INVALID_REQUIRED_ACKS
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await refusal(node, batch(b"v"), transactional_id="tx") == code
        nobody = (uuid4(), 0)
        assert await refusal(node, batch(b"v"), nobody, version=13) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await values(node) == []


@pytest.mark.parametrize("version", [3, 9, 13, 14])
async def test_bytes_that_are_no_produce_end_the_connection(tmp_path, version):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        client.post(request_frame(PRODUCE, version, 1, "tests", b"\xff" * 30))
        assert await client.is_refused()
        await node.topic()
        assert await refusal(node, batch(b"v")) == 0


# Times


async def test_the_broker_may_stamp_the_time_of_appending(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(message_timestamp_type="LogAppendTime")
        before = now_ms()
        produced = (await node.client.produce({T0: batch(b"a", b"b", at=12345)}))[T0]
        (stored,) = split((await node.client.fetch({T0: 0})).records())
        head = read_header(stored)
        assert head.is_log_append_time
        stamped = int(produced.log_append_time.timestamp() * 1000 + 0.5)
        assert before <= stamped == head.max_timestamp <= now_ms()
        assert {record.timestamp for record in decode_batch(stored)} == {head.max_timestamp}


# Disks


async def test_a_flush_that_fails_takes_one_partition_offline_and_says_so(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, metrics_port=0) as node:
        await node.topic(partitions=2)
        assert await refusal(node, batch(b"before")) == 0
        disk.on_sync = lambda path: OSError(errno.EIO, "Input/output error") if "t-0/" in path else None
        answer = await node.client.produce({T0: batch(b"lost"), T1: batch(b"kept")})
        assert {place: int(one.error_code) for place, one in answer.items()} == {
            T0: ErrorCode.KAFKA_STORAGE_ERROR,
            T1: 0,
        }
        disk.on_sync = lambda path: None
        assert await refusal(node, batch(b"never again")) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await refusal(node, batch(b"as ever"), T1) == 0
        assert await values(node) == [b"before"]
        assert node.partition().log.failed is not None
        reader, writer = await asyncio.open_connection(*node.server.metrics_address)
        writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
        page = await reader.read()
        writer.close()
        assert page.startswith(b"HTTP/1.1 503")
        assert b"t-0" in page


async def test_a_full_disk_refuses_and_takes_again_when_there_is_room(tmp_path, caplog):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        await node.topic(partitions=2)
        disk.on_write = lambda path: OSError(errno.ENOSPC, "No space left on device") if "t-0/" in path else None
        for _ in range(20):
            answer = await node.client.produce({T0: batch(b"v"), T1: batch(b"v")})
            assert answer[T0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert answer[T1].error_code == 0
        assert len([one for one in caplog.records if one.message == "no_room"]) == 1, "told once, not twenty times"
        disk.on_write = lambda path: None
        assert (await node.client.produce({T0: batch(b"room")}))[T0].base_offset == 0
        assert await values(node) == [b"room"]


# Group commit over sockets


async def test_many_clients_share_few_flushes(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        await node.topic()
        await node.client.produce({T0: batch(b"first")})
        before = node.server.commits.flushes_total
        disk.hold_flushes()
        clients = [await type(node.client).connect(*node.server.addresses[0]) for _ in range(50)]
        asked = [asyncio.ensure_future(one.produce({T0: batch(b"v")})) for one in clients]
        await until(lambda: node.partition().next_offset == 51)
        assert not any(one.done() for one in asked)
        disk.let_flushes_go()
        answers = await asyncio.gather(*asked)
        assert sorted(one[T0].base_offset for one in answers) == list(range(1, 51))
        assert node.server.commits.flushes_total - before <= 3
        for client in clients:
            client.close()


async def test_acks_all_is_refused_where_more_replicas_must_be_in_sync_than_there_are(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t", min_insync_replicas="2")
        one = batch(b"v", producer_id=3, producer_epoch=0, base_sequence=0)
        for _ in range(2):
            answer = (await node.client.produce({T0: one}))[T0]
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert node.partition().next_offset == 0, "nothing is appended"
        assert (await node.client.produce({T0: one}, acks=1))[T0].error_code == 0


async def test_no_batch_passes_the_one_before_it_that_found_too_few_replicas_in_sync(tmp_path):
    """With several under way, the second may arrive when there are enough again: it must not begin the sequence."""
    first, second = (batch(b"v", producer_id=3, producer_epoch=0, base_sequence=number) for number in (0, 1))
    async with running(tmp_path) as node:
        await node.topic("t", min_insync_replicas="2")
        assert (await node.client.produce({T0: first}))[T0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        await node.broker.configure_topic("t", lambda topic: {"min.insync.replicas": "1"})
        code = (await node.client.produce({T0: second}))[T0].error_code
        assert code == ErrorCode.NOT_ENOUGH_REPLICAS, "a wrong order would have librdkafka begin a new epoch"
        assert [(await node.client.produce({T0: one}))[T0].base_offset for one in (first, second)] == [0, 1]


async def test_min_insync_replicas_counts_from_the_moment_it_is_set(tmp_path):
    """Also for a producer whose requests the broker knows by heart."""
    async with running(tmp_path) as node:
        await node.topic()
        for _ in range(3):
            assert (await node.client.produce({T0: batch(b"v")}))[T0].error_code == 0
        await node.broker.configure_topic("t", lambda topic: {"min.insync.replicas": "3"})
        assert (await node.client.produce({T0: batch(b"v")}))[T0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert node.partition().next_offset == 3
        await node.broker.configure_topic("t", lambda topic: {"min.insync.replicas": "1"})
        assert (await node.client.produce({T0: batch(b"v")}))[T0].base_offset == 3
