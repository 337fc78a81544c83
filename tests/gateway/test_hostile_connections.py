"""Connections that are made to cost a broker memory, places or time: endless bodies, headers, pings, answers unread."""

import asyncio
import contextlib
import json
import select
import socket
import time

import pytest

from clarion.gateway import bodies, gates, memory_room, serving
from clarion.gateway.memory_room import MemoryRoom
from clarion.testing import EmbeddedBroker, embedded
from tests.gateway.asking import Asker, check_problem

SECONDS = 60  # a bound, not a measure
CHUNKED = (
    b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
UPGRADE = (
    b"GET /v1/subscriptions/%s/socket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
ENDLESS_BYTES = 64 * 1024 * 1024  # more than is taken of anything


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(serving, "_UNWANTED_SECONDS", 0.2)


def connect(broker: EmbeddedBroker) -> socket.socket:
    host, _, port = broker.http_url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def send_until_refused(sock: socket.socket, part: bytes) -> int:
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < ENDLESS_BYTES:
            sock.sendall(part)
            sent += len(part)
    return sent


def is_ended(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (b"/v1/topics/%s/messages", (b"1\r\nx\r\n0\r\n", b"name: value\r\n" * 1_000)),  # headers behind the body
        (b"/v1/topics/%s/messages", (b"1\r\nx\r\n0\r\nname: ", b"v" * 10_000)),  # one that never ends
        (b"/v1/topics/%s/messages", (b"1;", b"extension" * 1_000)),
        (b"/v1/nothing/%s", (b"", b"2710\r\n" + b"x" * 10_000 + b"\r\n")),  # it was answered long ago
    ],
)
def test_what_never_ends_is_cut_off(http_broker, topic, path, parts):
    with connect(http_broker) as sock:
        sock.sendall(CHUNKED % (path % topic.encode()) + parts[0])
        assert send_until_refused(sock, parts[1]) < ENDLESS_BYTES
    assert http_broker.messages(topic) == []


def test_small_chunks_and_headers_behind_them_are_no_harm(http_broker, topic):
    with connect(http_broker) as sock:
        sock.sendall(CHUNKED % (b"/v1/topics/%s/messages" % topic.encode()))
        sock.sendall(b"1\r\nx\r\n" * 20_000 + b"0\r\nchecksum: 1\r\nhost: evil.example\r\n\r\n")
        assert b" 200 " in sock.recv(1000)
    assert [message.value for message in http_broker.messages(topic)] == [b"x" * 20_000]


def test_a_place_is_not_held_by_a_body_that_nobody_reads_and_that_does_not_come(http_broker):
    with connect(http_broker) as sock:
        sock.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
        assert b" 200 " in sock.recv(1000)
        sock.sendall(b"x")
        assert is_ended(sock)


def test_nor_by_empty_lines():
    with embedded(metrics_port=0, clarion_http_share=1.0, clarion_http_max_connections=1) as broker:
        first = Asker(broker.http_url)
        assert first.get("/v1/topics").status == 200
        first._connection.sock.sendall(b"\r\n\r\n")
        broker.wait_for(lambda: Asker(broker.http_url).get("/v1/topics").status == 200, SECONDS)


def test_a_client_that_sent_too_much_still_sees_the_answer(http_broker):
    with connect(http_broker) as sock:
        body = b"x" * 3_000_000
        sock.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert b" 404 " in sock.recv(1000)
        sock.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in sock.recv(1000)


def test_who_does_not_read_an_answer_is_left(http_broker, topic, monkeypatch):
    monkeypatch.setattr(gates, "UNREAD_SECONDS_MAX", 0.2)
    Asker(http_broker.http_url).post(
        f"/v1/topics/{topic}/messages", b"\1" * 1_000_000, Content_Type="application/octet-stream"
    )
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = http_broker.http_url.removeprefix("http://").partition(":")
        sock.connect((host, int(port)))
        sock.sendall(b"GET /v1/topics/%s/messages HTTP/1.1\r\nHost: localhost\r\n\r\n" % topic.encode())
        state = http_broker._life.server.gateway._serving.state
        http_broker.wait_for(lambda: any(one.flow.write_paused for one in state.connections), SECONDS)
        http_broker.wait_for(lambda: not any(one.flow.write_paused for one in state.connections), SECONDS)


def test_bodies_that_do_not_end_have_so_much_memory_together(http_broker, topic, api, monkeypatch):
    monkeypatch.setattr(memory_room, "BODIES_BYTES_MAX", 100_000)
    head = (
        b"POST /v1/topics/%s/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 200000\r\n\r\n" % topic.encode()
    )
    memory = http_broker._life.server.gateway._serving.memory
    with connect(http_broker) as first, connect(http_broker) as second:
        first.sendall(head + b" " * 90_000)
        http_broker.wait_for(lambda: memory.body_bytes == 90_000, SECONDS)
        second.sendall(head + b" " * 90_000)
        assert b" 503 " in second.recv(1000)
        assert api.post(f"/v1/topics/{topic}/messages", {"value": "small"}).status == 200
        first.sendall(b" " * 109_987 + b'{"value": "x"}'[:13])  # alone it may be as large as it may be
        assert b" 400 " in first.recv(1000)
    http_broker.wait_for(lambda: memory.body_bytes == 0, SECONDS)


def test_answers_that_are_not_read_have_so_much_memory_together(http_broker, topic, api, monkeypatch):
    monkeypatch.setattr(memory_room, "UNREAD_BYTES_MAX", 100_000)
    there = f"/v1/topics/{topic}/messages"
    api.post(there, b"\1" * 1_000_000, Content_Type="application/octet-stream")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = http_broker.http_url.removeprefix("http://").partition(":")
        sock.connect((host, int(port)))
        sock.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % there.encode())
        memory = http_broker._life.server.gateway._serving.memory
        http_broker.wait_for(lambda: memory.is_full_of_answers, SECONDS)
        check_problem(api.get(there), 503, "not read")
        assert api.get("/v1/topics").status == 200
    http_broker.wait_for(lambda: not memory.is_full_of_answers, SECONDS)
    assert api.get(there).status == 200


@pytest.mark.parametrize("opcode", [0x89, 0x81])
def test_frames_are_not_taken_faster_than_their_answers_are_read(http_broker, topic, opcode):
    """Pings, and texts that are no JSON: each has an answer, which would be kept for who does not read."""
    name = f"{topic}-queue"
    Asker(http_broker.http_url).post("/v1/subscriptions", {"name": name, "topics": [topic]})
    with connect(http_broker) as sock:
        sock.sendall(UPGRADE % name.encode())
        assert b" 101 " in sock.recv(1000)
        frames = (bytes([opcode, 0x80 | 125]) + bytes(4) + b"p" * 125) * 500
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            send_until_refused(sock, frames)
        (state,) = {http_broker._life.server.gateway._serving.state}
        waiting = [one.transport.get_write_buffer_size() for one in state.connections]
        assert max(waiting) < 2 * 1024 * 1024
        sock.settimeout(SECONDS)
        assert sock.recv(1000), "and who reads them gets them"


def test_many_requests_in_one_go_are_all_answered(http_broker):
    with connect(http_broker) as sock:
        one = b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sock.sendall(one * 3_000 + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = b""
        while data := sock.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 404") == 3_001


class FullTurns:
    """A share whose turn is full after each piece."""

    is_over = False

    def __init__(self) -> None:
        self.turn_is_full = False

    def spend(self, seconds: float, *, while_polling: bool = False) -> None:
        self.turn_is_full = True

    def next_turn(self) -> asyncio.Future[None]:
        turn = asyncio.get_running_loop().create_future()
        turn.set_result(None)
        return turn


class StillTransport:
    def __init__(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


async def test_what_is_over_in_a_full_turn_waits_for_the_next_and_nothing_is_read_meanwhile():
    loop = asyncio.get_running_loop()
    taken: list[bytes] = []
    transport = StillTransport()
    pieces = gates.Pieces(taken.append, FullTurns(), loop)
    pieces.transport = gates.GatedTransport(transport, loop, MemoryRoom())
    sent = bytes(range(256)) * 64
    pieces.add(sent, lambda: gates.PIECE_BYTES)
    assert len(taken) == 1
    assert not transport.is_reading
    pieces.add(b"more", lambda: gates.PIECE_BYTES)
    while pieces:
        await asyncio.sleep(0)
    assert b"".join(taken) == sent + b"more"
    assert max(map(len, taken)) == gates.PIECE_BYTES
    assert transport.is_reading


def test_lines_that_trickle_are_refused(http_broker, topic, monkeypatch):
    monkeypatch.setattr(bodies, "_PACE_SECONDS", 0.3)
    with connect(http_broker) as sock:
        head = CHUNKED.replace(b"application/octet-stream", b"application/x-ndjson")
        sock.sendall(head % f"/v1/topics/{topic}/messages".encode())
        deadline = time.monotonic() + SECONDS
        while not select.select([sock], [], [], 0.05)[0]:
            assert time.monotonic() < deadline
            sock.sendall(b'd\r\n{"value": 1}\n\r\n')
        answer = sock.recv(65536)
    assert b" 408 " in answer
    assert b"slower than 500 bytes a second" in answer


def test_lines_that_come_in_time_are_not(api, topic, monkeypatch):
    monkeypatch.setattr(bodies, "_PACE_SECONDS", 0.0)
    lines = b'{"value": 1}\n' * 50_000
    answer = api.post(f"/v1/topics/{topic}/messages", lines, Content_Type="application/x-ndjson")
    assert (answer.status, len(answer.lines)) == (200, 50_000)


def test_a_head_that_is_too_long_is_refused_as_a_problem(http_broker):
    """On a connection that has asked before; a head that is a connection's first ends it."""
    with connect(http_broker) as sock:
        sock.sendall(b"GET /v1/cluster HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200 OK" in sock.recv(1 << 16)
        sock.sendall(b"GET /v1/cluster HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 70_000)
        answer = b""
        while part := sock.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["status"] == 431
