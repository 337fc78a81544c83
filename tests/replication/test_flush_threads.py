"""Threads that flush: each outcome comes back once, into the loop, and nothing outlives the broker that should not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from clarion.replication import FlushThreads


async def test_what_is_done_comes_back_into_the_loop_with_what_went_wrong() -> None:
    threads, loop_thread = FlushThreads(2), threading.get_ident()
    outcomes: asyncio.Queue[tuple[object, bool]] = asyncio.Queue()

    def on_done(error: BaseException | None) -> None:
        outcomes.put_nowait((error, threading.get_ident() == loop_thread))

    broken = OSError(5, "Input/output error")

    def fail() -> None:
        raise broken

    threads.start(lambda: None, on_done)
    assert await asyncio.wait_for(outcomes.get(), 60) == (None, True)
    threads.start(fail, on_done)
    assert await asyncio.wait_for(outcomes.get(), 60) == (broken, True)
    threads.close()


async def test_there_are_as_many_threads_as_there_is_work_and_never_more_than_allowed() -> None:
    threads, gate = FlushThreads(3), threading.Event()
    busy, most, done = 0, 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        gate.wait(60)
        with lock:
            busy -= 1

    def on_done(error: BaseException | None) -> None:
        nonlocal done
        done += 1

    for _ in range(10):
        threads.start(work, on_done)
    while busy < 3:
        await asyncio.sleep(0.001)
    gate.set()
    while done < 10:
        await asyncio.sleep(0.001)
    assert most == 3
    threads.close()


async def test_closing_waits_for_what_was_started() -> None:
    threads, flushed = FlushThreads(1), []
    for number in range(5):
        threads.start(lambda n=number: flushed.append(n), lambda error: None)
    threads.close()
    assert flushed == [0, 1, 2, 3, 4]


async def test_abandoned_work_that_has_not_begun_never_does() -> None:
    threads, gate, begun = FlushThreads(1), threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        gate.wait(60)
        done.append("first")

    threads.start(first, lambda error: None)
    threads.start(lambda: done.append("second"), lambda error: None)
    assert begun.wait(60)
    threads.abandon()
    gate.set()
    threads.close()
    assert done == ["first"]


async def test_without_a_new_thread_the_ones_there_are_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, done = FlushThreads(3), asyncio.Event()
    threads.start(lambda: None, lambda error: None)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    gate = threading.Event()
    threads.start(lambda: gate.wait(60) and None, lambda error: None)
    threads.start(lambda: None, lambda error: done.set())
    gate.set()
    await asyncio.wait_for(done.wait(), 60)
    threads.close()


async def test_a_first_thread_that_cannot_be_had_leaves_nothing_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, done = FlushThreads(1), asyncio.Event()
    with monkeypatch.context() as poor:
        poor.setattr(threading.Thread, "start", lambda thread: _raise(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            threads.start(lambda: None, lambda error: None)
    threads.start(lambda: None, lambda error: done.set())
    await asyncio.wait_for(done.wait(), 60)
    threads.close()


def _raise(error: Exception) -> None:
    raise error
