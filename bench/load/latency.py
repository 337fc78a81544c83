"""End-to-end latency: one producer at a fixed rate, one reader that long-polls, on one clock.

The producer never waits for acknowledgements (a slow server cannot slow the load down and so hide its own delays). A
message's time runs from the moment its send begins to the moment the reader has the whole response that holds it.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import frames
from bench.figures import percentile
from bench.load.dialects import Readings, dialect_named
from bench.load.meter import Meter
from bench.load.pump import RECEIVE_BYTES

_WARM_SHARE = 0.1  # of the messages, left out of the figures
_BACKLOG_MAX_S = 0.05  # of messages still under way at the last send; more is a queue, and its length, not a latency
_LATE_BY_MAX_S = 10.0  # after the last send; what has not arrived by then is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyJob:
    dialect: str
    port: int
    pids: Sequence[int]
    topic: str
    rate: int = 1000
    seconds: float = 4.0
    value_bytes: int = 1024
    acks: int = 1


def run(job: LatencyJob) -> dict[str, float]:
    dialect = dialect_named(job.dialect)
    address = ("127.0.0.1", job.port)
    sample = frames.batch_of(job.value_bytes, 1, 0)
    writer, reader = dialect.connect(address, 0), dialect.connect(address, 1)
    shots = dialect.shots(job.topic, range(1), job.value_bytes, 1, job.acks, 0)
    dialect.replies(writer, shots)
    readings = dialect.readings(job.topic, sample, 1, new_only=False, wrap_at=0)
    reader.sendall(readings.first_request())
    with Meter(*job.pids) as meter:
        sent, received, backlog = _exchange(job, writer, reader, shots.frames[0], readings)
    # The reader's first message is the one that `replies` sent before the clock ran.
    took = [(arrived - left) * 1000 for left, arrived in zip(sent, received[1:], strict=True)]
    took = sorted(took[int(len(took) * _WARM_SHARE) :])
    return meter.figures() | {
        "p50_ms": percentile(took, 50),
        "p99_ms": percentile(took, 99),
        "p999_ms": percentile(took, 99.9),
        "max_ms": took[-1],
        "messages": len(took),
        "saturated": float(is_saturated(backlog, job.rate)),
    }


def is_saturated(backlog: int, rate: int) -> bool:
    """Whether the server fell behind the rate: what is then measured is how long the run was."""
    return backlog > rate * _BACKLOG_MAX_S


def _exchange(
    job: LatencyJob, writer: socket.socket, reader: socket.socket, frame: bytes, readings: Readings
) -> tuple[list[float], list[float], int]:
    count = int(job.rate * job.seconds)
    sent: list[float] = []
    received: list[float] = []
    view, backlog = memoryview(bytearray(RECEIVE_BYTES)), 0
    began = time.perf_counter()
    give_up_at = began + job.seconds + _LATE_BY_MAX_S
    while len(received) <= count:
        now = time.perf_counter()
        if now > give_up_at:
            raise TimeoutError(f"{count + 1 - len(received)} messages did not arrive")
        due = began + len(sent) / job.rate if len(sent) < count else give_up_at
        ready, _, _ = select.select([reader, writer], [], [], max(0.0, due - now))
        if reader in ready:
            request = readings.feed(view[: reader.recv_into(view)])
            arrived = time.perf_counter()
            received.extend([arrived] * (readings.messages - len(received)))
            if request is not None:
                reader.sendall(request)
        if writer in ready:
            writer.recv_into(view)  # acknowledgements are not waited for, only taken away
        if len(sent) < count and time.perf_counter() >= due:
            sent.append(time.perf_counter())
            writer.sendall(frame)
            backlog = len(sent) + 1 - len(received)
    return sent, received, backlog
