"""A start with many partitions opens them without reading what is in them, and serves at once."""

import time

import pytest

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from tests.broker.harness import Node, running
from tests.broker.talk import batch, produce_frame, read_produced

QUICK = {"durability": Durability.PAGE_CACHE}


async def start_seconds(data_dir, count: int) -> float:
    """Processor time of a clean start, with messages of an idempotent producer in every partition."""
    async with running(data_dir, **QUICK) as node:
        for number in range(count // 500):
            await node.topic(f"t{number}", 500)
        for number in range(count // 500):
            await write_everywhere(node, f"t{number}", 500)
    began = time.process_time()
    async with running(data_dir, **QUICK) as node:
        spent = time.process_time() - began
        last = (f"t{count // 500 - 1}", 499)
        assert (await node.client.fetch({last: 0})).values(*last) == [b"v"]
        assert (await node.client.produce({last: numbered()}))[last].base_offset == 0, "still known: not written twice"
    return spent


async def write_everywhere(node: Node, topic: str, count: int) -> None:
    """Where a disk is slow, more files wait for their flush than may be open: who is refused for that comes again."""
    left = {*range(count)}
    while left:
        for index in sorted(left):
            node.client.post(produce_frame({(topic, index): numbered()}, acks=1))
        answers = [read_produced(await node.client.next_frame(), 9) for _ in range(len(left))]
        for each in answers:
            left -= {index for (_, index), told in each.items() if told.error_code == ErrorCode.NONE}


def numbered() -> bytes:
    return batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)


async def test_a_thousand_partitions_start_quickly(tmp_path):
    assert await start_seconds(tmp_path, 1_000) < 2


@pytest.mark.campaign
async def test_ten_thousand_partitions_start_within_five_seconds(tmp_path, capsys):
    spent = await start_seconds(tmp_path, 10_000)
    with capsys.disabled():
        print(f"\n10,000 partitions: {spent:.2f} s of processor time to start")
    assert spent < 5
