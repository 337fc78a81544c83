"""The HTTP API: writes of one message and of a hundred, and pulls from a queue that acknowledge each message."""

from __future__ import annotations

from collections.abc import Callable

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.load import run_job
from bench.load.admin import KafkaAdmin
from bench.peers.clarion import ClarionServer
from bench.peers.process import free_port
from bench.sizes import Sizes

_TOPIC = "over-http"


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        _row("http-write", "HTTP, writes of 1 KB", _write(1)),
        _row("http-write-100", "HTTP, writes of 100 x 1 KB (NDJSON)", _write(100)),
        _row("http-pull", "HTTP, pulls of 100 x 1 KB, each message acknowledged", _pull),
    ]


def _row(name: str, title: str, measure: Callable[[Arena, str], Sample]) -> Experiment:
    return Experiment(
        id=name, title=title, acks="all", durability="page-cache", metrics=("messages_per_s", "cpu_us_per_message"),
        measure=measure, peers=("clarion",),
    )  # fmt: skip


def _write(per_request: int) -> Callable[[Arena, str], Sample]:
    def measure(arena: Arena, peer: str) -> Sample:
        return _measure(arena, peer, "http-write", per_request, filled=0)

    return measure


def _pull(arena: Arena, peer: str) -> Sample:
    return _measure(arena, peer, "http-pull", 1, filled=arena.sizes.queue_messages)


def _measure(arena: Arena, peer: str, job: str, per_request: int, filled: int) -> Sample:
    with arena.fresh(peer) as server:
        assert isinstance(server, ClarionServer)
        http_port = free_port()
        # HTTP may have the whole loop: by default it answers 429 beyond nine tenths of it, and a rate is wanted here.
        server.more = ("--http", f"127.0.0.1:{http_port}", "--set", "clarion.http.share=1.0")
        server.start()
        admin = KafkaAdmin(server.address)
        admin.create(_TOPIC)
        if filled:
            arena.load(server, "produce", topic=_TOPIC, value_bytes=1024, connections=4, seconds=60.0,
                       bytes_max=filled * 1024)  # fmt: skip
        admin.close()
        return run_job(
            job, http_port=http_port, pids=server.pids, topic=_TOPIC, messages=filled,
            seconds=arena.sizes.seconds, per_request=per_request,
        )  # fmt: skip
