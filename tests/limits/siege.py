"""Crowds that announce much and send little, send much and trickle, ask and never read; and honest clients beside them.

The hostile are sockets of a process of their own (`python -m tests.limits.siege`), which pushes on as far as it can, a
few at a time. The honest are threads with one connection each, and keep every latency and every error.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.raw_client import RawClient
from tests.servers import ClarionProcess
from tests.traps import words

FRAME = 1_000_000
ROUND_SECONDS = 1.0  # in which every hostile connection pushes once
SLICES = 100
REST_ROUNDS = 5
READ_BYTES = 20_000  # a fixed size: the log grows all the while, and a later fetch must not be a larger one
SETTLED_SECONDS_MAX = 60

Latencies = dict[str, list[float]]


@contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        import pytest

        pytest.skip(f"a process may open only {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Hostile:
    """One connection. What trickles comes again some time after it is closed: the siege does not end by itself."""

    def __init__(self, address: tuple[str, int], first: bytes, then: bytes = b"") -> None:
        self._address = address
        self._first = first
        self._then = then  # again and again, when the first is sent
        self.closed = 0
        self._rests = 0
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(10)
        self._socket.connect(self._address)
        self._socket.setblocking(False)
        self._rest = memoryview(self._first)

    def _come_again(self) -> None:
        try:
            self._connect()
        except OSError:
            self._rests = REST_ROUNDS

    def push(self) -> None:
        if self._rests:
            self._rests -= 1
            if not self._rests and self._then:
                self._come_again()
            return
        try:
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest) :]
            if self._then:
                self._socket.send(self._then)
        except BlockingIOError:
            pass
        except OSError:
            self.closed += 1
            self._rests = REST_ROUNDS
            self.close()

    def close(self) -> None:
        self._socket.close()


def announcer(address: tuple[str, int]) -> Hostile:
    return Hostile(address, struct.pack(">i", FRAME) + b"x")


def trickler(address: tuple[str, int]) -> Hostile:
    return Hostile(address, struct.pack(">i", FRAME) + struct.pack(">hhih", 0, 9, 1, -1) + bytes(900_000), b"x")


def deaf(address: tuple[str, int], topics: int) -> Hostile:
    """DescribeConfigs of all topics, 60 times, and never an answer read."""
    names = [f"topic-{number}".encode() for number in range(topics)]
    body = struct.pack(">i", topics)
    body += b"".join(struct.pack(">bh", 2, len(name)) + name + struct.pack(">i", -1) for name in names) + b"\1"
    request = struct.pack(">hhih", 32, 1, 1, -1) + body
    return Hostile(address, (struct.pack(">i", len(request)) + request) * 60)


class Siege:
    """The process of the hostile. It says when all have connected, and at the end how many of them were closed."""

    def __init__(self, bootstrap: str, announcers: int, tricklers: int, deafs: int, topics: int) -> None:
        counts = [str(count) for count in (announcers, tricklers, deafs, topics)]
        command = [sys.executable, "-m", "tests.limits.siege", bootstrap, *counts]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "ready"

    def __enter__(self) -> Siege:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Returns how many were closed."""
        told, _ = self._process.communicate("end\n", timeout=60)
        return int(told.strip())


def besiege(bootstrap: str, announcers: int, tricklers: int, deafs: int, topics: int) -> None:
    host, _, port = bootstrap.rpartition(":")
    address = (host, int(port))
    crowd = [announcer(address) for _ in range(announcers)]
    crowd += [trickler(address) for _ in range(tricklers)]
    crowd += [deaf(address, topics) for _ in range(deafs)]
    for one in crowd:
        one.push()
    print("ready", flush=True)
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), is_over.set()), daemon=True).start()
    number = 0
    while not is_over.wait(ROUND_SECONDS / SLICES):
        for one in crowd[number % SLICES :: SLICES]:
            one.push()
        number += 1
    print(sum(one.closed for one in crowd), flush=True)


class Honest:
    """Threads that produce small and large batches and fetch them, one request after the other."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.clients = {name: RawClient(bootstrap) for name in ("small", "large", "reader")}
        words.create_topic(self.clients["small"], "small")
        words.create_topic(self.clients["large"], "large", retention_bytes="50000000", segment_bytes="10000000")
        self._batches = {"small": words.batch(1), "large": _large_batch()}

    def round(self, count: int) -> Latencies:
        """So many requests of each, and the seconds that each took. Raises what any of them met with."""
        seconds: dict[str, list[float]] = {name: [] for name in self.clients}
        errors: list[BaseException] = []
        threads = [
            threading.Thread(target=self._ask, args=(name, count, seconds[name], errors)) for name in self.clients
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        if errors:
            raise AssertionError("an honest client was harmed") from errors[0]
        return seconds

    def _ask(self, name: str, count: int, seconds: list[float], errors: list[BaseException]) -> None:
        action: Callable[[], object] = self._fetch if name == "reader" else lambda: self._produce(name)
        try:
            for _ in range(count):
                began = time.perf_counter()
                action()
                seconds.append(time.perf_counter() - began)
        except BaseException as error:
            errors.append(error)

    def _produce(self, name: str) -> None:
        words.produce(self.clients[name], name, self._batches[name])

    def _fetch(self) -> None:
        words.fetch(self.clients["reader"], 11, "small", 0, max_wait=0, partition_max_bytes=READ_BYTES)

    def close(self) -> None:
        for client in self.clients.values():
            client.socket.close()


def side_by_side(calm: Honest, besieged: Honest, rounds: int, count: int) -> tuple[Latencies, Latencies]:
    """The same requests to two brokers in turns: whatever else the machine does, it does to both."""
    of_calm: Latencies = {name: [] for name in calm.clients}
    of_besieged: Latencies = {name: [] for name in besieged.clients}
    for _ in range(rounds):
        for honest, of_all in ((calm, of_calm), (besieged, of_besieged)):
            for name, seconds in honest.round(count).items():
                of_all[name] += seconds
    return of_calm, of_besieged


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99) - 1]


def wait_until_settled(server: ClarionProcess) -> float:
    """Until the deaf have filled their sockets: that far their requests are like any others. Returns the seconds."""
    began = time.monotonic()
    calm_seconds = 0
    while time.monotonic() - began < SETTLED_SECONDS_MAX:
        before = _cpu_seconds(server.pid)
        time.sleep(1)
        calm_seconds = calm_seconds + 1 if _cpu_seconds(server.pid) - before < 0.2 else 0  # what the tricklers cost
        if calm_seconds == 3:
            return time.monotonic() - began
    raise AssertionError(f"the broker is still busy with the siege after {SETTLED_SECONDS_MAX} s")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _large_batch() -> bytes:
    from clarion.wire.records import encode_batch

    return bytes(encode_batch([(None, os.urandom(500_000), (), int(time.time() * 1000))]))


class Memory:
    """The most that a process was seen to take."""

    def __init__(self, server: ClarionProcess) -> None:
        self._server = server

    @property
    def peak_mb(self) -> float:
        status = Path(f"/proc/{self._server.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    with many_descriptors(6000):
        besiege(sys.argv[1], *map(int, sys.argv[2:]))
