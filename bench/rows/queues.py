"""Queues: four consumers share the messages of one topic, and acknowledge each by itself, out of order.

Clarion's are Kafka's share consumers. Apache Kafka takes no part: its share groups have to be switched on first.
RabbitMQ's quorum queues flush whatever they acknowledge, so they stand beside `fsync` alone.
"""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.rows.produce import DURABILITIES
from bench.sizes import Sizes

VALUE_SIZES = {"100b": ("100 B", 100), "1k": ("1 KB", 1024)}


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        _experiment(key, label, value_bytes, durability)
        for durability in DURABILITIES
        for key, (label, value_bytes) in VALUE_SIZES.items()
    ]


def _experiment(key: str, label: str, value_bytes: int, durability: str) -> Experiment:
    acks_label, acks = DURABILITIES[durability]
    rivals = ("nats",) if durability == "page-cache" else ("rabbitmq", "nats")

    def measure(arena: Arena, peer: str) -> Sample:
        server = arena.server(peer, durability)
        with arena.topic(server) as topic:
            return arena.load(
                server, "queue", topic=topic, value_bytes=value_bytes, acks=acks, messages=arena.sizes.queue_messages
            )

    return Experiment(
        id=f"queue-{key}-{durability}", title=f"queue, {label} messages, each acknowledged by itself", acks=acks_label,
        durability=durability, metrics=("messages_per_s", "cpu_us_per_message", "load_cpu_share"), measure=measure,
        peers=("clarion", *rivals), rival=rivals[0],
    )  # fmt: skip
