"""Push: from a producer's send to the whole request at a webhook endpoint, both on this machine."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.load import run_job
from bench.load.admin import KafkaAdmin
from bench.peers.clarion import ClarionServer
from bench.peers.process import free_port
from bench.sizes import Sizes

_TOPIC = "pushed"


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        Experiment(
            id="push-latency", title=f"push to a webhook at {sizes.push_rate:,} messages/s", acks="1",
            durability="page-cache", metrics=("p50_ms", "p99_ms", "cpu_us_per_message"), measure=_measure,
            peers=("clarion",),
        )
    ]  # fmt: skip


def _measure(arena: Arena, peer: str) -> Sample:
    with arena.fresh(peer) as server:
        assert isinstance(server, ClarionServer)
        http_port = free_port()
        server.more = ("--http", f"127.0.0.1:{http_port}", "--set", "clarion.push.private.networks=127.0.0.0/8")
        server.start()
        admin = KafkaAdmin(server.address)
        admin.create(_TOPIC)
        admin.close()
        return run_job(
            "push", port=server.port, http_port=http_port, pids=[server.pid], topic=_TOPIC,
            rate=arena.sizes.push_rate, seconds=arena.sizes.latency_seconds,
        )  # fmt: skip
