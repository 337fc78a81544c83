"""A server on a free port with whatever service a story needs, and files whose reads the story controls."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from clarion.net import Connection, NetLimits, PendingReply, Reply, Server
from clarion.net.frames import LENGTH
from clarion.world import DiskFile

LIMITS = NetLimits(
    connections_max=100,
    frame_bytes_max=1_000_000,
    frames_memory_max=4_000_000,
    connection_memory_max=2_000_000,
    requests_in_flight_max=4,
    frame_bytes_per_second_min=1000,
    frame_seconds_max=30,
    idle_seconds_max=600,
    send_buffer_bytes=-1,
)
Service = Callable[[Connection, memoryview], "Reply | PendingReply | None"]


@contextlib.asynccontextmanager
async def serving(service: Service, limits: NetLimits = LIMITS) -> AsyncIterator[tuple[Server, int]]:
    server = Server(service, limits)
    _host, port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(0)


class Slice(NamedTuple):
    file: DiskFile
    position: int
    length: int


class ColdFile:
    """A file of which nothing is in memory; a read ends when the story says so."""

    path = "cold"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.is_warm = threading.Event()
        self.error: OSError | None = None

    def read(self, length: int, position: int) -> bytes:
        assert self.is_warm.wait(60)
        if self.error is not None:
            raise self.error
        return self.content[position : position + length]

    def read_into(self, view: memoryview, position: int) -> int | None:
        return None

    def fileno(self) -> int | None:
        return None


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):  # a bound, not a measure: the machine may be busy with other things
        while not condition():
            await asyncio.sleep(0.001)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = LENGTH.unpack(await reader.readexactly(4))
    return await reader.readexactly(size)


async def lazy_socket(port: int, receive_bytes: int = 4096) -> socket.socket:
    """A connection that takes little at a time, so that large replies do not fit."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


def reset(writer: asyncio.StreamWriter) -> None:
    """The client is gone for good; of one that only closes, nobody knows whether it still reads."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def read_exactly(sock: socket.socket, size: int) -> bytes:
    got = bytearray()
    async with asyncio.timeout(60):
        while len(got) < size:
            part = await asyncio.get_running_loop().sock_recv(sock, min(1 << 20, size - len(got)))
            assert part, "the connection ended"
            got += part
    return bytes(got)
