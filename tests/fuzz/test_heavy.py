"""Bombs and giant frames one after the other against a real broker, and a neighbour on a clock.

A campaign: it measures waiting in real time, which only means something on a machine that has nothing else to do.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.wire.compression import Codec
from tests.broker.bombs import of_headers, of_zeros, worst
from tests.broker.largest import largest_requests
from tests.broker.talk import produce_frame
from tests.raw_client import RawClient
from tests.servers import ClarionProcess
from tests.traps import words

NEIGHBOUR_SECONDS_MAX = 0.2
MEMORY_MB_MAX = 400
STOP_SECONDS_MAX = 5
PATIENCE_S = 120


class Neighbour:
    """Asks for the versions of the APIs, again and again."""

    def __init__(self, bootstrap: str) -> None:
        self._raw = RawClient(bootstrap, patience_s=PATIENCE_S)
        self._stopping = threading.Event()
        self._began = 0.0
        self._worst = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take_worst(self) -> float:
        """The longest wait since the last call, the present one included."""
        worst, self._worst = max(self._worst, time.monotonic() - self._began), 0.0
        return worst

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        try:
            with self._raw as raw:
                while not self._stopping.wait(0.002):
                    self._began = time.monotonic()
                    raw.ask("api_versions", 0)
                    self._worst = max(self._worst, time.monotonic() - self._began)
                    self._began = time.monotonic()
        except (OSError, AssertionError):
            self._stopping.set()  # the broker stops


def heavy_frames() -> Iterator[tuple[str, bytes]]:
    for codec in Codec:
        for name, bomb in worst(codec):
            for topic in ("plain", "compacted"):
                yield f"{codec.name} of {name}, {topic}", produce_frame({(topic, 0): bomb})
    yield "headers × 3", produce_frame({("compacted", index): of_headers(33_000_000) for index in range(3)})
    yield "zeros × 100", produce_frame({("compacted", index): of_zeros(63 << 20) for index in range(100)})
    for largest in largest_requests():
        yield largest.name, largest.frame


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClarionProcess]:
    server = ClarionProcess(tmp_path / "data", args=["--metrics", "127.0.0.1:0"]).start()
    with RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "plain")
        words.create_topic(raw, "compacted", 100, cleanup_policy="compact")
        words.create_topic(raw, "t", 200)
        words.find_coordinator(raw, "largest")
    yield server
    server.close()


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_no_bomb_and_no_giant_frame_makes_a_neighbour_wait(server: ClarionProcess):
    neighbour = Neighbour(server.bootstrap)
    waits: dict[str, float] = {}
    memory = 0.0
    for name, frame in heavy_frames():
        neighbour.take_worst()
        with RawClient(server.bootstrap, patience_s=PATIENCE_S) as raw:
            raw.socket.sendall(frame)
            raw.receive_frame()
        waits[name] = neighbour.take_worst()
        memory = max(memory, memory_mb(server.pid))
    for timestamp in (1, -3):
        with RawClient(server.bootstrap, patience_s=PATIENCE_S) as raw:
            words.list_offsets(raw, 7, "plain", timestamp)
        waits[f"search for {timestamp}"] = neighbour.take_worst()
    neighbour.stop()
    longest = sorted(waits.items(), key=lambda one: -one[1])[:5]
    print("\n".join(f"{seconds * 1000:6.0f} ms  {name}" for name, seconds in longest), f"\n{memory:.0f} MB")
    assert longest[0][1] < NEIGHBOUR_SECONDS_MAX, longest[0]
    assert memory < MEMORY_MB_MAX


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_in_the_middle_of_bombs_and_giant_frames_the_broker_stops_when_asked(server: ClarionProcess):
    host, _, port = server.bootstrap.rpartition(":")
    sockets = []
    for _, frame in heavy_frames():
        one = socket.create_connection((host, int(port)), PATIENCE_S)
        one.sendall(frame * 2)
        sockets.append(one)
    began = time.monotonic()
    assert server._process is not None
    server._process.send_signal(signal.SIGTERM)
    assert server._process.wait(PATIENCE_S) == 0
    took = time.monotonic() - began
    for one in sockets:
        one.close()
    print(f"stopped after {took:.1f} s")
    assert took < STOP_SECONDS_MAX, f"{took:.1f} s"
