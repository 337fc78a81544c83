"""A queue that is read to its end leaves hardly a byte on the disk; with a bank beside it everything stays."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.model.subscription import CONSUMED, QUEUE, STREAM, Subscription
from clarion.wire.records import encode_batch
from tests.broker.harness import Node, running, until
from tests.broker.share_words import ACCEPT, ShareConsumer

MEGABYTE = 1 << 20
DAY_MS = 86_400_000
BATCH = 500
SOON_SECONDS = 10

JOB = Subscription(name="g", topics=("t",), mode=QUEUE, retention_ms=CONSUMED)
BANK = Subscription(name="bank", topics=("t",), mode=STREAM, retention_ms=14 * DAY_MS)


async def write(node: Node, count: int) -> None:
    """Of a kilobyte each."""
    now_ms = node.broker.clock.now_ms()
    batch = bytes(encode_batch([(None, b"%1024d" % number, (), now_ms) for number in range(BATCH)]))
    for _ in range(count // BATCH):
        assert (await node.client.produce({("t", 0): batch}))["t", 0].error_code == 0


async def read_all(node: Node, count: int) -> None:
    """Acknowledged as they come."""
    consumer = await ShareConsumer(node, node).join()
    left = count
    while left:
        taken = sorted(await consumer.fetch(max_bytes=8 * MEGABYTE, max_records=2_000))
        if taken:
            assert await consumer.acknowledge((taken[0], taken[-1], ACCEPT)) == ErrorCode.NONE
            left -= taken[-1] - taken[0] + 1
        else:
            await asyncio.sleep(0.01)


def bytes_on_disk(folder: Path) -> int:
    found = 0
    for one in (folder / "t-0").iterdir():
        with suppress(FileNotFoundError):  # it may go while we look
            found += one.stat().st_size
    return found


SIZES = [
    pytest.param(50_000, MEGABYTE, id="50,000"),
    pytest.param(1_000_000, 16 * MEGABYTE, id="1,000,000", marks=[pytest.mark.campaign, pytest.mark.timeout(1800)]),
]


async def written_and_read(
    node: Node, folder: Path, count: int, segment_bytes: int, *subscriptions: Subscription
) -> int:
    """How many bytes that were."""
    by_subscriptions = {"clarion_retention_by": "subscriptions", "file_delete_delay_ms": "0"}
    await node.topic("t", segment_bytes=str(segment_bytes), **by_subscriptions)
    for one in subscriptions:
        await node.broker.subscriptions.create(one, ANONYMOUS)
    await write(node, count)
    written = bytes_on_disk(folder)
    assert written > count * 1024
    await read_all(node, count)
    return written


@pytest.mark.parametrize(("count", "segment_bytes"), SIZES)
async def test_what_the_only_subscription_has_consumed_is_gone_soon(tmp_path, count, segment_bytes):
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        written = await written_and_read(node, tmp_path, count, segment_bytes, JOB)
        began = time.monotonic()
        await until(lambda: bytes_on_disk(tmp_path) < 0.05 * written, 60)
        took, left = time.monotonic() - began, bytes_on_disk(tmp_path)
        assert took <= SOON_SECONDS
        print(f"{count:,} messages, {written:,} bytes; {left:,} left {took:.1f} s after the last acknowledgement")


@pytest.mark.parametrize(("count", "segment_bytes"), SIZES)
async def test_with_a_bank_beside_it_everything_stays(tmp_path, count, segment_bytes):
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        written = await written_and_read(node, tmp_path, count, segment_bytes, JOB, BANK)
        for _ in range(3):
            await node.server.housekeeping.retain_acknowledged()
        await node.server.housekeeping.retain()
        assert bytes_on_disk(tmp_path) >= written
        await node.broker.subscriptions.delete("bank", ANONYMOUS)
        await until(lambda: bytes_on_disk(tmp_path) < 0.05 * written, 60)
