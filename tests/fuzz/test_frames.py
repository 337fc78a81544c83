"""Bytes that are no frames, too large ones, too slow ones, and clients that say nothing or never listen."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time

import pytest

from clarion.wire.apis import APIS
from tests.fuzz.neighbour import Target
from tests.fuzz.requests import VICTIM, every_version, frame, spoiled, valid_body
from tests.raw_client import RawClient
from tests.traps import words
from tests.waiting import wait_for

PATIENCE_S = 10.0
HALF_OPEN = 300
FRAME_BYTES_MAX = 104_857_600


@pytest.fixture(scope="module", autouse=True)
def victim(besieged: Target) -> None:
    with RawClient(besieged.bootstrap) as raw:
        words.create_topic(raw, VICTIM)
        for _ in range(20):
            words.produce(raw, VICTIM, words.batch(2000))


def connect(target: Target) -> socket.socket:
    host, _, port = target.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def is_closed(connection: socket.socket) -> bool:
    """Read until the other side ends it; False if it does not."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_streams_of_noise_close_the_connection_or_are_never_a_frame(target: Target, chance: random.Random):
    for _ in range(300):
        with connect(target) as connection:
            try:
                connection.sendall(chance.randbytes(chance.choice((1, 3, 4, 5, 50, 5000))))
                connection.shutdown(socket.SHUT_WR)
            except ConnectionError:
                continue
            assert is_closed(connection)


@pytest.mark.parametrize("size", [-1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_senseless_length_closes_the_connection_at_once(target: Target, size: int):
    with connect(target) as connection:
        connection.sendall(struct.pack(">i", size) + b"x" * 100)
        assert is_closed(connection)


@pytest.mark.parametrize("size", [0, 1, 3, 7, 9])
def test_a_frame_too_short_for_a_header_closes_the_connection(target: Target, size: int):
    with connect(target) as connection:
        connection.sendall(struct.pack(">i", size) + b"\0" * size)
        assert is_closed(connection)


def test_a_length_alone_costs_little_memory(target: Target):
    """Fifty clients announce the largest frame and send a little of it."""
    before = target.rss_mb()
    crowd = [connect(target) for _ in range(50)]
    for connection in crowd:
        connection.sendall(struct.pack(">i", FRAME_BYTES_MAX) + struct.pack(">hhih", 0, 9, 1, -1) + b"x" * 1000)
    target.canary.check()
    # An own buffer of at most a megabyte each, until the frame is really there.
    assert target.rss_mb() - before < 75, "memory was given to an announcement"
    wait_for(lambda: target.connections() <= 2, seconds=15, what="frames that took too long")
    for connection in crowd:
        connection.close()


def test_unfinished_frames_of_all_connections_have_one_bound(tmp_path):
    target = Target(tmp_path / "data", CLARION_LIMITS_FRAMES_MEMORY_MAX=str(32 << 20))
    try:
        before, crowd = target.rss_mb(), [connect(target) for _ in range(30)]
        for connection in crowd:
            try:
                connection.sendall(struct.pack(">i", 50 << 20) + bytes(8 << 20))
            except OSError:
                continue
        grown = target.rss_mb() - before
        assert grown < 120, f"{grown:.0f} MB for unfinished frames"
        target.canary.check()
        for connection in crowd:
            connection.close()
    finally:
        target.close()


def test_large_requests_that_are_not_produces_are_refused(target: Target):
    for key, api in APIS.items():
        if key in (0, 1):
            continue
        with connect(target) as connection:
            try:
                connection.sendall(frame(api, api.max_version, bytes(5 << 20)))
            except ConnectionError:
                continue
            assert is_closed(connection), api.name


def test_frames_may_come_byte_by_byte(target: Target):
    api = APIS[18]
    data = frame(api, 0, b"")
    with RawClient(target.bootstrap) as raw:
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(5):
            for at in range(len(data)):
                raw.socket.sendall(data[at : at + 1])
            assert raw.receive_frame()


def test_a_frame_that_never_ends_is_given_up(target: Target):
    """One byte now and then keeps a connection alive, not a frame: the limit is 3 s here."""
    with connect(target) as connection:
        connection.sendall(struct.pack(">i", 1000))
        wait_for(lambda: _is_refused(connection, b"x"), seconds=15, what="the end of a frame without an end")


def _is_refused(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except ConnectionError:
        return True
    return False


def test_valid_and_spoiled_frames_cut_into_random_pieces(target: Target, chance: random.Random):
    versions = [one for one in every_version() if one[0].name not in ("JoinGroup", "SyncGroup")]
    for _ in range(60):
        stream = b""
        for _ in range(chance.randrange(1, 12)):
            api, version = chance.choice(versions)
            body = valid_body(api, version, chance)
            stream += frame(api, version, spoiled(body, chance) if chance.random() < 0.2 else body)
        with connect(target) as connection:
            _send_in_pieces(connection, stream, chance)
            connection.settimeout(0.05)
            is_closed(connection)


def _send_in_pieces(connection: socket.socket, stream: bytes, chance: random.Random) -> None:
    while stream:
        size = chance.choice((1, 2, 5, 100, 3000))
        try:
            connection.sendall(stream[:size])
        except ConnectionError:
            return
        stream = stream[size:]


def test_thousands_of_requests_by_a_client_that_does_not_read_cost_a_bounded_amount(target: Target):
    """Each asks for far more than fits into a socket. The client is simply not read from any more."""
    before = target.rss_mb()
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000_000}
    greedy = [RawClient(target.bootstrap, patience_s=2) for _ in range(4)]
    peak = before
    for raw in greedy:
        try:
            for _ in range(5000):
                raw.send("fetch", 11, **words.fetch_values(VICTIM, [wanted], max_wait=0))
        except TimeoutError:
            pass  # as it should be: the broker has stopped taking them
        peak = max(peak, target.rss_mb())
    assert peak - before < 60, f"{peak - before:.0f} MB for clients that do not read"
    for raw in greedy:
        raw.socket.close()


def test_ten_thousand_pipelined_requests_are_answered_in_order(target: Target):
    count = 10_000
    with RawClient(target.bootstrap) as raw:
        sender = threading.Thread(target=lambda: [raw.send("api_versions", 0) for _ in range(count)])
        sender.start()
        for number in range(1, count + 1):
            assert struct.unpack_from(">i", raw.receive_frame())[0] == number
        sender.join()


def test_half_open_connections_harm_nobody(target: Target):
    """They connect, some say half a word, and they go without a word, or stay."""
    crowd = []
    for number in range(HALF_OPEN):
        connection = connect(target)
        if number % 3 == 0:
            connection.sendall(b"\0\0")
        if number % 3 == 1:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(frame(APIS[18], 0, b"") * 10)
            connection.close()  # with a reset, and answers on their way
        crowd.append(connection)
    target.canary.check()
    wait_for(lambda: target.connections() >= HALF_OPEN // 3, what="those that stay")
    for connection in crowd:
        connection.close()


def test_waiting_requests_of_clients_that_go_are_forgotten(target: Target):
    """Fetches and joins that would wait for minutes: their clients go, and nothing is left of them."""
    for number in range(200):
        with RawClient(target.bootstrap) as raw:
            wanted = {"partition": 0, "fetch_offset": 40_000, "partition_max_bytes": 1000}
            raw.send("fetch", 11, **words.fetch_values(VICTIM, [wanted], max_wait=600_000))
            if number % 10 == 0:
                raw.send("heartbeat", 0, group_id="g", generation_id=1, member_id="m")
            # A reset: of those who only close, nobody knows whether they still read.
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_ten_minutes_of_noise(target: Target, chance: random.Random):
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        test_valid_and_spoiled_frames_cut_into_random_pieces(target, chance)
        test_streams_of_noise_close_the_connection_or_are_never_a_frame(target, chance)
