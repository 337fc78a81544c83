"""A leader is killed under a producer of confluent-kafka: the longest time without an acknowledgement from then on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Producer

from bench import frames

_BEFORE_S = 1.0  # of load before the kill
_AFTER_S = 1.0  # of load after it at least: a dying process may still answer for some milliseconds
_WITHIN_S = 60.0  # Kafka's session time-out is 9 s
_EVERY_S = 0.01  # a message to each partition that often
_CLIENT_TIMEOUT_MS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverJob:
    """`kill_pid` is the process that leads all of `partitions`."""

    ports: Sequence[int]
    topic: str
    partitions: Sequence[int]
    kill_pid: int
    value_bytes: int = 1024


@dataclass(slots=True)
class Acknowledged:
    """When each partition was last heard of, and the longest pause of each since the kill."""

    last: dict[int, float]
    pauses: dict[int, float] = field(default_factory=dict)
    failure: str = ""

    def note(self, partition: int, now: float) -> None:
        pause = now - self.last[partition]
        self.pauses[partition] = max(pause, self.pauses.get(partition, 0.0))
        self.last[partition] = now

    def begin(self, now: float) -> None:
        """From now on pauses count, each from the acknowledgement before it or from now, whichever is later."""
        self.last = dict.fromkeys(self.last, now)
        self.pauses.clear()

    def all_since(self, moment: float) -> bool:
        return min(self.last.values()) > moment


def run(job: FailoverJob) -> dict[str, float]:
    producer = Producer({
        "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in job.ports), "acks": "all", "linger.ms": 0,
        "enable.idempotence": True, "socket.timeout.ms": _CLIENT_TIMEOUT_MS, "request.timeout.ms": _CLIENT_TIMEOUT_MS,
        "message.timeout.ms": int(_WITHIN_S * 1000), "log_level": 0,
    })  # fmt: skip
    heard = Acknowledged(dict.fromkeys(job.partitions, 0.0))
    _load(producer, job, heard, 0.0, _BEFORE_S)
    killed_at = time.perf_counter()
    heard.begin(killed_at)
    os.kill(job.kill_pid, signal.SIGKILL)
    _load(producer, job, heard, killed_at + _AFTER_S, _AFTER_S)
    left = producer.flush(_WITHIN_S)
    if left or heard.failure:
        raise RuntimeError(heard.failure or f"{left} messages were not acknowledged within {_WITHIN_S:.0f} s")
    return {"gap_s": max(heard.pauses.values()), "killed_at": killed_at}


def _load(producer: Producer, job: FailoverJob, heard: Acknowledged, heard_after: float, seconds: float) -> None:
    """A message to each partition every so often, for so long and until all were acknowledged after that moment."""

    def note(error: object, message: object) -> None:
        if error is not None:
            heard.failure = f"a message was not acknowledged: {error}"
        else:
            heard.note(message.partition(), time.perf_counter())  # type: ignore[attr-defined]

    value = frames.value(job.value_bytes)
    began = due = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds or not heard.all_since(heard_after):
        if now > began + _WITHIN_S or heard.failure:
            raise RuntimeError(heard.failure or f"no acknowledgement within {_WITHIN_S:.0f} s")
        if now >= due:
            due = now + _EVERY_S
            for partition in job.partitions:
                producer.produce(job.topic, value, partition=partition, on_delivery=note)
        producer.poll(max(0.0, due - time.perf_counter()))
