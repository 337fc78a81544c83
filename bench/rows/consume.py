"""Consume: two connections reading a cached topic a megabyte at a time; fan out: one writer to 1, 10, 100 readers."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.sizes import Sizes

READERS = (1, 10, 100)


def experiments(sizes: Sizes) -> list[Experiment]:
    return [_consume(), *(_fanout(readers) for readers in READERS)]


def _consume() -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        server = arena.server(peer, "page-cache")
        topic, messages = arena.filled(server, 1024)
        return arena.load(server, "consume", topic=topic, messages=messages, seconds=arena.sizes.seconds)

    return Experiment(
        id="consume-1k", title="consume, 1 KB messages, cached", acks="–", durability="page-cache",
        metrics=("mb_per_s", "messages_per_s", "cpu_s_per_gb"), measure=measure,
    )  # fmt: skip


def _fanout(readers: int) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        server = arena.server(peer, "page-cache")
        messages = arena.sizes.fanout_bytes // 1024 // (readers + 1)  # the same bytes through the broker in every row
        with arena.topic(server) as topic:
            return arena.load(server, "fanout", topic=topic, readers=readers, messages=messages)

    return Experiment(
        id=f"fanout-{readers}", title=f"fan out, 1 writer → {readers} reader{'s' * (readers > 1)}, 1 KB (delivered)",
        acks="1", durability="page-cache", metrics=("mb_per_s", "cpu_s_per_gb"), measure=measure,
    )  # fmt: skip
