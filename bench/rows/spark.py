"""Spark's work on topics: Clarion's connector beside Spark's own Kafka connector, both on the same Clarion broker.

The column Kafka is Spark's Kafka connector here, in a plain session, as its documentation starts one.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.arena import Arena
from bench.experiment import KAFKA_WIRE, Experiment, Sample
from bench.rows import spark_lake, spark_streams
from bench.rows.spark_peers import PARTITIONS, broker, check_arrived, check_order, filled, numbered, spark_peer
from bench.sizes import Sizes

WHERE = "on Clarion"
SHOWN = ("messages_per_s", "mb_per_s", "cpu_s_per_m")
VALUE_SIZES = {"100b": ("100 B", 100, 1), "1k": ("1 KB", 1024, 3)}  # the third: of which part of the messages
_STREAM_BATCHES = 6


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        *(_read(key) for key in VALUE_SIZES),
        _row("spark-write", "Spark: batch write, 100 B", _write, acks="all"),
        _row("spark-copy", "Spark: batch, topic to topic, order kept, 100 B", _copy, acks="all"),
        _row("spark-copy-limit", "Spark: the same behind a limit", _copy_behind_a_limit, acks="all"),
        _row("spark-stream", "Spark: streaming read to noop, 100 B", _stream),
        *spark_streams.experiments(sizes),
        *spark_lake.experiments(sizes),
    ]


def _row(name: str, title: str, measure: Callable[[Arena, str], Sample], acks: str = "–") -> Experiment:
    return Experiment(
        id=name, title=title, acks=acks, durability=WHERE, metrics=SHOWN, peers=KAFKA_WIRE, measure=measure
    )


def _read(key: str) -> Experiment:
    label, value_bytes, share = VALUE_SIZES[key]

    def measure(arena: Arena, peer: str) -> Sample:
        spark = spark_peer(arena, peer)
        topic, messages = filled(arena, value_bytes, arena.sizes.spark_messages // share)
        return rates(spark.ask("read", topic=topic), messages, value_bytes)

    return _row(f"spark-read-{key}", f"Spark: batch read to noop, {label}", measure)


def _write(arena: Arena, peer: str) -> Sample:
    spark, rows = spark_peer(arena, peer), arena.sizes.spark_messages // 2
    with arena.topic(broker(arena), PARTITIONS) as topic:
        done = spark.ask("write", topic=topic, rows=rows, value_bytes=100)
        check_arrived(arena, topic, rows)
    return rates(done, rows, 100)


def _copy(arena: Arena, peer: str) -> Sample:
    rows = arena.sizes.spark_messages // 2
    spark, source = spark_peer(arena, peer), numbered(arena, rows)
    with arena.topic(broker(arena), PARTITIONS) as target:
        done = spark.ask("copy", source=source, target=target)
        check_arrived(arena, target, rows)
        check_order(arena, source, target)
    return rates(done, rows, 100)


def _copy_behind_a_limit(arena: Arena, peer: str) -> Sample:
    """A limit brings all rows into one task, which is Spark's doing; what comes before and after it is not."""
    rows = arena.sizes.spark_messages // 4
    spark, source = spark_peer(arena, peer), numbered(arena, arena.sizes.spark_messages // 2)
    with arena.topic(broker(arena), PARTITIONS) as target:
        done = spark.ask("copy", source=source, target=target, limit=rows)
        check_arrived(arena, target, rows)
    return rates(done, rows, 100)


def _stream(arena: Arena, peer: str) -> Sample:
    spark = spark_peer(arena, peer)
    topic, messages = filled(arena, 100, arena.sizes.spark_messages)
    done = spark.ask("stream", topic=topic, rows=messages, batches=_STREAM_BATCHES)
    return rates(done, int(done["rows"]), 100) | {"cpu_s_per_m": done["cpu_s"] / messages * 1e6}


def rates(done: Sample, messages: int, value_bytes: int) -> Sample:
    return {
        "messages": messages,
        "seconds": done["seconds"],
        "messages_per_s": messages / done["seconds"],
        "mb_per_s": messages * value_bytes / done["seconds"] / 1e6,
        "cpu_s_per_m": done["cpu_s"] / messages * 1e6,
    }
