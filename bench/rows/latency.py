"""End-to-end latency at a fixed rate: one producer, one long-polling reader, 1 KB messages, one per request."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.rows.produce import DURABILITIES
from bench.sizes import Sizes


def experiments(sizes: Sizes) -> list[Experiment]:
    rates = {"page-cache": sizes.latency_rate, "fsync": sizes.latency_rate_fsync}
    return [_experiment(durability, rate) for durability, rate in rates.items()]


def _experiment(durability: str, rate: int) -> Experiment:
    label, acks = DURABILITIES[durability]

    def measure(arena: Arena, peer: str) -> Sample:
        server = arena.server(peer, durability)
        with arena.topic(server) as topic:
            return arena.load(
                server, "latency", topic=topic, rate=rate, seconds=arena.sizes.latency_seconds, acks=acks
            )  # fmt: skip

    return Experiment(
        id=f"latency-{durability}", title=f"end to end at {rate:,} messages/s", acks=label, durability=durability,
        metrics=("p50_ms", "p99_ms", "p999_ms", "cpu_us_per_message"), measure=measure,
    )  # fmt: skip
