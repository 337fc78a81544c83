"""Work in threads that the machine may not have."""

import asyncio
import threading

import pytest

from clarion.broker.threads import in_thread


async def test_work_that_found_no_thread_is_never_done(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    may_go, done = threading.Event(), []
    busy = asyncio.ensure_future(in_thread(lambda: may_go.wait(20)))
    await asyncio.sleep(0)
    with monkeypatch.context() as no_threads:
        no_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            await in_thread(lambda: done.append("refused"))
    may_go.set()
    assert await busy
    await in_thread(lambda: done.append("later"))
    assert done == ["later"]
