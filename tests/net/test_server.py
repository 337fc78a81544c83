"""The end of a server, and connections that are swept out: the idle, the slow and the stuck, but not the held-up."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from clarion.net import Connection, PendingReply, Reply
from clarion.net import server as server_module
from clarion.net.frames import LENGTH
from tests.net.serving import LIMITS, framed, lazy_socket, read_frame, serving, until

pytestmark = pytest.mark.uncompiled  # sweeps come sooner than they do


@pytest.fixture(autouse=True)
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.01)


async def is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 60) == b""
    except ConnectionError:
        return True


async def test_a_stop_lets_requests_under_way_end_and_takes_no_others() -> None:
    taken: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        taken.append(PendingReply(connection))
        return taken[-1]

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"r") * 6)  # four are taken, two lie in the backlog
        await until(lambda: len(taken) == 4)
        stopping = asyncio.ensure_future(server.stop(5))
        await asyncio.sleep(0.01)
        writer.write(framed(b"late"))
        for one in taken:
            one.resolve(framed(b"done"))
        assert [await read_frame(reader) for _ in range(4)] == [b"done"] * 4
        await asyncio.wait_for(stopping, 60)
        assert len(taken) == 4
        assert await is_ended(reader)
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()


async def test_a_stop_gives_up_on_requests_that_do_not_end() -> None:
    abandoned: list[bool] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        pending = PendingReply(connection)
        pending.on_abandon = lambda: abandoned.append(True)
        return pending

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"r"))
        await until(lambda: any(not one.is_idle for one in server.connections))
        await asyncio.wait_for(server.stop(0.05), 60)
        assert abandoned
        assert not server.connections
        assert await is_ended(reader)
        writer.close()


async def test_idle_connections_go_and_busy_ones_stay() -> None:
    limits = replace(
        LIMITS, idle_seconds_max=1.0
    )  # a busy machine may keep us from talking for some tenths of a second
    async with serving(lambda connection, frame: framed(b"ok"), limits) as (_, port):
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        busy_reader, busy_writer = await asyncio.open_connection("127.0.0.1", port)

        async def talk() -> None:
            while True:
                busy_writer.write(framed(b"x"))
                await read_frame(busy_reader)
                await asyncio.sleep(0.01)

        talking = asyncio.ensure_future(talk())
        assert await is_ended(idle_reader)
        assert not talking.done()
        talking.cancel()
        for writer in (idle_writer, busy_writer):
            writer.close()


async def test_a_frame_that_takes_too_long_ends_its_connection() -> None:
    limits = replace(LIMITS, frame_seconds_max=0.1)
    async with serving(lambda connection, frame: framed(b"ok"), limits) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(LENGTH.pack(100) + b"x")
        assert await is_ended(reader)
        writer.close()


async def test_a_frame_that_we_do_not_read_on_is_not_the_clients_fault() -> None:
    """The client has sent half of its fifth request when we stop reading, since four wait for their replies."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        if bytes(frame) == b"last":
            return framed(b"last")
        waiting.append(PendingReply(connection))
        return waiting[-1]

    limits = replace(LIMITS, frame_seconds_max=0.7)  # enough for our own half to follow on a busy machine
    async with serving(service, limits) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"r") * 5 + framed(b"last")[:5])
        await until(lambda: len(waiting) == 4)
        await asyncio.sleep(2 * limits.frame_seconds_max)
        for number in range(5):
            await until(lambda number=number: len(waiting) > number)
            waiting[number].resolve(framed(b"done"))
            assert await read_frame(reader) == b"done"
        writer.write(framed(b"last")[5:])
        assert await read_frame(reader) == b"last"
        writer.close()


async def test_a_client_that_closes_at_once_leaves_nothing() -> None:
    async with serving(lambda connection, frame: framed(b"ok")) as (server, port):
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(b"x"))
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await until(lambda: not server.connections)


async def test_a_stop_does_not_wait_for_those_who_do_not_read_but_for_those_who_do() -> None:
    reply = framed(bytes(900_000))
    taken: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        if bytes(frame) == b"deaf":
            return reply
        taken.append(PendingReply(connection))
        return taken[-1]

    async with serving(service) as (server, port):
        with await lazy_socket(port) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"deaf") * 20)
            await until(lambda: any(one.is_stuck for one in server.connections))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(b"slow"))
            await until(lambda: taken)
            stopping = asyncio.ensure_future(server.stop(600))
            await asyncio.sleep(0.05)
            assert not stopping.done(), "one request is under way"
            taken[0].resolve(framed(b"done"))
            assert await read_frame(reader) == b"done"
            await asyncio.wait_for(stopping, 60)
            writer.close()
