"""Queues as Python programs see them: receive and acknowledge one by one, through Clarion's client and nats-py."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.load import run_job
from bench.sizes import Sizes


def experiments(sizes: Sizes) -> list[Experiment]:
    return [_row(value_bytes, name) for value_bytes, name in ((100, "100b"), (1024, "1k"))]


def _row(value_bytes: int, name: str) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        server = arena.server(peer, "page-cache")
        topic, messages = arena.filled(server, value_bytes)
        return run_job(
            "queue-client", peer=peer, port=server.port, pid=server.pid, topic=topic, messages=messages,
            seconds=arena.sizes.seconds, value_bytes=value_bytes,
        )  # fmt: skip

    return Experiment(
        id=f"queue-client-{name}", title=f"queue, Python client, each message acknowledged, {name.upper()}",
        acks="–", durability="page-cache", metrics=("messages_per_s", "cpu_us_per_message", "load_cpu_share"),
        peers=("clarion", "nats"), rival="nats", measure=measure,
    )  # fmt: skip
