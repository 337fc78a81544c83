"""Produced batches that are prepared off the event loop, and appended in the order in which they came.

Some topics want a batch looked through, or changed, before it is appended (`replication/preparation.py`). What is small
is done at once. The rest of a request is copied and waits here; one thread prepares request after request, and each is
appended on the event loop as soon as it is prepared, before the next one is begun. So nothing is overtaken:

    same partition     a partition with something waiting (`Partition.preparing`) takes nothing at once
    same connection    a connection with something waiting is held: none of its further requests is begun

One thread, because the work holds the interpreter's lock most of the time: two would only slow down everybody else.
Partitions whose topics want no preparation never wait here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition, Preparation
from clarion.wire.batch import check_produced_batch
from clarion.wire.limits import WorkBudget
from clarion.world import event_log
from clarion.world.tasks import start_task

log = event_log("broker")

# Waiting batches of all clients together. A client whose batch does not fit is told to send it again.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
_TRY_AGAIN_SECONDS: Final = 0.2  # threads come back when somebody lets go of them


class WaitingBatch:
    """One batch, and what became of it."""

    __slots__ = ("batch", "error", "partition", "preparation")

    def __init__(self, partition: Partition, records: memoryview) -> None:
        self.partition = partition
        self.preparation: Preparation | None = partition.preparation  # None: it only waits for those before it
        self.batch = memoryview(bytearray(records))  # the socket's buffer is about to be used again
        self.error: KafkaError | None = None

    def prepare(self, budget: WorkBudget) -> None:
        """In a thread. What goes wrong with one batch does not concern the others of its request."""
        try:
            if self.preparation is None:
                check_produced_batch(self.batch)  # `append_prepared` believes what it is given
            else:
                self.batch = self.preparation(self.batch, budget)
        except KafkaError as error:
            # A new one: the traceback of this one holds the unpacked batch, and with it us, until the collector comes.
            self.error = KafkaError(error.code, error.message, records=error.records)
        except Exception as error:
            # A batch that trips a mistake of ours must not end the thread that looks into all others.
            log.error("preparation_failed", partition=self.partition.tp, error=error)
            self.error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker could not look into this batch")


Finish = Callable[[], Awaitable[None]]
Fail = Callable[[], None]


class Preparing:
    def __init__(self) -> None:
        self._queue: deque[tuple[Sequence[WaitingBatch], WorkBudget, Finish, Fail]] = deque()
        self._worker = _one_thread()
        self._running: asyncio.Task[None] | None = None
        self._waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def check_room(self, size: int) -> None:
        if self._queue and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many batches wait to be validated; send it again")
        self._waiting_bytes += size

    def add(self, batches: Sequence[WaitingBatch], budget: WorkBudget, finish: Finish, fail: Fail) -> None:
        """`finish` is awaited on the loop when all are prepared: it is to append them, or to tell their errors.

        `fail` is called if that raises, which is our own mistake: the client must not wait for ever. The room of each
        has been taken with `check_room`. Once the broker stops, neither may ever be called.
        """
        for one in batches:
            one.partition.preparing += 1
        self._queue.append((batches, budget, finish, fail))
        if self._running is None:
            self._running = start_task(self._run(), "batches that are looked into")

    async def stop(self) -> None:
        """What is not prepared by now is not appended, and nobody has been told that it is."""
        self._queue.clear()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
        self._worker.shutdown(wait=False)

    async def _run(self) -> None:
        while self._queue:
            batches, budget, finish, fail = self._queue[0]
            sizes = sum([len(one.batch) for one in batches])
            await self._in_thread(batches, budget)
            if not self._queue:
                return  # the broker stops
            try:
                await finish()
            except Exception as error:
                # As above: this task finishes the requests of all clients, one after the other.
                log.error("request_failed", api="Produce", error=error)
                fail()
            self._waiting_bytes -= sizes
            for one in batches:
                one.partition.preparing -= 1
            if self._queue:
                self._queue.popleft()
        self._running = None

    async def _in_thread(self, batches: Sequence[WaitingBatch], budget: WorkBudget) -> None:
        """While the machine has no thread to give, all wait."""
        while self._queue:
            try:
                running = asyncio.get_running_loop().run_in_executor(self._worker, _prepare_all, batches, budget)
            except RuntimeError as error:
                log.warning("preparation_put_off", reason=str(error))
                self._worker = _one_thread()  # the other has this work in its queue, and would do it once more
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
            else:
                return await running


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="prepare")


def _prepare_all(batches: Sequence[WaitingBatch], budget: WorkBudget) -> None:
    for one in batches:
        one.prepare(budget)
