"""Streams that wait: the way of a lone message from topic to topic, and what partitions cost a micro-batch."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.arena import Arena
from bench.experiment import KAFKA_WIRE, Experiment, Sample
from bench.figures import percentile
from bench.load import LoadFailed
from bench.rows.spark_peers import bootstrap, broker, spark_peer
from bench.sizes import Sizes

INTERVAL_S = 0.45
COUNTS = (1, 10, 200)
_WARM_MESSAGES = 4  # left out: the first batches of a query are slow
_ARRIVES_WITHIN_S = 60.0
_PER_BATCH = 20
_LEAST_MS = 0.001  # what an empty partition costs may be lost in the noise, and a goal wants a number above nought


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        _latency("spark-latency", "Spark: one message every 450 ms, topic to topic", is_tuned=False, rounds_max=2),
        _latency("spark-latency-tuned", "the same, both with our file system for checkpoints", is_tuned=True,
                 rounds_max=1),
        Experiment(
            id="spark-partitions", title="Spark: a micro-batch by partitions", acks="–", durability="on Clarion",
            metrics=("batch_1_ms", "batch_10_ms", "batch_200_ms", "batch_200_full_ms", "empty_partition_ms"),
            peers=KAFKA_WIRE, measure=_partitions, rounds_max=1,
        ),
        Experiment(
            id="spark-idle-source", title="Spark: a micro-batch beside a second, idle source", acks="–",
            durability="on Clarion", metrics=("batch_1_ms", "batch_idle_ms", "idle_source_ms"),
            peers=KAFKA_WIRE, measure=_idle_source, rounds_max=1,
        ),
    ]  # fmt: skip


def _latency(name: str, title: str, *, is_tuned: bool, rounds_max: int) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        spark, server = spark_peer(arena, peer), broker(arena)
        with arena.topic(server) as source, arena.topic(server) as target:
            spark.ask("start_copying", source=source, target=target, is_tuned=is_tuned)
            try:
                took = _send_and_wait(bootstrap(arena), source, target, arena.sizes.spark_lone_messages)
            finally:
                spark.ask("stop_copying")
        took = sorted(took[_WARM_MESSAGES:])
        return {"p50_ms": percentile(took, 50), "p90_ms": percentile(took, 90), "max_ms": took[-1]}

    return Experiment(
        id=name, title=title, acks="all", durability="on Clarion", metrics=("p50_ms", "p90_ms"), peers=KAFKA_WIRE,
        measure=measure, rounds_max=rounds_max,
    )  # fmt: skip


def _send_and_wait(bootstrap: str, source: str, target: str, messages: int) -> list[float]:
    """Milliseconds from the sending of each message to its arrival in the other topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency", "enable.auto.commit": False})
    reader.assign([TopicPartition(target, 0, 0)])
    took = []
    try:
        for number in range(messages):
            began = time.perf_counter()
            producer.produce(source, b"%d" % number)
            producer.poll(0)
            _wait_for(reader, b"%d" % number, began)
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(max(0.0, began + INTERVAL_S - time.perf_counter()))
    finally:
        producer.flush(5)
        reader.close()
    return took


def _wait_for(reader: Consumer, value: bytes, began: float) -> None:
    while time.perf_counter() - began < _ARRIVES_WITHIN_S:
        message = reader.poll(0.5)
        if message is not None and not message.error() and message.value() == value:
            return
    raise LoadFailed(f"message {value.decode()} did not arrive within {_ARRIVES_WITHIN_S:.0f} s")


def _partitions(arena: Arena, peer: str) -> Sample:
    """Messages wait in the first partition only, whatever the others cost; and once in all of them."""
    batches = arena.sizes.spark_micro_batches
    sample: Sample = {}
    for count in COUNTS:
        per_partition = {0: batches * _PER_BATCH}
        sample[f"batch_{count}_ms"] = _micro_batch_ms(arena, peer, count, per_partition.get, _PER_BATCH)
    most = COUNTS[-1]
    sample[f"batch_{most}_full_ms"] = _micro_batch_ms(arena, peer, most, lambda _: batches, most)
    added = (sample[f"batch_{most}_ms"] - sample["batch_1_ms"]) / (most - 1)
    return sample | {"empty_partition_ms": max(_LEAST_MS, added)}


def _idle_source(arena: Arena, peer: str) -> Sample:
    waiting = {0: arena.sizes.spark_micro_batches * _PER_BATCH}
    alone = _micro_batch_ms(arena, peer, 1, waiting.get, _PER_BATCH)
    with arena.topic(broker(arena)) as idle:
        beside = _micro_batch_ms(arena, peer, 1, waiting.get, _PER_BATCH, idle)
    return {"batch_1_ms": alone, "batch_idle_ms": beside, "idle_source_ms": max(_LEAST_MS, beside - alone)}


def _micro_batch_ms(
    arena: Arena,
    peer: str,
    partitions: int,
    messages_in: Callable[[int], int | None],
    per_batch: int,
    idle: str | None = None,
) -> float:
    spark, server = spark_peer(arena, peer), broker(arena)
    with arena.topic(server, partitions) as topic:
        producer = Producer({"bootstrap.servers": bootstrap(arena), "linger.ms": 5})
        rows = 0
        for partition in range(partitions):
            for _ in range(messages_in(partition) or 0):
                producer.produce(topic, b"x" * 100, partition=partition)
                rows += 1
        if producer.flush(30):
            raise LoadFailed("the messages for the micro-batches could not be sent")
        return spark.ask("micro_batches", topic=topic, rows=rows, per_batch=per_batch, idle=idle)["batch_ms"]
