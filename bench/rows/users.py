"""As users see it: produce and consume through confluent-kafka, one partition, 1 KB messages."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import KAFKA_WIRE, Experiment, Sample
from bench.load import run_job
from bench.sizes import Sizes

_SHOWN = ("mb_per_s", "messages_per_s", "cpu_s_per_gb")


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        Experiment(id="users-produce", title="produce through confluent-kafka, 1 KB", acks="1", durability="page-cache",
                   metrics=_SHOWN, peers=KAFKA_WIRE, measure=_produce),
        Experiment(id="users-consume", title="consume through confluent-kafka, 1 KB", acks="–", durability="page-cache",
                   metrics=_SHOWN, peers=KAFKA_WIRE, measure=_consume),
    ]  # fmt: skip


def _produce(arena: Arena, peer: str) -> Sample:
    server = arena.server(peer, "page-cache")
    with arena.topic(server) as topic:
        return run_job(
            "users-produce", port=server.port, pid=server.pid, topic=topic, messages=arena.sizes.users_messages
        )


def _consume(arena: Arena, peer: str) -> Sample:
    server = arena.server(peer, "page-cache")
    topic, messages = arena.filled(server, 1024)
    wanted = min(messages, arena.sizes.users_messages)
    return run_job("users-consume", port=server.port, pid=server.pid, topic=topic, messages=wanted)
