"""Writers: full batches in a window (throughput), or one small message at a time on many connections (tiny)."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.load.admin import admin_for
from bench.load.cluster import ClusterAdmin
from bench.load.dialects import Dialect, Replies, Shots, dialect_named
from bench.load.meter import Meter
from bench.load.pump import DRAIN_WITHIN_S, Writer, pump


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceJob:
    """Ends at `seconds` or `bytes_max`, whichever comes first: a fast server must not fill the tmpfs.

    With `is_cluster`, `port` is that of any broker, and every connection goes to the leader of its partitions.
    """

    dialect: str
    port: int
    pids: Sequence[int]
    topic: str
    partitions: int = 1
    value_bytes: int = 1024
    batch_bytes: int = 65536
    acks: int = 1
    connections: int = 1
    window: int = 5
    seconds: float = 2.0
    bytes_max: int = 1 << 62
    is_cluster: bool = False


class Prepared(NamedTuple):
    """One connection that has had its first frame answered."""

    connection: socket.socket
    shots: Shots
    replies: Replies


def run(job: ProduceJob) -> dict[str, float]:
    dialect = dialect_named(job.dialect)
    address = ("127.0.0.1", job.port)
    admin = ClusterAdmin(address) if job.is_cluster else admin_for(job.dialect, address)
    before = admin.messages(job.topic, job.partitions)
    leaders = admin.leaders(job.topic) if isinstance(admin, ClusterAdmin) else [address] * job.partitions
    prepared = [_prepare(dialect, leaders, job, line) for line in range(job.connections)]
    deadline = time.perf_counter() + job.seconds
    writers = [_writer(job, one, deadline) for one in prepared]
    with Meter(*job.pids) as meter:
        for writer in writers:
            writer.fill()
        pump(writers, deadline + DRAIN_WITHIN_S)
    shots = prepared[0].shots
    frames = sum(writer.acked for writer in writers)
    arrived = admin.messages(job.topic, job.partitions) - before
    expected = (frames + job.connections) * shots.messages_per_frame
    if arrived != expected:
        raise RuntimeError(f"{expected} messages were acknowledged and {arrived} are in the log")
    return meter.figures() | _rates(frames, shots, meter.seconds)


def _prepare(dialect: Dialect, leaders: Sequence[tuple[str, int]], job: ProduceJob, line: int) -> Prepared:
    partitions = range(line % job.partitions, job.partitions, job.connections)
    if len({leaders[partition] for partition in partitions}) > 1:
        raise RuntimeError("the partitions of one connection have several leaders")
    connection = dialect.connect(leaders[partitions[0]], line)
    shots = dialect.shots(job.topic, partitions, job.value_bytes, job.batch_bytes, job.acks, line)
    return Prepared(connection, shots, dialect.replies(connection, shots))


def _writer(job: ProduceJob, one: Prepared, deadline: float) -> Writer:
    frames_max = max(1, job.bytes_max // one.shots.value_bytes_per_frame // job.connections)
    return Writer(one.connection, one.shots, one.replies, window=job.window, frames_max=frames_max, deadline=deadline)


def _rates(frames: int, shots: Shots, seconds: float) -> dict[str, float]:
    return {
        "requests": frames,
        "requests_per_s": frames / seconds,
        "messages_per_s": frames * shots.messages_per_frame / seconds,
        "mb_per_s": frames * shots.value_bytes_per_frame / seconds / 1e6,
        "gb": frames * shots.value_bytes_per_frame / 1e9,
    }
