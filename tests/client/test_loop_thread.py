"""The event loop behind a bus that blocks."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from clarion.client.loop_thread import LoopThread


async def _as_while_the_program_ends() -> None:
    """No thread can be begun any more."""
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    threads.shutdown()


def test_a_program_that_ends_without_closing_its_bus_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop, done = LoopThread("test"), list[str]()
    loop.run(_as_while_the_program_ends())
    loop.in_a_thread(done.append, "closed")
    loop.run(asyncio.sleep(0))
    assert done == []
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    loop.close()
