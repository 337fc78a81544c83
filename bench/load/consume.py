"""Readers: some connections reading a filled topic round and round, or many following one writer (fan out)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import frames
from bench.load.dialects import dialect_named
from bench.load.meter import Meter
from bench.load.pump import DRAIN_WITHIN_S, Line, Reader, Writer, pump


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeJob:
    """`messages` is what the topic holds; Kafka's readers begin again at its end, JetStream's stop there."""

    dialect: str
    port: int
    pids: Sequence[int]
    topic: str
    messages: int
    value_bytes: int = 1024
    batch_bytes: int = 65536
    connections: int = 2
    seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutJob:
    """One writer of `messages`, and readers that each get them all."""

    dialect: str
    port: int
    pids: Sequence[int]
    topic: str
    messages: int
    readers: int
    value_bytes: int = 1024
    batch_bytes: int = 65536
    acks: int = 1
    window: int = 5


def run(job: ConsumeJob) -> dict[str, float]:
    dialect = dialect_named(job.dialect)
    sample = frames.batch_of(job.value_bytes, job.batch_bytes, 0)
    wrap_at = job.messages // sample.messages * sample.messages
    deadline = time.perf_counter() + job.seconds
    messages_max = job.messages if job.dialect == "nats" else 1 << 62
    readers = []
    for line in range(job.connections):
        readings = dialect.readings(job.topic, sample, line, new_only=False, wrap_at=wrap_at)
        connection = dialect.connect(("127.0.0.1", job.port), line)
        readers.append(Reader(connection, readings, messages_max=messages_max, deadline=deadline))
    with Meter(*job.pids) as meter:
        for reader in readers:
            reader.begin()
        pump(readers, deadline + DRAIN_WITHIN_S)
    return meter.figures() | _delivered(readers, job.value_bytes, meter.seconds)


def run_fanout(job: FanoutJob) -> dict[str, float]:
    dialect = dialect_named(job.dialect)
    address = ("127.0.0.1", job.port)
    sample = frames.batch_of(job.value_bytes, job.batch_bytes, 0)
    connection = dialect.connect(address, 0)
    shots = dialect.shots(job.topic, range(1), job.value_bytes, job.batch_bytes, job.acks, 0)
    replies = dialect.replies(connection, shots)
    count = max(1, job.messages // shots.messages_per_frame)
    give_up_at = time.perf_counter() + 2 * DRAIN_WITHIN_S
    writer = Writer(connection, shots, replies, window=job.window, frames_max=count, deadline=give_up_at)
    messages = (count + 1) * shots.messages_per_frame  # with the frame that `replies` sent to learn from
    readers = []
    for line in range(1, job.readers + 1):
        readings = dialect.readings(job.topic, sample, line, new_only=False, wrap_at=0)
        reader = Reader(dialect.connect(address, line), readings, messages_max=messages, deadline=give_up_at)
        readers.append(reader)
    lines: list[Line] = [writer, *readers]
    with Meter(*job.pids) as meter:
        for reader in readers:
            reader.begin()
        writer.fill()
        pump(lines, give_up_at)
    return meter.figures() | _delivered(readers, job.value_bytes, meter.seconds)


def _delivered(readers: list[Reader], value_bytes: int, seconds: float) -> dict[str, float]:
    messages = sum(reader.readings.messages for reader in readers)
    return {
        "messages_per_s": messages / seconds,
        "mb_per_s": messages * value_bytes / seconds / 1e6,
        "gb": messages * value_bytes / 1e9,
    }
