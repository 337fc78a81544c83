"""Producers that number their batches: repeats are written once, and they are known after a restart."""

import asyncio

import pytest

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from tests.broker.disks import StoryDisk
from tests.broker.harness import refusal, running, until
from tests.broker.talk import batch, now_ms

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE}
HOUR_MS = 3_600_000


def numbered(sequence: int, value: bytes = b"v", producer: int = 7, epoch: int = 0) -> bytes:
    return batch(value, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


async def test_a_repeated_batch_gets_its_first_offset_and_is_written_once(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        for sequence in range(5):
            await node.client.produce({T0: numbered(sequence)})
        again = await node.client.produce({T0: numbered(2)})
        assert (again[T0].error_code, again[T0].base_offset) == (0, 2)
        assert await refusal(node, numbered(9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert node.partition().next_offset == 5


async def test_a_batch_repeated_before_the_first_is_safe_waits_like_the_first(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node, node.another() as again:
        await node.topic()
        disk.hold_flushes()
        asked = [asyncio.ensure_future(one.produce({T0: numbered(0)})) for one in (node.client, again)]
        await until(lambda: len(node.broker.waiting_produces) == 2)
        assert node.partition().next_offset == 1
        disk.let_flushes_go()
        assert [(await one)[T0].base_offset for one in asked] == [0, 0]


@pytest.mark.parametrize("is_clean", [True, False])
async def test_producers_are_known_after_a_restart(tmp_path, is_clean):
    async with running(tmp_path / "a", **QUICK) as node:
        await node.topic()
        for sequence in range(7):
            await node.client.produce({T0: numbered(sequence)})
        if not is_clean:
            import shutil

            shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with running(tmp_path / ("a" if is_clean else "b"), **QUICK) as node:
        for sequence in (6, 3):
            produced = (await node.client.produce({T0: numbered(sequence)}))[T0]
            assert (produced.error_code, produced.base_offset) == (0, sequence)
        assert await refusal(node, numbered(9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await refusal(node, numbered(7)) == 0


async def test_producers_are_known_after_retention_has_taken_all_their_messages(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(retention_ms="1000", clarion_retention_grace_ms="0")
        for sequence in range(3):
            records = batch(b"v", at=now_ms() - HOUR_MS, producer_id=7, producer_epoch=0, base_sequence=sequence)
            await node.client.produce({T0: records})
        await node.server.housekeeping.retain()
        assert node.partition().start_offset == 3
        assert await refusal(node, numbered(9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    async with running(tmp_path, **QUICK) as node:
        assert await refusal(node, numbered(9)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await node.client.produce({T0: numbered(2)}))[T0].base_offset == 2


async def test_a_silent_producer_is_forgotten_after_its_time(tmp_path):
    from clarion.testing.clock import ShiftedClock

    clock = ShiftedClock()
    async with running(tmp_path, clock=clock, producer_id_expiration_ms=HOUR_MS, **QUICK) as node:
        await node.topic()
        await node.client.produce({T0: numbered(0)})
        clock.advance(1800)
        await node.server.housekeeping.expire()
        assert await refusal(node, numbered(5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        clock.advance(1801)
        node.broker.clock_trust.trust()  # it jumps because the story wants it to
        await node.server.housekeeping.expire()
        assert await refusal(node, numbered(5)) == 0
