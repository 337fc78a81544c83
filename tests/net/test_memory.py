"""Memory for what arrives and what is not sent: counted, bounded, waited for, and no reason to reset who behaves."""

import asyncio
import socket
from dataclasses import replace
from functools import partial

import pytest

from clarion.net import Connection, PendingReply, Reply, Server
from clarion.net.budget import SMALL_BYTES
from clarion.net.frames import LENGTH
from clarion.net.outbox import PIECE_BYTES
from clarion.net.server import REPLIES_SHARE
from tests.net.serving import LIMITS, ColdFile, Slice, framed, lazy_socket, read_frame, serving, until

FRAME = 900_000
PATIENT = replace(LIMITS, frame_seconds_max=600)
QUICK = replace(LIMITS, frame_seconds_max=1.0)


def size_of(connection: Connection, frame: memoryview) -> Reply:
    return framed(b"%d" % len(frame))


async def send_part(port: int, count: int, announced: int = FRAME) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(sock, LENGTH.pack(announced) + bytes(count))
    return sock


async def crowd(server: Server, port: int, size: int, count: int) -> list[socket.socket]:
    """So many connections that have sent so much of a frame, and say nothing more."""
    socks = [await send_part(port, count) for _ in range(size)]
    await until(lambda: len(server.connections) >= size and all(one.held_bytes for one in server.connections))
    return socks


def close_all(socks: list[socket.socket]) -> None:
    for sock in socks:
        sock.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> bytes:
    writer.write(framed(bytes(size)))
    return await asyncio.wait_for(read_frame(reader), 60)


async def test_announcing_much_and_sending_one_byte_costs_nobody_anything() -> None:
    limits = replace(PATIENT, connections_max=1000)
    async with serving(size_of, limits) as (server, port):
        socks = await crowd(server, port, 200, 1)
        assert server.budget.held_bytes <= 200 * 4096
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(reader, writer, FRAME) == b"%d" % FRAME
        assert len(server.connections) == 201
        assert server.malformed_total == 0
        close_all(socks)
        writer.close()


async def test_when_memory_is_full_small_frames_pass_and_large_ones_wait_their_turn_and_nobody_is_reset() -> None:
    limits = replace(PATIENT, connections_max=1000)
    async with serving(size_of, limits) as (server, port):
        socks = await crowd(server, port, 40, FRAME - 100)
        await until(lambda: server.budget.is_waited_for)
        small = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(*small, 60_000) == b"60000"
        assert server.budget.held_bytes <= limits.frames_memory_max + FRAME + 42 * 2 * SMALL_BYTES
        assert len(server.connections) == 41

        large = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.ensure_future(ask(*large, FRAME))
        loop = asyncio.get_running_loop()
        for sock in socks:  # they go on, one after the other; whoever waits is read from when there is room
            await loop.sock_sendall(sock, bytes(100))
        for sock in socks:
            assert (await asyncio.wait_for(loop.sock_recv(sock, 100), 60))[4:] == b"%d" % FRAME
        assert await asking == b"%d" % FRAME
        assert len(server.connections) == 42
        await until(lambda: server.budget.held_bytes == 0)
        close_all(socks)
        for _, writer in (small, large):
            writer.close()


async def test_who_has_finished_a_large_frame_before_does_not_wait_for_a_crowd_of_strangers() -> None:
    limits = replace(PATIENT, connections_max=1000)
    async with serving(size_of, limits) as (server, port):
        worker = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(*worker, FRAME) == b"%d" % FRAME
        socks = [await send_part(port, FRAME - 100) for _ in range(40)]
        await until(lambda: server.budget.is_waited_for)
        for _ in range(5):
            assert await ask(*worker, FRAME) == b"%d" % FRAME
        assert server.budget.is_waited_for
        close_all(socks)
        worker[1].close()


async def test_tricklers_are_closed_and_their_memory_goes_to_those_who_wait() -> None:
    limits = replace(QUICK, connections_max=1000, frames_memory_max=3_000_000)
    async with serving(size_of, limits) as (server, port):
        # On a slow machine the first are closed before the last have come: nobody waits for all to be there at once.
        socks = [await send_part(port, FRAME - 100) for _ in range(20)]
        large = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(*large, FRAME) == b"%d" % FRAME
        await until(lambda: len(server.connections) == 1)
        assert not large[1].is_closing()
        close_all(socks)
        large[1].close()


async def test_a_steady_frame_may_take_many_times_the_limit() -> None:
    limits = replace(LIMITS, frame_seconds_max=0.5, frame_bytes_per_second_min=10_000)
    async with serving(size_of, limits) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        loop = asyncio.get_running_loop()
        began = loop.time()
        writer.write(LENGTH.pack(800_000))
        sent = 0
        while sent < 800_000:
            writer.write(bytes(3_200))
            sent += 3_200
            await asyncio.sleep(0.01)
        assert loop.time() - began > 4 * limits.frame_seconds_max
        assert await read_frame(reader) == b"800000"
        writer.close()


async def test_large_frames_behind_requests_that_wait_are_not_taken_in() -> None:
    """As many requests as may be in flight wait for news; what is sent behind them stays with the client."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        if bytes(frame[:4]) != b"wait":
            return framed(b"%d" % len(frame))
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service, PATIENT) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"wait") * LIMITS.requests_in_flight_max)
        await until(lambda: len(waiting) == LIMITS.requests_in_flight_max)
        for _ in range(5):
            writer.write(framed(bytes(FRAME)))
        (connection,) = server.connections
        await until(lambda: connection.held_bytes)
        await asyncio.sleep(0.05)  # time to take in more than it should
        assert connection.held_bytes <= 2 * 1024 * 1024
        assert server.budget.held_bytes == connection.held_bytes
        for one in waiting:
            one.resolve(framed(b"news"))
        assert [await read_frame(reader) for _ in waiting] == [b"news"] * len(waiting)
        assert [await read_frame(reader) for _ in range(5)] == [b"%d" % FRAME] * 5
        await until(lambda: server.budget.held_bytes == 0)
        writer.close()


async def test_replies_that_nobody_reads_are_counted_and_stop_further_requests() -> None:
    reply = framed(bytes(400_000))
    taken: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        taken.append(PendingReply(connection))
        return taken[-1]

    limits = replace(PATIENT, requests_in_flight_max=100, connection_memory_max=1_000_000)
    async with serving(service, limits) as (server, port):
        with await lazy_socket(port) as sock:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, framed(b"x") * 40)
            await until(lambda: len(taken) == 40)
            (connection,) = server.connections
            for one in reversed(taken[1:]):
                one.resolve(reply)
            assert server.budget.held_bytes == connection.held_bytes == 39 * len(reply), "the first is not ready"
            await loop.sock_sendall(sock, framed(b"x") * 10)
            await asyncio.sleep(0.05)  # time to take what it should not
            assert len(taken) == 40
            taken[0].resolve(reply)
            await asyncio.sleep(0.05)
            assert len(taken) == 40
            assert server.budget.held_bytes == connection.held_bytes > limits.connection_memory_max
            got = 0
            while got < 40 * len(reply):
                got += len(await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 60))
            await until(lambda: len(taken) == 50)
            assert server.budget.held_bytes == 0


class Making:
    """A service whose replies are larger than a socket's buffer, and pass the gate for large ones."""

    reply = framed(bytes(8_000_000))

    def __init__(self) -> None:
        self.made = 0
        self._tasks: list[asyncio.Task[None]] = []

    def __call__(self, connection: Connection, frame: memoryview) -> PendingReply:
        pending = PendingReply(connection)
        connection.hold(pending)
        self._tasks.append(asyncio.create_task(self._make(connection, pending)))
        return pending

    async def _make(self, connection: Connection, pending: PendingReply) -> None:
        async with connection.reply_room:
            self.made += 1
            pending.resolve(self.reply)
        connection.release(pending)


async def read_all(sock: socket.socket, count: int) -> None:
    while count:
        got = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 20), 60)
        assert got
        count -= len(got)


async def test_the_next_large_reply_is_made_when_those_before_it_have_been_read() -> None:
    service = Making()

    def is_made(count: int) -> bool:
        return service.made == count and server.reply_room.unsent_bytes > 0

    async with serving(service, PATIENT) as (server, port):
        socks = [await lazy_socket(port) for _ in range(6)]
        for sock in socks:
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"x"))
        for number, sock in enumerate(socks, start=1):
            await until(partial(is_made, number))
            assert server.reply_room.unsent_bytes <= len(service.reply)
            await read_all(sock, len(service.reply))
        await until(lambda: not server.reply_room.unsent_bytes)
        assert len(server.connections) == len(socks), "nobody was reset"
        close_all(socks)


async def test_who_does_not_read_a_large_reply_makes_way_for_those_who_wait() -> None:
    service = Making()
    async with serving(service, QUICK) as (server, port):
        with await lazy_socket(port) as deaf, await lazy_socket(port) as other:
            await asyncio.get_running_loop().sock_sendall(deaf, framed(b"x"))
            await until(lambda: server.reply_room.unsent_bytes)
            await asyncio.get_running_loop().sock_sendall(other, framed(b"x"))
            await read_all(other, len(service.reply))
        await until(lambda: not server.connections)
        assert server.reply_room.unsent_bytes == 0


async def test_small_replies_that_nobody_reads_keep_no_large_one_from_being_made() -> None:
    """A connection is never closed for what it may hold anyway: so that must not count at the gate either."""
    making, small, served = Making(), framed(bytes(60_000)), 0

    def serve(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        nonlocal served
        served += 1
        return making(connection, frame) if frame == b"large" else small

    async with serving(serve, QUICK) as (server, port):
        deaf = [await lazy_socket(port) for _ in range(45)]
        loop = asyncio.get_running_loop()
        await until(lambda: len(server.connections) == len(deaf))
        for connection in server.connections:
            sock = connection.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        while not all(one.is_stuck for one in server.connections):
            wanted = served + sum(not one.is_stuck for one in server.connections)
            for sock in deaf:
                await loop.sock_sendall(sock, framed(b"x"))
            await until(lambda wanted=wanted: served >= wanted)
        assert all(one.held_bytes <= SMALL_BYTES for one in server.connections)
        assert sum(one.unsent_bytes for one in server.connections) > QUICK.frames_memory_max // REPLIES_SHARE
        with await lazy_socket(port, 1 << 20) as reader:
            await loop.sock_sendall(reader, framed(b"large"))
            await read_all(reader, len(making.reply))
        assert len([one for one in server.connections if one.is_stuck]) == len(deaf), "they are in nobody's way"
        close_all(deaf)


async def test_while_memory_is_short_a_cold_file_is_read_in_small_pieces() -> None:
    content = bytes(3_000_000)
    lengths: list[int] = []

    class Watched(ColdFile):
        def read(self, length: int, position: int) -> bytes:
            lengths.append(length)
            return super().read(length, position)

    file = Watched(content)
    file.is_warm.set()

    def service(connection: Connection, frame: memoryview) -> Reply:
        return [LENGTH.pack(len(content)), Slice(file, 0, len(content))]

    async with serving(service, PATIENT) as (server, port):
        socks = await crowd(server, port, 6, FRAME - 1)
        await until(lambda: server.budget.is_short)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"x"))
        assert await asyncio.wait_for(read_frame(reader), 60) == content
        assert max(lengths) <= PIECE_BYTES
        close_all(socks)
        writer.close()


async def test_a_backlog_does_not_lie_in_the_buffer_that_all_connections_share() -> None:
    """Two connections; what one has sent waits while the other one's bytes are read into the same buffer."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        if bytes(frame[:4]) == b"wait":
            waiting.append(PendingReply(connection))
            return waiting[-1]
        return framed(bytes(frame))

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        behind = [b"mine %d " % number * 50 for number in range(20)]
        writer.write(framed(b"wait") * 4 + b"".join(map(framed, behind)))
        await until(lambda: len(waiting) == 4 and not all(one.is_idle for one in server.connections))
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            other_writer.write(framed(b"theirs" * 2000))
            assert await read_frame(other_reader) == b"theirs" * 2000
        for one in waiting:
            one.resolve(framed(b"done"))
        assert [await read_frame(reader) for _ in range(4)] == [b"done"] * 4
        assert [await read_frame(reader) for _ in behind] == behind
        writer.close()
        other_writer.close()


@pytest.mark.parametrize("count", [1, 100_000, FRAME - 1])
async def test_a_client_that_goes_in_the_middle_of_a_frame_leaves_nothing(count: int) -> None:
    async with serving(size_of) as (server, port):
        socks = [await send_part(port, count) for _ in range(8)]
        await until(lambda: server.budget.held_bytes)
        close_all(socks)
        await until(lambda: not server.connections)
        assert server.budget.held_bytes == 0
        assert not server.budget.holders
        assert not server.budget.is_waited_for
