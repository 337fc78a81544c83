"""What a log lacks, and what a disk only makes it seem to lack: base offsets and lengths are under no checksum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack

import pytest

from clarion.broker.queues import Settlement
from clarion.broker.share_batches import read_batches, read_headers
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition
from clarion.wire.batch import read_header
from clarion.wire.records import encode_batch
from tests.broker import kept as keeping
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import subscribe, write
from tests.broker.share_words import ACCEPT, QUICK, earliest, fetch_codes, joined
from tests.broker.test_queues import pull, settle
from tests.broker.test_share_batches import BASE_OFFSET_AT, LENGTH_AT, spoil

KB = 1024
BATCHES, IN_EACH = 6, 4
RECORDS = BATCHES * IN_EACH


async def batches(node: Node, size: int) -> None:
    """Of four records each, all batches of the same size."""
    now_ms = node.broker.clock.now_ms()
    for number in range(0, RECORDS, IN_EACH):
        records = [(None, b"%02d" % at + b"v" * size, (), now_ms) for at in range(number, number + IN_EACH)]
        node.partition().append_own(encode_batch(records), now_ms)
    await until(lambda: node.partition().high_watermark.offset == RECORDS)


def flips(folder: Path, bits: dict[int, tuple[str, int]]) -> Iterator[tuple[int, str]]:
    """One bit of a header after the other is another one, and is mended. `bits`: by place, form and how many."""
    (log,) = folder.glob("**/t-0/*.log")
    size = log.stat().st_size // BATCHES
    for number in range(BATCHES):
        for at, (form, count) in bits.items():
            with log.open("rb") as file:
                file.seek(number * size + at)
                (good,) = unpack(form, file.read(len(pack(form, 0))))
            for bit in range(count):
                spoil(folder, number, at, form, good ^ 1 << bit, count=BATCHES)
                yield number, f"bit {bit} at {at}"
            spoil(folder, number, at, form, good, count=BATCHES)


async def absent(read_some, partition: Partition, offset: int, bytes_max: int) -> set[int]:
    """Of the offsets that were read over."""
    try:
        read = await read_some(partition, offset, bytes_max)
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return set()
    there = {at for first, last in read.spans for at in range(first, last + 1)}
    for (first, last), size in zip(read.spans, (ends for _, _, ends, _ in read.batches), strict=True):
        assert (first % IN_EACH, last - first) == (0, IN_EACH - 1), f"{size}: these are the records of other offsets"
    return set(range(offset, read.next)) - there if read.batches else set()


@pytest.mark.parametrize("is_restarted", [False, True])  # batches are found by the index then
@pytest.mark.parametrize("value_bytes", [60, 9 * KB])  # all of it is read, or headers alone
async def test_no_bit_of_a_header_makes_records_absent_that_are_there(
    tmp_path: Path, value_bytes: int, is_restarted: bool
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await batches(node, value_bytes)
        size = node.partition().size_bytes // BATCHES
        if not is_restarted:
            await _flip_all(node, tmp_path, size)
    if is_restarted:
        async with running(tmp_path, **QUICK) as node:
            await _flip_all(node, tmp_path, size)


async def _flip_all(node: Node, tmp_path: Path, size: int) -> None:
    tried = 0
    for number, what in flips(tmp_path, {BASE_OFFSET_AT: (">q", 7), LENGTH_AT: (">i", 18)}):
        for offset in range(max(number - 1, 0) * IN_EACH, min(number + 3, BATCHES) * IN_EACH):
            for bytes_max in (1, 3 * size, KB * KB):
                for read_some in (read_batches, read_headers):
                    lost = await absent(read_some, node.partition(), offset, bytes_max)
                    assert not lost, f"batch {number}, {what}, read from {offset} with {bytes_max}: {lost} are absent"
                    tried += 1
    assert tried > 1000
    for offset in range(RECORDS):  # all is mended
        assert not await absent(read_headers, node.partition(), offset, KB * KB)


@pytest.mark.parametrize("base", [6, 5, 2, 3])
async def test_a_base_offset_that_is_wrong_in_a_batch_that_is_alone_in_its_read_costs_no_record(
    tmp_path: Path, base: int
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await batches(node, 150 * KB)
        consumer = await joined(node)
        spoil(tmp_path, 1, BASE_OFFSET_AT, ">q", base, count=BATCHES)
        found = await consumer.fetch(max_wait=60_000)
        assert list(found) == [0, 1, 2, 3]
        assert await consumer.acknowledge((0, 3, ACCEPT)) is ErrorCode.NONE
        for _ in range(6):  # more often than a record is delivered
            assert fetch_codes(await consumer.ask(max_wait=60_000)) == [ErrorCode.CORRUPT_MESSAGE]
        assert node.partition().is_damaged
        spoil(tmp_path, 1, BASE_OFFSET_AT, ">q", 4, count=BATCHES)
        seen: dict[int, int] = {}
        while len(seen) < RECORDS - IN_EACH:
            seen |= await consumer.fetch(max_wait=60_000)
        assert seen == dict.fromkeys(range(4, RECORDS), 1)


async def test_a_batch_that_seems_to_hold_the_next_one_too_costs_a_pull_no_record(tmp_path: Path) -> None:
    """Of batches of 256 bytes one bit of the length makes two of one, and the second is missing."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        filler = 256 - len(encode_batch([(None, b"v" * 100, (), 1)])) + 100
        for number in range(6):
            await write(node, (None, b"%02d" % number + b"v" * (filler - 2)))
        assert node.partition().size_bytes == 6 * 256
        spoil(tmp_path, 1, LENGTH_AT, ">i", 512 - 12, count=6)
        assert [one.offset for one in await pull(node, wait_ms=100)] == [0]
        assert await pull(node, wait_ms=100) == []
        spoil(tmp_path, 1, LENGTH_AT, ">i", 256 - 12, count=6)
        found = await pull(node, wait_ms=60_000)
        assert [(one.offset, one.deliveries) for one in found] == [(at, 1) for at in range(1, 6)]
        await settle(node, *[Settlement(one.receipt, "ack") for one in found])


@pytest.mark.parametrize("size", [10, 3_000])  # all of it is read, or headers alone
async def test_gaps_that_compaction_has_left_are_passed_over_wherever_a_read_begins(tmp_path: Path, size: int) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1, cleanup_policy="compact", segment_bytes="20480", min_cleanable_dirty_ratio="0.01")
        for number in range(60):
            key = b"once%d" % number if number % 7 == 3 else b"again"
            await write(node, (key, b"v" * size))
        node.partition().roll(node.broker.clock.now_ms())
        await write(node, (b"last", b"v"))
        node.partition().flush_soon()
        await keeping.settle(node)
        await node.server.housekeeping.compact()
        partition = node.partition()
        kept = {header.base_offset for header, _ in partition.log.batch_headers(0)}
        assert len(kept) < 30
        for offset in range(61):
            for bytes_max in (1, 8 * KB, KB * KB):
                for read_some in (read_batches, read_headers):
                    at, seen = offset, set()
                    while at < 61:
                        read = await read_some(partition, at, bytes_max)
                        seen |= {first for first, _ in read.spans}
                        at = read.next
                    assert seen == {one for one in kept if one >= offset} - _emptied(partition)
        assert not partition.is_damaged


def _emptied(partition: Partition) -> set[int]:
    return {header.base_offset for header, _ in partition.log.batch_headers(0) if not header.record_count}


async def test_a_gap_beside_a_batch_that_does_not_match_its_checksum_is_none(tmp_path: Path) -> None:
    """Compaction may have left it; whether it has, nobody can say while it may have been swallowed."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        now_ms = node.broker.clock.now_ms()
        for base in (0, 1, 5, 6):
            batch = encode_batch([(None, b"v" * 100, (), now_ms)])
            batch[:8] = pack(">q", base)
            node.partition().log.append(batch, read_header(batch), now_ms)
            node.partition().high_watermark = node.partition().end
        read = await read_batches(node.partition(), 0, KB)
        assert read.spans == [(0, 0), (1, 1), (5, 5), (6, 6)]
        spoil(tmp_path, 1, 90, ">B", 0xFF, count=4)
        read = await read_batches(node.partition(), 0, KB)
        assert read.spans == [(0, 0)]
        with pytest.raises(KafkaError, match="damaged"):
            await read_batches(node.partition(), 1, KB)
