"""Tiny synchronous requests: one 100 B message per Produce, the next only after the reply; 1, 50, 500 connections."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.rows.produce import DURABILITIES
from bench.sizes import Sizes

CONNECTIONS = (1, 50, 500)


def experiments(sizes: Sizes) -> list[Experiment]:
    return [_experiment(durability, count) for durability in DURABILITIES for count in CONNECTIONS]


def _experiment(durability: str, connections: int) -> Experiment:
    label, acks = DURABILITIES[durability]

    def measure(arena: Arena, peer: str) -> Sample:
        server = arena.server(peer, durability)
        with arena.topic(server) as topic:
            bounds = {"topic": topic, "value_bytes": 100, "acks": acks, "seconds": arena.sizes.seconds}
            if connections == 1:
                return arena.load(server, "ping", **bounds)
            return arena.load(server, "produce", batch_bytes=1, window=1, connections=connections, **bounds)

    title = f"tiny requests, {connections} connection{'s' * (connections > 1)}"
    return Experiment(
        id=f"tiny-{connections}-{durability}", title=title, acks=label, durability=durability,
        metrics=("requests_per_s", "cpu_us_per_request"), measure=measure,
    )  # fmt: skip
