"""A broker whose clock stands where the story puts it, and whose housekeeping happens when the story says so."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clarion.broker import cleaning
from clarion.broker.housekeeping import Housekeeping
from clarion.testing.clock import ShiftedClock
from clarion.world import RealDisk
from tests.broker import group_words
from tests.broker.harness import Node, running, until
from tests.broker.talk import batch

T0 = ("t", 0)
QUICK = group_words.QUICK
NEVER = 1e6
HOUR = 3600


class Kept:
    """A broker whose clock stands where the story puts it, and whose housekeeping happens when the story says so."""

    def __init__(self, node: Node, clock: ShiftedClock) -> None:
        self.node = node
        self.clock = clock
        self.house = node.server.housekeeping

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.node.broker.clock_trust.trust()  # this clock jumps because the story wants it to
        await self.house.retain()

    async def write(self, *values: bytes, topic: str = "t", key: bytes | None = None) -> None:
        for value in values:
            records = batch(value, at=self.clock.now_ms(), keys=[key])
            assert (await self.node.client.produce({(topic, 0): records}))[topic, 0].error_code == 0

    async def read(self, topic: str = "t") -> list[bytes | None]:
        start = self.node.partition(topic).start_offset
        answer = await self.node.client.fetch({(topic, 0): start})
        return answer.values(topic)


def keeping(tmp_path: Path, clock: ShiftedClock, **more):
    often = {"retention_check_seconds": NEVER, "compaction_check_seconds": NEVER, "checkpoint_seconds": NEVER}
    return running(tmp_path, clock=clock, **{**QUICK, **often, **more})


class WitnessDisk(RealDisk):
    """Tells which thread waited for the device, and lets a story look in before a file gets another name."""

    def __init__(self) -> None:
        self.synced_by: list[tuple[str, int]] = []
        self.before_rename: Callable[[str], None] = lambda path: None

    def sync_folder(self, path: str) -> None:
        self.synced_by.append((path, threading.get_ident()))
        super().sync_folder(path)

    def rename(self, old: str, new: str) -> None:
        self.before_rename(new)
        super().rename(old, new)


async def settle(node: Node) -> None:
    await until(lambda: not any(one.is_flushing for one in node.broker.partitions))


async def commit(node: Node, group: str, offset: int) -> None:
    await group_words.find(node, group)
    assert await group_words.commit(node, offset, group) == 0


class Gate:
    """Stands in the way of a cleaning thread, once it has seen so many batches, until the story opens it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batches: int = 0) -> None:
        self._open = threading.Event()
        self.is_reached = threading.Event()
        give_way = cleaning.let_others_run
        before = iter(range(batches))

        def wait() -> None:
            if next(before, None) is None:
                self.is_reached.set()
                assert self._open.wait(20)
            give_way()

        monkeypatch.setattr(cleaning, "let_others_run", wait)

    def open(self) -> None:
        self._open.set()


@asynccontextmanager
async def halfway_through_compaction(
    house: Housekeeping, monkeypatch: pytest.MonkeyPatch, batches: int = 0
) -> AsyncIterator[None]:
    """The block happens while the cleaning thread waits in the middle of its work, behind so many batches."""
    gate = Gate(monkeypatch, batches)
    compacting = asyncio.ensure_future(house.compact())
    await until(gate.is_reached.is_set)
    try:
        yield
    finally:
        gate.open()
        await compacting
