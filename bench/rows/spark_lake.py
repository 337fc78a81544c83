"""From topics into tables and back: `archive` to Delta and `replay`, each from its start to its end."""

from __future__ import annotations

import shutil
import time

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.rows.spark_peers import (
    PARTITIONS,
    PythonMemory,
    SparkPeer,
    bootstrap,
    broker,
    check_arrived,
    filled,
    spark_peer,
)
from bench.sizes import Sizes

_VALUE_BYTES = 100


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        Experiment(
            id="spark-archive-delta", title="Spark: archive to Delta, 100 B", acks="–", durability="on Clarion",
            metrics=("messages_per_s", "mb_per_s", "files", "file_mb"), peers=("clarion",), measure=_archive,
            rounds_max=2,
        ),
        Experiment(
            id="spark-replay", title=f"Spark: replay of {sizes.spark_replay_messages:,} messages from Delta",
            acks="all", durability="on Clarion", metrics=("messages_per_s", "mb_per_s", "python_mb"),
            peers=("clarion",), measure=_replay, rounds_max=1,
        ),
    ]  # fmt: skip


def _archive(arena: Arena, peer: str) -> Sample:
    topic, messages = filled(arena, _VALUE_BYTES, arena.sizes.spark_messages // 2)
    path = arena.disk / f"archive-{time.monotonic_ns()}"
    try:
        done = spark_peer(arena, peer).ask("archive", topic=topic, path=str(path))
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return _rates(done, messages) | {"files": done["files"], "file_mb": done["file_mb"]}


def _replay(arena: Arena, peer: str) -> Sample:
    """In a Spark of its own, because the memory of its processes is part of the answer."""
    source, messages = filled(arena, _VALUE_BYTES, arena.sizes.spark_replay_messages)
    path = arena.disk / "replay"
    try:
        spark_peer(arena, peer).ask("archive", topic=source, path=str(path))
        with (
            arena.topic(broker(arena), PARTITIONS) as target,
            SparkPeer(peer, bootstrap(arena), arena.tmpfs / "replay") as spark,
            PythonMemory(spark.pid) as memory,
        ):
            done = spark.ask("replay", path=str(path), topic=target)
            check_arrived(arena, target, messages)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return _rates(done, messages) | {"python_mb": memory.peak_mb}


def _rates(done: Sample, messages: int) -> Sample:
    return {
        "messages": messages,
        "seconds": done["seconds"],
        "messages_per_s": messages / done["seconds"],
        "mb_per_s": messages * _VALUE_BYTES / done["seconds"] / 1e6,
    }
