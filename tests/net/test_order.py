"""However replies become ready, and however slowly they leave, each comes whole and in the order of its request."""

import asyncio
import socket
from pathlib import Path

import pytest

from clarion.model.errors import MalformedError
from clarion.net import Connection, PendingReply, Reply
from clarion.net.frames import LENGTH
from clarion.net.outbox import CHUNK_BYTES
from clarion.world import RealDisk
from tests.net.serving import ColdFile, Slice, framed, lazy_socket, read_exactly, read_frame, reset, serving, until

LARGE = 16 * CHUNK_BYTES


@pytest.fixture
def large(tmp_path: Path) -> Slice:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (LARGE // 256))
    return Slice(RealDisk().open(str(path)), 0, LARGE)


def whole(part: Slice) -> list[bytes | Slice]:
    return [LENGTH.pack(part.length), part]


async def test_a_reply_that_the_next_request_makes_ready_is_not_cut_into_by_the_next_reply(large: Slice) -> None:
    """A fetch waits; a produce on the same connection wakes it. The fetch's reply does not fit the socket."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        if bytes(frame) == b"fetch":
            waiting.append(PendingReply(connection))
            return waiting[-1]
        waiting.pop().resolve(whole(large))
        return framed(b"produced")

    async with serving(service) as (_, port):
        with await lazy_socket(port) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"fetch") + framed(b"produce"))
            got = await read_exactly(sock, 4 + LARGE + 4 + len(b"produced"))
        assert got[4 : 4 + LARGE] == large.file.read(LARGE, 0)
        assert got[4 + LARGE :] == framed(b"produced")


async def test_replies_of_one_turn_leave_together_and_none_before_its_turn(large: Slice) -> None:
    def service(connection: Connection, frame: memoryview) -> Reply:
        return whole(large) if bytes(frame) == b"large" else framed(bytes(frame))

    async with serving(service) as (_, port):
        with await lazy_socket(port) as sock:
            names = [b"one", b"two", b"large", b"three", b"four"]
            await asyncio.get_running_loop().sock_sendall(sock, b"".join(map(framed, names)))
            expected = b"".join(framed(name) for name in names if name != b"large")
            got = await read_exactly(sock, 4 + LARGE + len(expected))
        assert got[:14] + got[14 + 4 + LARGE :] == expected


@pytest.mark.parametrize("how", ["closes", "refuses", "fails"])
async def test_what_is_answered_is_sent_before_the_connection_ends(how: str) -> None:
    def service(connection: Connection, frame: memoryview) -> Reply | None:
        if bytes(frame) != b"end":
            return framed(bytes(frame))
        if how == "closes":
            connection.close()
            return None
        raise MalformedError("nonsense") if how == "refuses" else RuntimeError("a mistake")

    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"answer me") + framed(b"end"))
        assert await reader.read() == framed(b"answer me")
        writer.close()


@pytest.mark.parametrize("ready", [framed(b"ready"), [framed(b"ready")]], ids=["bytes", "parts"])
async def test_nothing_overtakes_a_reply_whose_last_bytes_come_from_the_device(ready: Reply) -> None:
    file = ColdFile(b"c" * 1000)

    def service(connection: Connection, frame: memoryview) -> Reply:
        return [LENGTH.pack(1000), Slice(file, 0, 1000)] if bytes(frame) == b"cold" else ready

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"cold"))
        await until(lambda: [one for one in server.connections if not one.is_idle])
        writer.write(framed(b"quick"))
        await asyncio.sleep(0.02)  # time enough to overtake
        file.is_warm.set()
        assert await read_frame(reader) == b"c" * 1000
        assert await read_frame(reader) == b"ready"
        writer.close()


async def test_many_parts_from_memory_and_from_the_device_come_out_as_one_stream() -> None:
    file = ColdFile(bytes(range(250)) * 10_000)
    file.is_warm.set()
    parts: list[bytes | Slice] = []
    expected = b""
    for number in range(40):
        length = (number * 37_123) % (2 * CHUNK_BYTES)
        parts += [b"head %d" % number, Slice(file, number, length)]
        expected += b"head %d" % number + file.content[number : number + length]
    reply = [LENGTH.pack(len(expected)), *parts, b""]

    async with serving(lambda connection, frame: list(reply)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"x") * 2)
        assert await read_frame(reader) == expected
        assert await read_frame(reader) == expected
        writer.close()


async def test_an_empty_part_does_not_swallow_the_bytes_before_it(large: Slice) -> None:
    head = b"h" * 100_000  # too large to be joined with what follows
    empty = Slice(large.file, 0, 0)
    async with serving(lambda connection, frame: [LENGTH.pack(len(head) + 4), head, empty, b"tail"]) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"x"))
        assert await read_frame(reader) == head + b"tail"
        writer.close()


async def test_a_device_that_fails_in_the_middle_of_a_reply_ends_that_connection_alone() -> None:
    broken, ends_early = ColdFile(b"x" * 1000), ColdFile(b"x" * 10)
    broken.error = OSError(5, "Input/output error")
    broken.is_warm.set()
    ends_early.is_warm.set()
    files = {b"broken": broken, b"early": ends_early}

    def service(connection: Connection, frame: memoryview) -> Reply:
        file = files.get(bytes(frame))
        return framed(b"ok") if file is None else [LENGTH.pack(1000), Slice(file, 0, 1000)]

    async with serving(service) as (_, port):
        good_reader, good_writer = await asyncio.open_connection("127.0.0.1", port)
        for name in files:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed(name))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1004)
            writer.close()
        good_writer.write(framed(b"hello"))
        assert await read_frame(good_reader) == b"ok"
        good_writer.close()


class Exploding:
    """A file whose cached read fails, as a bad sector does, or by a mistake of ours."""

    path = "bad"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read_into(self, view: memoryview, position: int) -> int | None:
        raise self._error

    def fileno(self) -> int | None:
        return None


@pytest.mark.parametrize("length", [1_000, 1_000_000])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RecursionError("a mistake"), KeyError("another")])
async def test_whoever_makes_a_reply_ready_does_not_hear_of_the_trouble_of_sending_it(
    length: int, error: Exception
) -> None:
    """Nor is the client kept waiting for the rest."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"x"))
        await until(lambda: waiting)
        waiting[0].resolve([LENGTH.pack(length), Slice(Exploding(error), 0, length)])  # must not raise
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(length + 4)
        await until(lambda: not server.connections)
        writer.close()


async def test_a_mistake_of_the_service_ends_one_connection_and_not_whoever_woke_it() -> None:
    """The second request lies in the backlog; it is begun when the first one's reply becomes ready."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        if bytes(frame) == b"mistake":
            raise ZeroDivisionError
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"wait") * 4 + framed(b"mistake"))
        await until(lambda: len(waiting) == 4)
        for one in waiting:
            one.resolve(framed(b"done"))  # must not raise
        assert await asyncio.wait_for(reader.read(), 60) == framed(b"done") * 4, "those before it are answered"
        await until(lambda: not server.connections)
        writer.close()


async def test_requests_that_wake_each_other_do_not_pile_up_on_the_stack() -> None:
    """Every request makes the one before it ready. A thousand of them in one backlog are as deep as one."""
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        if waiting:
            waiting.pop().resolve(framed(b"ok"))
        waiting.append(PendingReply(connection))
        return waiting[-1]

    def starter(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        return service(connection, frame) if bytes(frame) != b"blocker" else blocked(connection)

    blockers: list[PendingReply] = []

    def blocked(connection: Connection) -> PendingReply:
        blockers.append(PendingReply(connection))
        return blockers[-1]

    async with serving(starter) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"blocker") * 4 + framed(b"r") * 5000)
        await until(lambda: len(blockers) == 4)
        for one in blockers:
            one.resolve(framed(b"ok"))
        for _ in range(4 + 4999):
            assert await read_frame(reader) == b"ok"
        writer.close()


async def test_a_second_reply_waits_while_the_first_does_not_fit_the_socket(large: Slice) -> None:
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (_, port):
        with await lazy_socket(port) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"a") + framed(b"b") + framed(b"c"))
            await until(lambda: len(waiting) == 3)
            waiting[2].resolve(framed(b"third"))
            waiting[0].resolve(whole(large))
            waiting[1].resolve(framed(b"second"))
            tail = framed(b"second") + framed(b"third")
            got = await read_exactly(sock, 4 + LARGE + len(tail))
            assert got[-len(tail) :] == tail


async def test_a_reply_after_the_client_has_gone_is_dropped(large: Slice) -> None:
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"a") + framed(b"b"))
        await until(lambda: len(waiting) == 2)
        reset(writer)
        await until(lambda: not server.connections)
        waiting[1].resolve(whole(large))
        waiting[0].fail()


async def test_a_client_that_goes_in_the_middle_of_a_large_reply_leaves_nothing(large: Slice) -> None:
    async with serving(lambda connection, frame: whole(large)) as (server, port):
        sock = await lazy_socket(port)
        await asyncio.get_running_loop().sock_sendall(sock, framed(b"x") * 3)
        await until(lambda: [one for one in server.connections if not one.is_idle])
        (connection,) = server.connections
        sock.close()
        await until(lambda: not server.connections)
        assert connection.is_idle


async def test_a_failed_request_ends_the_connection_and_the_replies_behind_it() -> None:
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"a") + framed(b"b"))
        await until(lambda: len(waiting) == 2)
        waiting[1].resolve(framed(b"b"))
        waiting[0].fail()
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_sends_thousands_at_once_is_served_in_turns_with_the_others() -> None:
    served: list[bytes] = []

    def service(connection: Connection, frame: memoryview) -> Reply:
        served.append(bytes(frame))
        return framed(bytes(frame))

    async with serving(service) as (_, port):
        greedy_reader, greedy = await asyncio.open_connection("127.0.0.1", port)
        reader, modest = await asyncio.open_connection("127.0.0.1", port)
        greedy.write(framed(b"many") * 20_000)
        await until(lambda: served)
        modest.write(framed(b"one"))
        assert await reader.readexactly(4 + len(b"one")) == framed(b"one")
        assert served.index(b"one") < 15_000
        assert await greedy_reader.readexactly(20_000 * len(framed(b"many"))) == framed(b"many") * 20_000
        greedy.close()
        modest.close()


async def test_readers_of_one_turn_share_what_is_read_and_later_ones_see_what_has_changed(tmp_path: Path) -> None:
    """A log may be cut and written anew between two turns, never within one."""
    path = tmp_path / "log"
    path.write_bytes(b"a" * 20_000)
    file = RealDisk().open(str(path))
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (_, port):
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for letter in (b"a", b"b"):
            file.write([letter * 20_000], 0)
            for _, writer in clients:
                writer.write(framed(b"fetch"))
            await until(lambda: len(waiting) == 3)
            for number, pending in enumerate(waiting):
                length = (100, 20_000, 20_000)[number]
                pending.resolve([LENGTH.pack(length), Slice(file, 0, length)])
            waiting.clear()
            got = [await read_frame(reader) for reader, _ in clients]
            assert got == [letter * 100, letter * 20_000, letter * 20_000]
        for _, writer in clients:
            writer.close()


async def test_a_client_that_closes_its_sending_half_gets_every_reply() -> None:
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> Reply | PendingReply:
        if bytes(frame) == b"quick":
            return framed(b"quick")
        waiting.append(PendingReply(connection))
        return waiting[-1]

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"quick") + framed(b"slow") * 6 + framed(b"quick"))  # more than may be in flight
        writer.write_eof()
        assert await read_frame(reader) == b"quick"
        for number in range(6):
            await until(lambda number=number: len(waiting) > number)
            waiting[number].resolve([framed(b"slow")])
            assert await read_frame(reader) == b"slow"
        assert await asyncio.wait_for(reader.read(), 60) == framed(b"quick")
        await until(lambda: not server.connections)
        writer.close()


async def test_half_a_frame_before_the_end_is_not_waited_for() -> None:
    async with serving(lambda connection, frame: framed(bytes(frame))) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"whole") + framed(b"half")[:6])
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 60) == framed(b"whole")
        await until(lambda: not server.connections)
        assert server.budget.held_bytes == 0
        writer.close()


async def test_a_large_reply_is_read_to_its_end_after_half_a_close(large: Slice) -> None:
    async with serving(lambda connection, frame: whole(large)) as (_, port):
        with await lazy_socket(port) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, framed(b"x") * 2)
            sock.shutdown(socket.SHUT_WR)
            got = await read_exactly(sock, 2 * (4 + LARGE))
            assert got[4 : 4 + LARGE] == got[8 + LARGE :] == large.file.read(LARGE, 0)


@pytest.mark.parametrize("end", [framed(b"nonsense"), framed(b"mistake"), framed(b"fails"), LENGTH.pack(-7)])
@pytest.mark.parametrize("count", [2, 6], ids=["few", "more than may be in flight"])
async def test_requests_before_one_that_ends_the_connection_are_answered_first(end: bytes, count: int) -> None:
    waiting: list[PendingReply] = []

    def service(connection: Connection, frame: memoryview) -> PendingReply:
        if bytes(frame) == b"nonsense":
            raise MalformedError("cannot be read")
        if bytes(frame) == b"mistake":
            raise ZeroDivisionError
        pending = PendingReply(connection)
        if bytes(frame) == b"fails":
            pending.fail()
        else:
            waiting.append(pending)
        return pending

    async with serving(service) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"good") * count + end + framed(b"never"))
        for number in range(count):
            await until(lambda number=number: len(waiting) > number)
            waiting[number].resolve(framed(b"%d" % number))
        expected = b"".join(framed(b"%d" % number) for number in range(count))
        assert await asyncio.wait_for(reader.read(), 60) == expected
        await until(lambda: not server.connections)
        assert len(waiting) == count or end == framed(b"fails"), "what is behind is not begun"
        writer.close()
