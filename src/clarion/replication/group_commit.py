"""Group commit: one flush serves every append that came before it.

    append, append, append ─┐ end of this turn of the loop
                            └→ fdatasync in a thread … meanwhile: append, append ─┐
                               done: the watermark moves, everybody who waited    └→ next fdatasync
                               is answered

At most one flush per partition is under way; partitions flush side by side in a few threads. Whatever goes wrong with
one of them, its waiting clients are told, and the others are flushed as ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from clarion.log.flush import FlushTicket
from clarion.model.histogram import Histogram
from clarion.model.ids import TopicPartition
from clarion.replication.flush_threads import LoopThreads, Threads
from clarion.world import NO_DESCRIPTOR, event_log, precise_seconds

log = event_log("replication")

_TRY_AGAIN_SECONDS: Final = 0.2  # descriptors, threads and room come back when somebody lets go of something
_UNDER_WAY_MAX: Final = 16  # each holds its files open; as many as the threads work on, and the next for each


class Flushable(Protocol):
    is_flushing: bool

    @property
    def tp(self) -> TopicPartition: ...

    def begin_flush(self) -> FlushTicket | None:
        """None if there is nothing to flush any more. OSError if the log cannot be written."""
        ...

    def finish_flush(self, ticket: FlushTicket) -> None: ...
    def fail_flush(self, error: BaseException) -> None: ...
    @property
    def needs_flush(self) -> bool: ...


class GroupCommit:
    def __init__(self, threads: Threads | None = None) -> None:
        self._threads = threads or LoopThreads()
        self._loop = asyncio.get_running_loop()
        self._due: list[Flushable] = []  # of this turn
        self._waiting: deque[Flushable] = deque()  # for others to be done
        self._running: dict[Flushable, asyncio.Future[None]] = {}
        self._put_off: set[Flushable] = set()  # each was logged once, not at every attempt
        self._is_stopped = False
        self.flushes_total = 0
        self.durations = Histogram()  # of flushes, and of their way to a thread and back

    def request(self, partition: Flushable) -> None:
        """See to it that what is in the partition's log now gets committed."""
        if partition.is_flushing:
            return
        partition.is_flushing = True
        if not self._due:
            # At the end of this turn: whoever appends until then shares the flush.
            self._loop.call_soon(self._start_due)
        self._due.append(partition)

    async def settle(self, partitions: Iterable[Flushable]) -> None:
        """Returns when no thread works for these any longer; until then their files must stay where they are."""
        await asyncio.sleep(0)  # lets those start that are due
        partitions = list(partitions)
        while running := [self._running[one] for one in partitions if one in self._running]:
            await asyncio.wait(running)

    def stop(self) -> None:
        """The logs are closed, which flushes them: what was put off need not come."""
        self._is_stopped = True

    def _start_due(self) -> None:
        self._waiting += self._due
        self._due = []
        self._start_waiting()

    def _start_again(self, partition: Flushable) -> None:
        self._waiting.append(partition)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < _UNDER_WAY_MAX:
            self._start(self._waiting.popleft())

    def _start(self, partition: Flushable) -> None:
        if self._is_stopped:
            return
        try:
            ticket = partition.begin_flush()
            if ticket is None:
                self._put_off.discard(partition)
                partition.is_flushing = False
                return
            self._threads.start(ticket.run, partial(self._finish, partition, ticket, precise_seconds()))
        except Exception as error:
            # Whatever it was: whoever waits for this flush would wait for ever, and later flushes would never begin.
            self._fail(partition, error, may_try_again=_passes(error))
            return
        self.flushes_total += 1
        self._running[partition] = self._loop.create_future()

    def _finish(self, partition: Flushable, ticket: FlushTicket, began: float, error: BaseException | None) -> None:
        self.durations.note(precise_seconds() - began)
        self._running.pop(partition).set_result(None)
        try:
            if error is None:
                self._settle(partition, ticket)
            elif isinstance(error, asyncio.CancelledError):
                partition.is_flushing = False
            else:
                self._fail(partition, error, may_try_again=ticket.may_try_again)
        finally:
            self._start_waiting()

    def _settle(self, partition: Flushable, ticket: FlushTicket) -> None:
        if partition in self._put_off:
            self._put_off.discard(partition)
            log.info("flush_made_up_for", partition=partition.tp)
        try:
            partition.finish_flush(ticket)
        finally:  # a reader may fail to hear the news; that stops no flush
            if partition.needs_flush:
                self._waiting.append(partition)  # behind those that wait
            else:
                partition.is_flushing = False

    def _fail(self, partition: Flushable, error: BaseException, *, may_try_again: bool) -> None:
        if may_try_again:
            if partition not in self._put_off:
                self._put_off.add(partition)
                log.warning("flush_put_off", partition=partition.tp, reason=str(error))
            self._loop.call_later(_TRY_AGAIN_SECONDS, self._start_again, partition)
            return
        # What the kernel could not write it may have dropped: a later flush that succeeds would prove nothing.
        self._put_off.discard(partition)
        partition.is_flushing = False
        partition.fail_flush(error)


def _passes(error: Exception) -> bool:
    """Whether it leaves nothing in doubt: no descriptor, or no thread."""
    return isinstance(error, RuntimeError) or (isinstance(error, OSError) and error.errno in NO_DESCRIPTOR)
