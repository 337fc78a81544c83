"""Replies leave in request order, slow readers cost a bounded amount, and broken clients harm only themselves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from clarion.model.errors import MalformedError
from clarion.net import Connection, PendingReply, Reply
from clarion.net.frames import LENGTH
from clarion.net.outbox import CHUNK_BYTES
from clarion.world import RealDisk
from tests.net.serving import LIMITS, Slice, framed, read_frame, reset, serving, until


async def test_replies_leave_in_request_order_though_later_ones_are_ready_first() -> None:
    slow: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        if bytes(frame) == b"slow":
            slow.append(PendingReply(connection))
            return slow[-1]
        return [framed(bytes(frame))]

    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"slow") + framed(b"quick") + framed(b"slow") + framed(b"last"))
        await until(lambda: len(slow) == 2)
        slow[1].resolve([framed(b"second")])
        slow[0].resolve([framed(b"first")])
        got = [await read_frame(reader) for _ in range(4)]
        assert got == [b"first", b"quick", b"second", b"last"]
        writer.close()


async def test_no_more_requests_are_taken_than_may_be_in_flight() -> None:
    taken: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        taken.append(PendingReply(connection))
        return taken[-1]

    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(10):
            writer.write(framed(b"%d" % number))
        await until(lambda: len(taken) == LIMITS.requests_in_flight_max)
        for number in range(10):
            await until(lambda number=number: len(taken) > number)
            assert len(taken) <= number + LIMITS.requests_in_flight_max
            taken[number].resolve([framed(b"%d" % number)])
            assert await read_frame(reader) == b"%d" % number
        writer.close()


async def test_a_reader_that_stops_reading_holds_one_chunk_and_nobody_else_notices(tmp_path: Path) -> None:
    size = 64 * CHUNK_BYTES
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (size // 256))
    file = RealDisk().open(str(path))

    def service(connection: Connection, frame: memoryview) -> Reply:
        if bytes(frame) == b"large":
            return [LENGTH.pack(size), Slice(file, 0, size)]
        return [framed(b"small")]

    async with serving(service) as (server, port):
        loop = asyncio.get_running_loop()
        stuck = socket.socket()
        stuck.setblocking(False)
        await loop.sock_connect(stuck, ("127.0.0.1", port))
        await loop.sock_sendall(stuck, framed(b"large"))
        await until(lambda: any(one.transport is not None and not one.is_idle for one in server.connections))
        (held,) = [one for one in server.connections if not one.is_idle]
        assert held.transport is not None
        assert held.transport.get_write_buffer_size() <= 2 * CHUNK_BYTES

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"hello"))
        assert await read_frame(reader) == b"small"
        writer.close()

        got = bytearray()
        while len(got) < size + 4:
            got += await loop.sock_recv(stuck, 1 << 20)
        assert got[4:] == path.read_bytes()
        stuck.close()


async def test_a_client_that_leaves_abandons_what_it_waited_for() -> None:
    abandoned: list[bool] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        pending = PendingReply(connection)
        pending.on_abandon = lambda: abandoned.append(True)
        return pending

    async with serving(service) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"wait"))
        await until(lambda: any(not one.is_idle for one in server.connections))
        reset(writer)
        await until(lambda: bool(abandoned))
        assert not server.connections


async def test_senseless_bytes_end_that_connection_alone() -> None:
    def service(connection: Connection, frame: memoryview) -> Reply:
        if bytes(frame) == b"nonsense":
            raise MalformedError("cannot be read")
        return [framed(bytes(frame))]

    async with serving(service) as (server, port):
        good_reader, good_writer = await asyncio.open_connection("127.0.0.1", port)
        for senseless in (framed(b"nonsense"), LENGTH.pack(-5), LENGTH.pack(2**31 - 1)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(senseless)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        good_writer.write(framed(b"still here"))
        assert await read_frame(good_reader) == b"still here"
        assert server.malformed_total == 3
        good_writer.close()


async def test_connections_beyond_the_limit_are_refused() -> None:
    limits = replace(LIMITS, connections_max=2)
    async with serving(lambda connection, frame: [framed(b"ok")], limits) as (server, port):
        first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: len(server.connections) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert server.refused_total == 1
        for _, one in [*first, (reader, writer)]:
            one.close()


@pytest.mark.parametrize("size", [0, 1, 70_000])
async def test_a_frame_of_any_size_is_answered(size: int) -> None:
    async with serving(lambda connection, frame: [framed(bytes(frame))]) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(bytes(size)))
        assert await read_frame(reader) == bytes(size)
        writer.close()
