"""What is known to be in the page cache is sent by the kernel from there; else reading it once is the proof."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clarion.net import Connection, PendingReply
from clarion.net.frames import LENGTH
from clarion.net.outbox import CHUNK_BYTES, PROBE_BYTES, SENDFILE_BYTES_MIN
from clarion.world import DiskFile, RealDisk
from tests.net.serving import LIMITS, Slice, framed, lazy_socket, read_exactly, serving, until

READERS = 8


class TwoFaced:
    """What is read of it is all A; the file that the kernel knows is another one. So one sees who sent a byte."""

    path = "two-faced"

    def __init__(self, real: DiskFile | None, is_known_to_be_cached: bool = False) -> None:
        self._real = real
        self._is_known_to_be_cached = is_known_to_be_cached
        self.reads = 0

    def read_into(self, view: memoryview, position: int) -> int:
        self.reads += 1
        view[:] = b"A" * len(view)
        return len(view)

    def is_cached(self, length: int, position: int) -> bool:
        return self._is_known_to_be_cached

    def fileno(self) -> int | None:
        return None if self._real is None else self._real.fileno()


class Witnessed:
    """A file that counts how often it is read; what the kernel sends by itself does not count."""

    path = "witnessed"

    def __init__(self, real: DiskFile) -> None:
        self._real = real
        self.reads = 0

    def read(self, length: int, position: int) -> bytes:
        self.reads += 1
        return self._real.read(length, position)

    def read_into(self, view: memoryview, position: int) -> int | None:
        self.reads += 1
        return self._real.read_into(view, position)

    def is_cached(self, length: int, position: int) -> bool:
        return self._real.is_cached(length, position)

    def fileno(self) -> int | None:
        return self._real.fileno()


async def answered_in_one_turn(
    part: Slice, read: Callable[[int], Awaitable[list[bytes]]], tail: bytes = b""
) -> list[bytes]:
    """What each of several waiting readers gets when their replies are made ready one after the other.

    The kernel takes the whole of a reply to eager ones at once.
    """
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        waiting.append(PendingReply(connection))
        return waiting[-1]

    limits = replace(LIMITS, send_buffer_bytes=2 * CHUNK_BYTES) if read is eager_readers else LIMITS
    async with serving(service, limits) as (_, port):
        reading = asyncio.ensure_future(read(port))
        await until(lambda: len(waiting) == READERS)
        for one in waiting:
            one.resolve([LENGTH.pack(part.length + len(tail)), part, *([tail] if tail else [])])
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


async def test_what_is_known_to_be_cached_is_sent_by_the_kernel_to_all_and_never_read(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"B" * SENDFILE_BYTES_MIN)
    file = TwoFaced(RealDisk().open(str(tmp_path / "other")), is_known_to_be_cached=True)
    got = await answered_in_one_turn(Slice(file, 0, SENDFILE_BYTES_MIN), eager_readers)  # type: ignore[arg-type]
    assert {*got} == {b"B" * SENDFILE_BYTES_MIN}
    assert file.reads == 0


async def test_a_client_that_does_not_read_holds_a_little_of_what_is_cached(tmp_path: Path) -> None:
    size = 64 * CHUNK_BYTES  # more than the socket's buffers
    (tmp_path / "log").write_bytes(bytes(size))
    part = Slice(RealDisk().open(str(tmp_path / "log")), 0, size)

    def service(connection: Connection, frame: memoryview) -> list[bytes | Slice]:
        return [LENGTH.pack(size), part]

    async with serving(service) as (server, port):
        sock = await lazy_socket(port)
        with sock:
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"all"))
            await until(lambda: any(one._outbox.is_paused for one in server.connections))
            held = sum(one._outbox.waiting_bytes for one in server.connections)
            assert held <= (PROBE_BYTES if part.file.is_cached(size, 0) else 2 * CHUNK_BYTES)


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


async def test_a_reply_that_must_wait_a_thousand_times_for_its_reader_arrives_whole(tmp_path: Path) -> None:
    """What is kept of its rest must not grow with every time."""
    size = 32 * CHUNK_BYTES
    content = bytes(range(251)) * (size // 251) + bytes(size % 251)
    (tmp_path / "log").write_bytes(content)
    file = Witnessed(RealDisk().open(str(tmp_path / "log")))

    def service(connection: Connection, frame: memoryview) -> list[bytes | Slice]:
        return [LENGTH.pack(size), Slice(file, 0, size)]  # type: ignore[arg-type]

    async with serving(service, replace(LIMITS, send_buffer_bytes=4096)) as (_, port):
        with await lazy_socket(port) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"all"))
            assert await read_exactly(sock, LENGTH.size + size) == LENGTH.pack(size) + content
    assert file.reads > 1000, "it is read whenever the socket was full"


async def test_a_small_chunk_leaves_with_all_of_its_reply_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further one would wake a reader for a few bytes."""
    file, tail, calls = TwoFaced(None), b"the reply's last bytes", []
    real = os.writev

    def counted(fd: int, buffers: tuple[bytes | memoryview, ...]) -> int:
        calls.append(sum(map(len, buffers)))
        return real(fd, buffers)

    monkeypatch.setattr(os, "writev", counted)
    size = SENDFILE_BYTES_MIN // 4
    got = await answered_in_one_turn(Slice(file, 0, size), eager_readers, tail)  # type: ignore[arg-type]
    assert got == [b"A" * size + tail] * READERS
    assert calls == [LENGTH.size + size + len(tail)] * READERS
    assert file.reads == 1, "readers of one turn share what was read"


@pytest.mark.parametrize("size", [SENDFILE_BYTES_MIN - 1, CHUNK_BYTES + 1])
async def test_a_reply_that_does_not_fit_the_socket_arrives_whole_with_its_last_bytes(
    tmp_path: Path, size: int
) -> None:
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    (tmp_path / "log").write_bytes(content)
    file = RealDisk().open(str(tmp_path / "log"))
    got = await answered_in_one_turn(Slice(file, 0, size), lazy_readers, b"the reply's last bytes")
    assert all(one == content + b"the reply's last bytes" for one in got)


@pytest.mark.parametrize("asked", [-1, 64 * 1024])
async def test_the_kernel_holds_as_much_of_a_reply_as_it_is_told_to(asked: int) -> None:
    sizes: list[int] = []

    def service(connection: Connection, frame: memoryview) -> bytes:
        sock = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
        sizes.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        return framed(b"done")

    async with serving(service, replace(LIMITS, send_buffer_bytes=asked)) as (_server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"size"))
        await reader.readexactly(8)
        writer.close()
    (size,) = sizes
    assert (size == 2 * asked) == (asked > 0), "Linux tells of twice what was asked for: half is for its own notes"
