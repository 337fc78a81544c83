"""Produce: 64 KB batches of 100 B, 1 KB and 10 KB messages, five unanswered requests on each of four connections."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import STREAMS, Experiment, Sample
from bench.sizes import Sizes

VALUE_SIZES = {"100b": ("100 B", 100), "1k": ("1 KB", 1024), "10k": ("10 KB", 10240)}
DURABILITIES = {"page-cache": ("1", 1), "fsync": ("all", -1)}
SHOWN = ("mb_per_s", "messages_per_s", "cpu_s_per_gb", "rss_mb")


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        produce_experiment(f"produce-{key}-{durability}", f"produce, {label} messages", durability, value_bytes)
        for durability in DURABILITIES
        for key, (label, value_bytes) in VALUE_SIZES.items()
    ]


def produce_experiment(
    name: str, title: str, durability: str, value_bytes: int, partitions: int = 1, peers: tuple[str, ...] = STREAMS
) -> Experiment:
    label, acks = DURABILITIES[durability]

    def measure(arena: Arena, peer: str) -> Sample:
        server = arena.server(peer, durability)
        with arena.topic(server, partitions) as topic:
            return arena.load(
                server, "produce", topic=topic, partitions=partitions, value_bytes=value_bytes, acks=acks,
                connections=4, seconds=arena.sizes.seconds, bytes_max=arena.sizes.produce_bytes,
            )  # fmt: skip

    return Experiment(
        id=name, title=title, acks=label, durability=durability, metrics=SHOWN, measure=measure, peers=peers
    )
