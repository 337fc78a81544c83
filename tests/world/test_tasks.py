"""A task that nobody awaits does not end in silence."""

import asyncio

from clarion.world.tasks import start_task


async def test_a_task_that_ends_by_a_mistake_says_so_while_it_is_held(caplog):
    async def work() -> None:
        raise KeyError("of ours")

    task = start_task(work(), "watch of something")
    await asyncio.wait([task])
    await asyncio.sleep(0)  # its callbacks come in the turn after its end
    (line,) = [one for one in caplog.records if one.getMessage() == "task_failed"]
    assert line.clarion_fields == {"task": "watch of something"}
    assert line.exc_info[0] is KeyError


async def test_one_that_is_done_or_cancelled_says_nothing(caplog):
    async def work(seconds: float) -> int:
        await asyncio.sleep(seconds)
        return 7

    assert await start_task(work(0), "something short") == 7
    endless = start_task(work(1e6), "something endless")
    await asyncio.sleep(0)
    endless.cancel()
    await asyncio.gather(endless, return_exceptions=True)
    assert endless.cancelled()
    assert caplog.records == []
