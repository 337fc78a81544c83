"""Recovery: fill a topic, kill -9, start again; the time until every acknowledged message is served."""

from __future__ import annotations

import time

from bench.arena import Arena
from bench.experiment import KAFKA_WIRE, Experiment, Sample
from bench.load.admin import KafkaAdmin
from bench.peers.process import ServerProcess
from bench.sizes import Sizes

_WITHIN_S = 120.0


def experiments(sizes: Sizes) -> list[Experiment]:
    return [_experiment(size) for size in sizes.recovery_bytes]


def _experiment(size: int) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        with arena.fresh(peer) as server:
            server.start()
            messages = _fill(arena, server, size)
            server.kill()
            server.start()
            return {"ready_s": _served_again(server, messages)}

    return Experiment(
        id=f"recovery-{size / 1e9:g}gb", title=f"recovery after kill -9, {size / 1e9:g} GB", acks="1",
        durability="page-cache, new", metrics=("ready_s",), peers=KAFKA_WIRE, measure=measure, rounds_max=2,
    )  # fmt: skip


def _fill(arena: Arena, server: ServerProcess, size: int) -> int:
    admin = KafkaAdmin(server.address)
    admin.create("kept")
    arena.load(server, "produce", topic="kept", connections=4, seconds=90.0, bytes_max=size)
    messages = admin.messages("kept")
    admin.close()
    return messages


def _served_again(server: ServerProcess, messages: int) -> float:
    deadline, end = time.monotonic() + _WITHIN_S, -1
    while time.monotonic() < deadline:
        admin = KafkaAdmin(server.address)
        error, end = admin.ends("kept", 1)[0]
        admin.close()
        if not error and end == messages:
            return time.perf_counter() - server.started_at
        time.sleep(0.005)  # Kafka's watermark follows its recovered log a little later
    raise RuntimeError(f"{messages} messages were acknowledged and {end} came back within {_WITHIN_S:.0f} s")
