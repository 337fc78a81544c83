"""What a share fetch takes from the log: headers are read, records go from the files to the socket."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from struct import pack

import pytest

from clarion.broker.config import Durability
from clarion.broker.share_batches import read_batches, read_headers
from clarion.model.errors import ErrorCode
from clarion.wire.batch import CONTROL, MAGIC
from clarion.wire.checksum import crc32c
from clarion.wire.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from clarion.wire.records import encode_batch
from clarion.world import DiskFile
from tests.broker.disks import StoryDisk, StoryFile
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import subscribe
from tests.broker.share_words import ACCEPT, QUICK, earliest, fetch_codes, joined, produce, values
from tests.broker.test_queues import pull

KB = 1024
BASE_OFFSET_AT, LENGTH_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, RECORD_COUNT_AT = 0, 8, 16, 21, 23, 57


class CountingDisk(StoryDisk):
    """All is in memory; counts what is copied out of it."""

    files: type[CountingFile]

    def __init__(self) -> None:
        super().__init__()
        self.copied = 0

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        file = self.files(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))
        file.disk = self
        return file


class CountingFile(StoryFile):
    disk: CountingDisk

    def read(self, length: int, position: int) -> bytes:
        self.disk.copied += length
        return super().read(length, position)

    def read_into(self, view: memoryview, position: int) -> int | None:
        self.disk.copied += len(view)
        return super().read_into(view, position)

    def is_cached(self, length: int, position: int) -> bool:
        return self.disk.on_read(self.path) is None


CountingDisk.files = CountingFile


def append(node: Node, *sizes: int, partition: int = 0) -> None:
    """A batch of one record for each."""
    now_ms = node.broker.clock.now_ms()
    for number, size in enumerate(sizes):
        content = b"%06d" % number + b"v" * size
        node.partition("t", partition).append_own(encode_batch([(None, content, (), now_ms)]), now_ms)


async def committed(node: Node, count: int, partition: int = 0) -> None:
    await until(lambda: node.partition("t", partition).high_watermark.offset == count)


async def test_a_fetch_of_half_a_megabyte_copies_headers_alone(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with running(tmp_path, **QUICK, disk=disk) as node:
        await node.topic("t", 1)
        await earliest(node)
        for start in range(0, 500, 50):
            await produce(node, *(b"%03d" % number + b"v" * KB for number in range(start, start + 50)))
        consumer = await joined(node)
        await consumer.ask(max_records=0)  # everything it takes to begin
        before, sent = disk.copied, node.partition().bytes_out_total
        found = values(await consumer.ask())
        assert [int(value[:3]) for value in found] == list(range(500))
        assert disk.copied - before < 32 * KB
        assert node.partition().bytes_out_total - sent > 500 * KB


@pytest.mark.parametrize(
    "sizes",
    [
        [64 * KB] * 20,
        [100] * 400,
        [3_900] * 60,  # the next header lies across the edge of what is read at a time
        [10, 9_000] * 30,
        [200 * KB, 10, 10],
        [2_000 * KB, 10],  # larger than what is read at a time: it comes alone
    ],
)
async def test_headers_say_the_same_as_whole_batches(tmp_path: Path, sizes: Sequence[int]) -> None:
    async with running(tmp_path, **QUICK, disk=CountingDisk()) as node:
        await node.topic("t", 1, segment_bytes=str(300 * KB))
        append(node, *sizes)
        await committed(node, len(sizes))
        partition, seen = node.partition(), 0
        for offset in range(0, len(sizes), 7):
            for bytes_max in (1, 20 * KB, 70_001, 400 * KB, 1024 * KB):
                headers = await read_headers(partition, offset, bytes_max)
                whole = await read_batches(partition, offset, bytes_max)
                assert (headers.batches, headers.slices) == (whole.batches, whole.slices)
                assert headers.size_bytes == len(whole.found)
                seen += not headers.found
        assert seen


async def test_what_a_transaction_has_left_in_the_log_is_for_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK, disk=CountingDisk()) as node:
        await node.topic("t", 1)
        append(node, 20 * KB)
        marker = encode_batch([(b"\0\0\0\1", b"\0\0\0\0\0\0", (), 1_000)])
        marker[22] |= CONTROL
        marker[17:21] = pack(">I", crc32c(marker[21:]))
        node.partition().append_own(marker, 1_000)
        append(node, 20 * KB)
        await committed(node, 3)
        read = await read_headers(node.partition(), 0, 1024 * KB)
        assert not read.found
        assert read.spans == [(0, 0), (2, 2)]


async def test_a_reply_about_several_partitions_has_each_ones_records_in_its_place(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 3)
        await earliest(node)
        for index in (0, 2):
            await produce(node, *(b"%d-%02d" % (index, number) + b"v" * KB for number in range(80)), partition=index)
        consumer = await joined(node)
        (told,) = (reply := await consumer.ask()).responses
        assert sorted(one.partition_index for one in told.partitions) == [0, 2]
        expected = [b"%d-%02d" % (one.partition_index, number) for one in told.partitions for number in range(80)]
        assert [value[:4] for value in values(reply)] == expected


async def test_a_member_gets_its_own_part_of_a_batch_in_the_whole_batch(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK, disk=CountingDisk()) as node:
        await node.topic("t", 1)
        await earliest(node)
        for start in range(0, 200, 50):
            await produce(node, *(b"%03d" % number + b"v" * KB for number in range(start, start + 50)))
        consumer = await joined(node)
        seen: list[int] = []
        while len(seen) < 200:
            mine = [int(value[:3]) for value in values(await consumer.ask(max_records=40, share_acquire_mode=1))]
            assert 0 < len(mine) <= 40
            assert await consumer.acknowledge((mine[0], mine[-1], ACCEPT)) is ErrorCode.NONE
            seen += mine
        assert seen == list(range(200))


async def test_files_that_are_deleted_while_a_reply_waits_are_sent_all_the_same(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with running(tmp_path, durability=Durability.FSYNC, disk=disk) as node, node.another() as other:
        await node.topic("t", 1, segment_bytes=str(64 * KB), file_delete_delay_ms="0")
        await earliest(node)
        append(node, *[10 * KB] * 20)
        await committed(node, 20)
        consumer = await joined(node)
        await consumer.ask(max_records=0)
        files = set((tmp_path / "t-0").glob("*.log"))
        disk.hold_flushes()
        waiting = asyncio.create_task(consumer.ask())
        await until(lambda: disk.held)
        where = DeleteRecordsTopic(name="t", partitions=(DeleteRecordsPartition(partition_index=0, offset=-1),))
        deleting = asyncio.create_task(other.ask(DeleteRecordsRequest(topics=(where,), timeout=1000), 2))
        await until(lambda: node.partition().start_offset == 20)
        disk.let_flushes_go()
        assert [int(value[:6]) for value in values(await waiting)] == list(range(20))
        await deleting
        await until(lambda: len(files & set((tmp_path / "t-0").glob("*.log"))) <= 1)


async def test_what_is_not_in_memory_and_cannot_be_read_is_given_to_nobody(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with running(tmp_path, **QUICK, disk=disk) as node:
        await node.topic("t", 1)
        await earliest(node)
        append(node, *[20 * KB] * 20)
        await committed(node, 20)
        consumer = await joined(node)
        disk.on_read = lambda path: OSError(errno.EIO, "broken") if "/t-0/" in path else None
        for _ in range(6):  # more often than a record is delivered
            assert fetch_codes(await consumer.ask()) == [ErrorCode.KAFKA_STORAGE_ERROR]
        disk.on_read = lambda path: None
        assert await consumer.fetch() == dict.fromkeys(range(20), 1)


class BlockingFile(CountingFile):
    """Its filesystem reads in any case: who asks what is in memory hears of a bad disk (RWF_NOWAIT is not known)."""

    def read_into(self, view: memoryview, position: int) -> int | None:
        error = self.disk.on_read(self.path)
        if error is not None:
            raise error
        return super().read_into(view, position)

    def is_cached(self, length: int, position: int) -> bool:
        return self.read_into(memoryview(bytearray(1)), position + length - 1) == 1


class BlockingDisk(CountingDisk):
    files = BlockingFile


@pytest.mark.parametrize("size", [100, 20 * KB])  # all of it is read, or headers alone
async def test_a_bad_disk_is_told_where_the_kernel_cannot_say_what_is_in_memory(tmp_path: Path, size: int) -> None:
    disk = BlockingDisk()
    async with running(tmp_path, **QUICK, disk=disk) as node:
        await node.topic("t", 1)
        await earliest(node)
        append(node, *[size] * 20)
        await committed(node, 20)
        consumer = await joined(node)
        disk.on_read = lambda path: OSError(errno.EIO, "broken") if "/t-0/" in path else None
        assert fetch_codes(await consumer.ask()) == [ErrorCode.KAFKA_STORAGE_ERROR]
        disk.on_read = lambda path: None
        assert await consumer.fetch() == dict.fromkeys(range(20), 1)


def spoil(folder: Path, number: int, at: int, form: str, value: int, *, count: int) -> None:
    """A field in the header of one of `count` batches, all of the same size."""
    (log,) = folder.glob("**/t-0/*.log")
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // count * number + at)
        file.write(pack(form, value))


@pytest.mark.parametrize("size", [100, 10 * KB])  # all of it is read, or headers alone
@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (LENGTH_AT, ">i", 0),
        (LENGTH_AT, ">i", -12),  # the whole batch has no bytes at all
        (LENGTH_AT, ">i", -13),
        (LENGTH_AT, ">i", -500),
        (LENGTH_AT, ">i", 2**31 - 1),
        (BASE_OFFSET_AT, ">q", 2**62),
        (BASE_OFFSET_AT, ">q", 3),  # among those behind it
        (BASE_OFFSET_AT, ">q", -1),
        (MAGIC_AT, ">b", 1),
        (LAST_OFFSET_DELTA_AT, ">i", -2),
        (LAST_OFFSET_DELTA_AT, ">i", 2**31 - 1),
        (ATTRIBUTES_AT, ">h", CONTROL),  # nothing for readers
        (RECORD_COUNT_AT, ">i", 0),  # likewise
    ],
)
async def test_a_header_that_the_disk_has_spoiled_costs_the_queue_no_record_behind_it(
    tmp_path: Path, size: int, at: int, form: str, value: int
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        append(node, *[size] * 6)
        await committed(node, 6)
        consumer = await joined(node)
        spoil(tmp_path, 1, at, form, value, count=6)
        assert await consumer.fetch(max_wait=60_000) == {0: 1}
        for _ in range(6):  # more often than a record is delivered
            assert fetch_codes(await consumer.ask(max_wait=60_000)) == [ErrorCode.CORRUPT_MESSAGE]
        assert node.partition().is_damaged
        whole = encode_batch([(None, b"%06d" % 1 + b"v" * size, (), 0)])
        mended = {LENGTH_AT: len(whole) - 12, BASE_OFFSET_AT: 1, MAGIC_AT: MAGIC, RECORD_COUNT_AT: 1}
        spoil(tmp_path, 1, at, form, mended.get(at, 0), count=6)
        assert await consumer.fetch() == dict.fromkeys(range(1, 6), 1)


@pytest.mark.parametrize("size", [100, 10 * KB])
async def test_a_batch_that_seems_to_end_early_costs_the_queue_none_of_its_records(tmp_path: Path, size: int) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        now_ms = node.broker.clock.now_ms()
        for _ in range(3):
            node.partition().append_own(encode_batch([(None, b"v" * size, (), now_ms)] * 4), now_ms)
        await committed(node, 12)
        consumer = await joined(node)
        spoil(tmp_path, 1, LAST_OFFSET_DELTA_AT, ">i", 1, count=3)  # of its offsets 4 to 7, 6 and 7 would be a gap
        assert await consumer.fetch() == dict.fromkeys(range(4), 1)
        assert fetch_codes(await consumer.ask()) == [ErrorCode.CORRUPT_MESSAGE]
        spoil(tmp_path, 1, LAST_OFFSET_DELTA_AT, ">i", 3, count=3)
        assert await consumer.fetch() == dict.fromkeys(range(4, 12), 1)


async def test_who_waits_while_the_disk_is_bad_does_not_ask_it_again_and_again(tmp_path: Path) -> None:
    disk, reads = CountingDisk(), 0

    def broken(path: str) -> OSError | None:
        nonlocal reads
        reads += "/t-0/" in path
        return OSError(errno.EIO, "broken") if "/t-0/" in path else None

    async with running(tmp_path, **QUICK, disk=disk) as node:
        await node.topic("t", 1)
        await subscribe(node)
        append(node, *[20 * KB] * 3)
        await committed(node, 3)
        disk.on_read = broken
        assert await pull(node, wait_ms=500) == []
        assert 0 < reads < 20
        waiting = asyncio.create_task(pull(node, wait_ms=60_000))
        await until(lambda: reads >= 20)  # now and then it does
        disk.on_read = lambda path: None
        assert [one.deliveries for one in await waiting] == [1, 1, 1]
