"""One connection, one small request at a time, on a blocking socket: what a synchronous producer feels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load.admin import admin_for
from bench.load.dialects import dialect_named
from bench.load.meter import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class PingJob:
    dialect: str
    port: int
    pids: Sequence[int]
    topic: str
    value_bytes: int = 100
    acks: int = 1
    seconds: float = 2.0


def run(job: PingJob) -> dict[str, float]:
    dialect = dialect_named(job.dialect)
    address = ("127.0.0.1", job.port)
    admin = admin_for(job.dialect, address)
    before = admin.messages(job.topic)
    connection = dialect.connect(address, 0)
    shots = dialect.shots(job.topic, range(1), job.value_bytes, 1, job.acks, 0)
    replies = dialect.replies(connection, shots)
    frame, view, done = shots.frames[0], memoryview(bytearray(65536)), 0
    with Meter(*job.pids) as meter:
        deadline = time.perf_counter() + job.seconds
        while time.perf_counter() < deadline:
            connection.sendall(frame)
            while not replies.feed(view[: connection.recv_into(view)]):
                pass
            done += 1
    arrived = admin.messages(job.topic) - before
    if arrived != done + 1:
        raise RuntimeError(f"{done + 1} messages were acknowledged and {arrived} are in the log")
    return meter.figures() | {"requests": done, "requests_per_s": done / meter.seconds}
