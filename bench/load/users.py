"""The same questions through confluent-kafka, as a Python user asks them: here the client is most of what counts."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench import frames
from bench.load.meter import Meter

_WITHIN_S = 60.0
_POLL_EVERY = 500  # messages; polling for each one would measure the poll


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersProduceJob:
    port: int
    pid: int
    topic: str
    messages: int
    value_bytes: int = 1024
    acks: str = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersConsumeJob:
    port: int
    pid: int
    topic: str
    messages: int
    value_bytes: int = 1024


def run_produce(job: UsersProduceJob) -> dict[str, float]:
    producer = Producer({
        "bootstrap.servers": f"127.0.0.1:{job.port}", "acks": job.acks, "batch.size": 65536, "linger.ms": 5,
        "queue.buffering.max.messages": 200_000,
    })  # fmt: skip
    producer.list_topics(job.topic, timeout=_WITHIN_S)  # connected before the clock runs
    value = frames.value(job.value_bytes)
    with Meter(job.pid) as meter:
        for number in range(job.messages):
            _produce(producer, job.topic, value)
            if number % _POLL_EVERY == 0:
                producer.poll(0)
        left = producer.flush(_WITHIN_S)
    if left:
        raise RuntimeError(f"{left} messages were not acknowledged within {_WITHIN_S:.0f} s")
    return meter.figures() | _rates(job.messages, job.value_bytes, meter.seconds)


def run_consume(job: UsersConsumeJob) -> dict[str, float]:
    consumer = Consumer({
        "bootstrap.servers": f"127.0.0.1:{job.port}", "group.id": "bench", "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # By default it pauses for a second when its queue is full, which a fast broker is punished for.
        "fetch.queue.backoff.ms": 2,
    })  # fmt: skip
    consumer.assign([TopicPartition(job.topic, 0, OFFSET_BEGINNING)])
    got = len(consumer.consume(1, timeout=_WITHIN_S))  # connected before the clock runs
    first = got
    deadline = time.perf_counter() + _WITHIN_S
    with Meter(job.pid) as meter:
        while got < job.messages and time.perf_counter() < deadline:
            got += len(consumer.consume(min(10_000, job.messages - got), timeout=1.0))
    consumer.close()
    if got < job.messages:
        raise RuntimeError(f"{job.messages - got} messages did not arrive within {_WITHIN_S:.0f} s")
    return meter.figures() | _rates(got - first, job.value_bytes, meter.seconds)


def _produce(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            return producer.produce(topic, value, partition=0)
        except BufferError:
            producer.poll(0.01)  # the client's queue is full: let it drain


def _rates(messages: int, value_bytes: int, seconds: float) -> dict[str, float]:
    return {
        "messages_per_s": messages / seconds,
        "mb_per_s": messages * value_bytes / seconds / 1e6,
        "gb": messages * value_bytes / 1e9,
    }
