"""A partition on a table: real files, and flushes that run when the story says so."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from clarion.log.config import LogConfig
from clarion.log.log import Log
from clarion.model.errors import ErrorCode
from clarion.model.ids import TopicPartition
from clarion.model.topic_settings import TopicSettings, parse
from clarion.replication import Appended, GroupCommit, LoopThreads, Partition, Term
from clarion.replication.producer_files import load_producers
from clarion.wire.records import encode_batch
from clarion.world import Disk, RealDisk
from tests.log.batches import TOPIC_ID

NOW_MS = 1_700_000_000_000
DURABLE = {"clarion.durability": "fsync"}
QUICK = {"clarion.durability": "page-cache"}


class HeldExecutor(Executor):
    """Keeps its work until `run` lets it happen."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.held.append((done, lambda: work(*args, **more)))
        return done

    async def run(self, error: BaseException | None = None) -> None:
        """Do the oldest piece of work, or let it fail; returns when the loop has heard of it."""
        done, work = self.held.pop(0)
        try:
            if error is not None:
                raise error
            result = work()
        except BaseException as raised:
            done.set_exception(raised)
        else:
            done.set_result(result)
        await turns()


async def turns(count: int = 5) -> None:
    """Let the loop do what is due now."""
    for _ in range(count):
        await asyncio.sleep(0)


class Bench:
    def __init__(self, folder: Path, *, disk: Disk | None = None) -> None:
        self.disk = disk or RealDisk()
        self.folder = folder
        self.executor = HeldExecutor()
        self.commits = GroupCommit(LoopThreads(self.executor))

    def partition(
        self,
        index: int = 0,
        *,
        clean: bool = True,
        recovery_point: int = 0,
        start: int = 0,
        now_ms: int = NOW_MS,
        **overrides: str,
    ) -> Partition:
        tp = TopicPartition("t", index)
        settings = parse({**DURABLE, **named(overrides)}, TopicSettings())
        log = Log.open(
            self.disk,
            str(self.folder / str(tp)),
            LogConfig.of(settings),
            now_ms=now_ms,
            clean=clean,
            topic_id=TOPIC_ID,
            start_offset=start,
            recovery_point=recovery_point,
        )
        producers = load_producers(self.disk, log, now_ms, clean=clean, recovery_point=recovery_point)
        partition = Partition(tp, TOPIC_ID, log, settings, 3, self.commits, self.disk, producers)
        partition.lead(Term(1, 3, (1,), (1,)))
        return partition


def named(overrides: dict[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in overrides.items()}


def append(
    partition: Partition, count: int = 1, *, producer: int = -1, epoch: int = 0, sequence: int = 0, size: int = 1
) -> Appended:
    how = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence} if producer >= 0 else {}
    batch = encode_batch([(None, b"v" * size, (), NOW_MS)] * count, **how)
    return partition.append(memoryview(batch), NOW_MS)


def heard(partition: Partition, appended: Appended) -> list[ErrorCode]:
    """What whoever waits for the commit is told; filled later."""
    told: list[ErrorCode] = []
    if partition.when_committed(appended.last_offset, told.append):
        told.append(ErrorCode.NONE)
    return told
