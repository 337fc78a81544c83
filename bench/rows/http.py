"""The HTTP API: writes of one message and of a hundred, and pulls from a queue that acknowledge each message."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.load import run_job
from bench.load.admin import KafkaAdmin
from bench.peers.clarion import ClarionServer
from bench.peers.process import ServerProcess, free_port
from bench.sizes import Sizes

_TOPIC = "over-http"
_BESIDE = ("warm", "calm", "control", "beside")  # each reads its topic from its start
_AROUND_SECONDS = 8.0  # HTTP's load begins before what is measured, and ends after it


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        _row("http-write", "HTTP, writes of 1 KB", _write(1)),
        _row("http-write-100", "HTTP, writes of 100 x 1 KB (NDJSON)", _write(100)),
        _row("http-pull", "HTTP, pulls of 100 x 1 KB, each message acknowledged", _pull),
        Experiment(
            id="latency-beside-http", title=f"end to end at {sizes.latency_rate:,} messages/s beside HTTP", acks="1",
            durability="page-cache",
            metrics=("calm_p99_ms", "control_p99_ms", "beside_p99_ms", "p99_growth", "p99_growth_own"),
            measure=_latency_beside_http, peers=("clarion",),
        ),
    ]  # fmt: skip


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


def _latency_beside_http(arena: Arena, peer: str) -> Sample:
    """Kafka's clients, while others write over HTTP as much as they can, and at once again when they are refused.

    The control is the same load on a broker of its own: what it costs to share the machine, and not the broker.
    """
    with arena.fresh(peer) as server, arena.fresh(peer) as another:
        port, other_port = _start_with_http(server), _start_with_http(another)
        for one, topics in ((server, (_TOPIC, *_BESIDE)), (another, (_TOPIC,))):
            admin = KafkaAdmin(one.address)
            for topic in topics:
                admin.create(topic)
            admin.close()
        _p99_ms(arena, server, "warm")
        calm = _p99_ms(arena, server, "calm")
        control, written_elsewhere = _beside(arena, server, "control", another, other_port)
        besieged, written = _beside(arena, server, "beside", server, port)
    return {
        "calm_p99_ms": calm,
        "control_p99_ms": control,
        "beside_p99_ms": besieged,
        "p99_growth": besieged / calm,
        "p99_growth_own": besieged / control,
        "http_messages_per_s": written,
        "http_messages_per_s_control": written_elsewhere,
    }


def _start_with_http(server: ServerProcess) -> int:
    assert isinstance(server, ClarionServer)
    http_port = free_port()
    server.more = ("--http", f"127.0.0.1:{http_port}")
    server.start()
    return http_port


def _p99_ms(arena: Arena, server: ServerProcess, topic: str) -> float:
    sizes = arena.sizes
    measured = arena.load(
        server, "latency", topic=topic, rate=sizes.latency_rate, seconds=sizes.latency_seconds, acks=1
    )
    return measured["p99_ms"]


def _beside(
    arena: Arena, server: ServerProcess, topic: str, asked: ServerProcess, http_port: int
) -> tuple[float, float]:
    """The p99 of one broker's clients while another, or the same one, is written to over HTTP; and at what rate."""
    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(
            run_job, "http-write", http_port=http_port, pids=asked.pids, topic=_TOPIC, messages=0,
            seconds=arena.sizes.latency_seconds + _AROUND_SECONDS, goes_on_when_refused=True,
        )  # fmt: skip
        time.sleep(_AROUND_SECONDS / 2)
        p99_ms = _p99_ms(arena, server, topic)
        return p99_ms, asking.result()["messages_per_s"]


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
