"""A start with many partitions opens them without reading what is in them, and serves at once."""

import time

import pytest

from clarion.broker.config import Durability
from tests.broker.harness import running
from tests.broker.talk import batch

QUICK = {"durability": Durability.PAGE_CACHE}


async def start_seconds(data_dir, count: int) -> float:
    """Processor time of a clean start, with messages of an idempotent producer in every partition."""
    async with running(data_dir, **QUICK) as node:
        for number in range(count // 500):
            await node.topic(f"t{number}", 500)
        for number in range(count // 500):
            for index in range(500):
                node.client.post(frame(number, index))
            for _ in range(500):
                await node.client.next_frame()
    began = time.process_time()
    async with running(data_dir, **QUICK) as node:
        spent = time.process_time() - began
        last = (f"t{count // 500 - 1}", 499)
        assert (await node.client.fetch({last: 0})).values(*last) == [b"v"]
        assert (await node.client.produce({last: numbered()}))[last].base_offset == 0, "still known: not written twice"
    return spent


def numbered() -> bytes:
    return batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)


def frame(number: int, index: int) -> bytes:
    from tests.broker.talk import produce_frame

    return produce_frame({(f"t{number}", index): numbered()}, acks=1)


async def test_a_thousand_partitions_start_quickly(tmp_path):
    assert await start_seconds(tmp_path, 1_000) < 2


@pytest.mark.campaign
async def test_ten_thousand_partitions_start_within_five_seconds(tmp_path, capsys):
    spent = await start_seconds(tmp_path, 10_000)
    with capsys.disabled():
        print(f"\n10,000 partitions: {spent:.2f} s of processor time to start")
    assert spent < 5
