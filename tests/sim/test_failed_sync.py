"""A sync that failed, and a restart of the process alone: the page cache shows bytes that the device never got."""

from __future__ import annotations

import asyncio
import errno

import pytest

from clarion.wire.records import encode_batch
from tests.history import Poll, Send, anomalies
from tests.sim.clients import RECORD_MS, Consumer, World, make_topic
from tests.sim.link import Link
from tests.sim.scenario import Life

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def send(link: Link, world: World, value: str, sequence: int) -> int:
    """The error code; the same producer throughout."""
    batch = encode_batch(
        [(None, value.encode(), (), RECORD_MS)], producer_id=0, producer_epoch=0, base_sequence=sequence
    )
    answer = await link.produce(world.topic, 0, bytes(batch))
    if not answer.error:
        one = Send("p", f"{world.topic}-0", value)
        one.acked(answer.base_offset)
        world.history.append(one)
    return answer.error


async def tell(life: Life, is_noted: bool) -> None:
    world, machine = life.world, life.machine
    await machine.boot()
    await make_topic(world)
    assert await send(await Link.open(), world, "p/1", 0) == 0
    if not is_noted:
        machine.drive.fail_when(lambda what: what.path.endswith("sync-failed"), errno.EMFILE)
    machine.drive.fail_when(lambda what: what.kind == "sync" and what.path.endswith(".log"), errno.EIO)
    assert await send(await Link.open(), world, "p/2", 1) != 0, "a failed sync is never acknowledged"
    machine.kill()
    await machine.boot()
    await send(await Link.open(), world, "p/2", 1)  # sent again, as every client does
    machine.cut_power()
    await machine.boot()
    await asyncio.wait_for(Consumer(world, "reader").read_to_end(), 60)


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_failed_sync_is_not_forgotten_by_a_restart(is_noted: bool):
    """The kernel counts the pages as clean after it failed to write them: a sync after the restart writes nothing."""
    life = Life(0, None, keep_lines=False)
    try:
        life.loop.run_until_complete(tell(life, is_noted))
    finally:
        life.bury()
    assert any(isinstance(one, Poll) for one in life.world.history)
    assert anomalies(life.world.history) == []
