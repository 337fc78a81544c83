"""The two Sparks that the rows compare, seen from the harness: each in its own process, both on the same broker.

They live from their first row to the end of the run. What a job costs is the CPU time of its whole process tree (JVM,
Python workers), without the broker's.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition

from bench.arena import Arena
from bench.load import LoadFailed
from bench.load.admin import KafkaAdmin
from bench.peers.process import (
    ROOT,
    PeerUnavailable,
    ServerProcess,
    cpu_seconds_of,
    die_with_the_harness,
    process_tree,
)
from bench.peers.spark_kafka import spark_jars

PARTITIONS = 2  # of topics for throughput: a task of Spark's own connector reads one of them
_START_WITHIN_S = 120.0
_JOB_WITHIN_S = 240.0


class SparkPeer:
    def __init__(self, connector: str, bootstrap: str, folder: Path) -> None:
        self._connector = connector
        self._folder = folder
        self._arguments = (connector, bootstrap, str(folder / f"{connector}-spark"))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.rows.spark_driver", *self._arguments], cwd=ROOT, text=True, bufsize=1,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, preexec_fn=die_with_the_harness,
            )  # fmt: skip
        try:
            self.ask("hello", within_s=_START_WITHIN_S)
        except LoadFailed as failure:
            self.close()
            raise PeerUnavailable(f"Spark did not start: {failure}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def ask(self, job: str, *, within_s: float = _JOB_WITHIN_S, **settings: object) -> dict[str, float]:
        """One job, and what it cost in CPU."""
        if self._process is None:
            raise LoadFailed("this Spark was given up before")
        before = cpu_seconds_of(self.pid)
        answer: dict[str, Any] = json.loads(self._exchange(json.dumps({"job": job, "settings": settings}), within_s))
        if "error" in answer:
            raise LoadFailed(f"{job}: {answer['error']}")
        return answer | {"cpu_s": cpu_seconds_of(self.pid) - before}

    def _exchange(self, question: str, within_s: float) -> str:
        """A line for a line; a Spark that does not answer is ended, because the next answer would be to this."""
        assert self._process is not None
        answers = self._process.stdout
        assert self._process.stdin is not None
        assert answers is not None
        try:
            self._process.stdin.write(question + "\n")
            ready, _, _ = select.select([answers], [], [], within_s)
            if ready and (line := answers.readline()):
                return line
            why = "Spark has ended" if ready else f"no answer within {within_s:.0f} s"
        except OSError:
            why = "Spark has ended"
        self.close()
        raise LoadFailed(f"{why}: {question[:100]}: {self._last_words()}")

    def close(self) -> None:
        """The driver ends with its input, and its JVM with it; what does not is killed by its id."""
        process, self._process = self._process, None
        if process is None:
            return
        tree = process_tree(process.pid)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _end(tree)

    @property
    def _log(self) -> Path:
        return self._folder / f"{self._connector}-spark.log"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def spark_peer(arena: Arena, peer: str) -> SparkPeer:
    """This connector's Spark, started and warmed at its first use."""
    if peer == "kafka":
        spark_jars()  # says why it cannot be had
    return arena.kept(f"spark-{peer}", lambda: _warmed(arena, peer))


def broker(arena: Arena) -> ServerProcess:
    """Whom both connectors talk to."""
    return arena.server("clarion", "page-cache")


def bootstrap(arena: Arena) -> str:
    return f"127.0.0.1:{broker(arena).port}"


def filled(arena: Arena, value_bytes: int, messages: int) -> tuple[str, int]:
    """A topic with about so many messages, made once: its name and how many there are."""
    server = broker(arena)
    return arena.made(f"spark-{value_bytes}-{messages}", lambda name: _fill(arena, server, name, value_bytes, messages))


def check_arrived(arena: Arena, topic: str, messages: int) -> None:
    """Nothing is taken on trust."""
    admin = KafkaAdmin(broker(arena).address)
    there = admin.messages(topic, PARTITIONS)
    admin.close()
    if there != messages:
        raise LoadFailed(f"{messages} messages were written and {there} are in the log")


def numbered(arena: Arena, messages: int) -> str:
    """A topic with so many messages, each with a key and a number of its own, made once."""

    def make(topic: str) -> int:
        admin = KafkaAdmin(broker(arena).address)
        admin.create(topic, PARTITIONS)
        admin.close()
        spark_peer(arena, "clarion").ask("write", topic=topic, rows=messages, value_bytes=100)
        return messages

    topic, _ = arena.made(f"spark-numbered-{messages}", make)
    return topic


def check_order(arena: Arena, source: str, target: str) -> None:
    """Each partition of a copy by key is, message by message, the one it was copied from."""
    for partition in range(PARTITIONS):
        first, second = (_digest(bootstrap(arena), each, partition) for each in (source, target))
        if first != second:
            raise LoadFailed(f"partition {partition} of the copy has not the order of the original")


def _digest(bootstrap: str, topic: str, partition: int) -> bytes:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "order", "enable.auto.commit": False})
    _, end = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=30.0)
    reader.assign([TopicPartition(topic, partition, 0)])
    digest, at = sha256(), 0
    while at < end:
        messages = reader.consume(
            min(10_000, end - at), timeout=30.0
        )  # it waits until it has as many as it is asked for
        if not messages or any(each.error() for each in messages):
            raise LoadFailed(f"{topic}-{partition} cannot be read to its end")
        for message in messages:
            digest.update(message.value() or b"")
        at = messages[-1].offset() + 1
    reader.close()
    return digest.digest()


@contextmanager
def _warmed(arena: Arena, peer: str) -> Iterator[SparkPeer]:
    topic, messages = filled(arena, 100, arena.sizes.spark_messages)
    with SparkPeer(peer, bootstrap(arena), arena.tmpfs) as spark:
        seen = spark.ask("count", topic=topic)["rows"]
        if seen != messages:
            raise LoadFailed(f"{peer} read {seen:.0f} of {messages} messages")
        yield spark


def _fill(arena: Arena, server: ServerProcess, topic: str, value_bytes: int, messages: int) -> int:
    admin = KafkaAdmin(server.address)
    admin.create(topic, PARTITIONS)
    arena.load(server, "produce", topic=topic, partitions=PARTITIONS, value_bytes=value_bytes, connections=PARTITIONS,
               seconds=60.0, bytes_max=messages * value_bytes)  # fmt: skip
    there = admin.messages(topic, PARTITIONS)
    admin.close()
    return there


class PythonMemory:
    """The most that the Python processes below a driver held at one time, sampled; shared pages count once."""

    def __init__(self, driver: int) -> None:
        self._driver = driver
        self._is_over = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.2):
            pythons = [each for each in process_tree(self._driver) if "java" not in _program(each)]
            self.peak_mb = max(self.peak_mb, sum(map(_pss_mb, pythons)))


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:")), 0.0)


def _end(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
