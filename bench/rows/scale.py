"""Scale of the quiet kind: memory per idle connection, and a clean start with very many partitions."""

from __future__ import annotations

import time

from bench.arena import Arena
from bench.experiment import KAFKA_WIRE, Experiment, Sample
from bench.load import run_job
from bench.load.admin import KafkaAdmin
from bench.rows.start import acknowledge_one, first_message
from bench.sizes import Sizes

_PARTITIONS_PER_TOPIC = 500


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        Experiment(
            id="idle-connections", title=f"memory per idle connection, {sizes.idle_connections:,} of them", acks="–",
            durability="page-cache, new", metrics=("kb_per_connection",), peers=KAFKA_WIRE, measure=_idle_connections,
            rounds_max=1,
        ),
        Experiment(
            id="many-partitions", title=f"clean start with {sizes.many_partitions:,} partitions, first message",
            acks="1", durability="page-cache, new", metrics=("first_ack_s",), peers=("clarion",),
            measure=_many_partitions, rounds_max=1,
        ),
    ]  # fmt: skip


def _idle_connections(arena: Arena, peer: str) -> Sample:
    with arena.fresh(peer) as server:
        server.start()
        first_message(server)
        return run_job("idle", port=server.port, pid=server.pid, connections=arena.sizes.idle_connections)


def _many_partitions(arena: Arena, peer: str) -> Sample:
    topics = [f"many{number}" for number in range(arena.sizes.many_partitions // _PARTITIONS_PER_TOPIC)]
    with arena.fresh(peer) as server:
        server.start()
        admin = KafkaAdmin(server.address)
        began = time.perf_counter()
        for topic in topics:
            admin.create(topic, _PARTITIONS_PER_TOPIC)
            acknowledge_one(admin, topic, 0)
        create_s = time.perf_counter() - began
        admin.close()
        server.stop()
        server.start()
        admin = KafkaAdmin(server.address)
        for topic in (topics[0], topics[-1]):
            acknowledge_one(admin, topic, _PARTITIONS_PER_TOPIC - 1)
        first_ack_s = time.perf_counter() - server.started_at
        admin.close()
        memory = {"rss_mb": server.rss_bytes() / 1e6}
        return {"first_ack_s": first_ack_s, "ready_s": server.ready_s, "create_s": create_s} | memory
