"""A fetch of what is not in memory: found by a thread, while the loop serves the others."""

import asyncio
import os
import threading

import pytest

from clarion.broker.config import Durability
from clarion.world import DiskFile, RealDisk
from clarion.world.disk import RealFile
from tests.broker.harness import running, until
from tests.broker.talk import batch

T0 = ("t", 0)
COLD = (".log", ".index")
QUICK = {"durability": Durability.PAGE_CACHE}


class ColdDisk(RealDisk):
    """What nobody has read yet, or nothing at all, is in memory."""

    def __init__(self, *, keeps: bool = True) -> None:
        self.keeps = keeps
        self.warm: set[tuple[str, int]] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0
        self.readers: set[int] = set()  # threads that waited for the device

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        if not path.endswith(COLD):
            return super().open(path, create=create)
        file = ColdFile(path, os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644))
        file.disk = self
        return file


class ColdFile(RealFile):
    disk: ColdDisk

    def read(self, length: int, position: int) -> bytes:
        self.disk.waiting += 1
        assert self.disk.gate.wait(20)
        self.disk.waiting -= 1
        self.disk.readers.add(threading.get_ident())
        self.disk.warm.add((self.path, position))
        return super().read(length, position)

    def read_into(self, view: memoryview, position: int) -> int | None:
        is_warm = self.disk.keeps and (self.path, position) in self.disk.warm
        return os.preadv(self.fileno(), [view], position) if is_warm else None


async def filled(data_dir) -> None:
    async with running(data_dir, **QUICK) as node:
        await node.topic("t", segment_bytes="4096", index_interval_bytes="512")
        for number in range(40):
            await node.client.produce({T0: batch(b"%02d" % number + b"v" * 500)})
        assert node.partition().log.segment_count > 3


def numbers(values: list[bytes | None]) -> list[int]:
    return [int((value or b"")[:2]) for value in values]


@pytest.mark.parametrize("offset", [0, 1, 13, 20, 38, 39])
async def test_what_is_not_in_memory_is_read_by_threads_alone(tmp_path, offset):
    await filled(tmp_path)
    disk = ColdDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        disk.readers.clear()
        found = await node.client.fetch({T0: offset})
        assert numbers(found.values()) == list(range(offset, 40))
        assert threading.get_ident() not in disk.readers
        assert disk.readers


async def test_others_are_served_while_a_fetch_waits_for_the_device(tmp_path):
    await filled(tmp_path)
    disk = ColdDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node, node.another() as client:
        await node.topic("other")
        disk.gate.clear()
        cold = asyncio.ensure_future(node.client.fetch({T0: 0}))
        await until(lambda: disk.waiting)
        assert (await client.produce({("other", 0): batch(b"v")}))["other", 0].error_code == 0
        assert not cold.done()
        disk.gate.set()
        assert numbers((await cold).values()) == list(range(40))


async def test_a_cold_fetch_that_wants_more_than_there_is_waits_no_longer_than_it_said(tmp_path):
    await filled(tmp_path)
    async with running(tmp_path, disk=ColdDisk(), **QUICK) as node:
        found = await node.client.fetch({T0: 30}, min_bytes=1 << 20, max_wait=50)
        assert numbers(found.values()) == list(range(30, 40))


async def test_where_nothing_stays_in_memory_the_answer_comes_all_the_same(tmp_path):
    await filled(tmp_path)
    async with running(tmp_path, disk=ColdDisk(keeps=False), **QUICK) as node:
        assert numbers((await node.client.fetch({T0: 5})).values()) == list(range(5, 40))


async def test_a_client_that_goes_while_the_device_is_asked_leaves_nothing(tmp_path):
    await filled(tmp_path)
    disk = ColdDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        disk.gate.clear()
        async with node.another() as client:
            client.post_fetch({T0: 0})
            await until(lambda: disk.waiting)
            client.reset()
        await until(lambda: len(node.server.net.connections) == 1)
        disk.gate.set()
        await until(lambda: not disk.waiting)
        assert numbers((await node.client.fetch({T0: 39})).values()) == [39]
