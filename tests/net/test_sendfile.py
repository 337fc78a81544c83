"""Readers at a log's tail get the same chunk one after the other: read once, then sent by the kernel from its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from clarion.net import Connection, PendingReply
from clarion.net.frames import LENGTH
from clarion.net.outbox import CHUNK_BYTES, SENDFILE_BYTES_MIN
from clarion.world import DiskFile, RealDisk
from tests.net.serving import Slice, framed, lazy_socket, read_exactly, serving, until

READERS = 8


class TwoFaced:
    """What is read of it is all A; the file that the kernel knows is another one. So one sees who sent a byte."""

    path = "two-faced"

    def __init__(self, real: DiskFile | None) -> None:
        self._real = real
        self.reads = 0

    def read_into(self, view: memoryview, position: int) -> int:
        self.reads += 1
        view[:] = b"A" * len(view)
        return len(view)

    def fileno(self) -> int | None:
        return None if self._real is None else self._real.fileno()


async def answered_in_one_turn(part: Slice, read: Callable[[int], Awaitable[list[bytes]]]) -> list[bytes]:
    """What each of several waiting readers gets when their replies are made ready one after the other."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (_, port):
        reading = asyncio.ensure_future(read(port))
        await until(lambda: len(waiting) == READERS)
        for one in waiting:
            one.resolve([LENGTH.pack(part.length), part])
        return await reading


async def eager_readers(port: int) -> list[bytes]:
    async def read() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"more"))
        got = await reader.readexactly(LENGTH.unpack(await reader.readexactly(4))[0])
        writer.close()
        return got

    return await asyncio.gather(*(read() for _ in range(READERS)))


async def lazy_readers(port: int) -> list[bytes]:
    async def read() -> bytes:
        sock = await lazy_socket(port)
        await asyncio.get_running_loop().sock_sendall(sock, framed(b"more"))
        with sock:
            size = LENGTH.unpack(await read_exactly(sock, 4))[0]
            return await read_exactly(sock, size)

    return await asyncio.gather(*(read() for _ in range(READERS)))


async def test_the_second_reader_of_a_chunk_gets_it_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"B" * SENDFILE_BYTES_MIN)
    file = TwoFaced(RealDisk().open(str(tmp_path / "other")))
    got = await answered_in_one_turn(Slice(file, 0, SENDFILE_BYTES_MIN), eager_readers)  # type: ignore[arg-type]
    assert sorted(set(got)) == [b"A" * SENDFILE_BYTES_MIN, b"B" * SENDFILE_BYTES_MIN]
    assert [one[:1] for one in got].count(b"A") == file.reads == 1


async def test_files_without_a_descriptor_are_copied(tmp_path: Path) -> None:
    got = await answered_in_one_turn(Slice(TwoFaced(None), 0, SENDFILE_BYTES_MIN), eager_readers)  # type: ignore[arg-type]
    assert {*got} == {b"A" * SENDFILE_BYTES_MIN}


@pytest.mark.parametrize("position", [0, 1, 4095])
async def test_readers_that_take_little_at_a_time_get_every_byte(tmp_path: Path, position: int) -> None:
    content = bytes(range(251)) * (3 * CHUNK_BYTES // 251)
    (tmp_path / "log").write_bytes(content)
    file = RealDisk().open(str(tmp_path / "log"))
    got = await answered_in_one_turn(Slice(file, position, len(content) - position), lazy_readers)
    assert all(one == content[position:] for one in got)
