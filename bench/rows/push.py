"""Push: from a producer's send to the whole request at a webhook endpoint, both on this machine; and its neighbours.

`neighbours`: stream readers, a queue and a webhook work off one topic at once, as fast as each goes. Then the same
beside a reader that has stopped reading and an endpoint that never answers, which should change nobody's rate.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.load import run_job
from bench.load.admin import KafkaAdmin
from bench.peers.clarion import ClarionServer
from bench.peers.process import ServerProcess, free_port
from bench.sizes import Sizes

_TOPIC = "pushed"
_READERS = 10
_WARM, _CALM, _BESIDE = "warm", "calm", "beside"  # a queue and a webhook go through a topic once
_SETTLED_SECONDS = 3.0  # that the two who take nothing have to come to rest, and that they stay for longer


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        Experiment(
            id="push-latency", title=f"push to a webhook at {sizes.push_rate:,} messages/s", acks="1",
            durability="page-cache", metrics=("p50_ms", "p99_ms", "cpu_us_per_message"), measure=_measure,
            peers=("clarion",),
        ),
        Experiment(
            id="neighbours", title=f"{_READERS} readers, a queue and a webhook, beside two who take nothing", acks="1",
            durability="page-cache", metrics=("streams_kept", "queue_kept", "webhook_kept"), measure=_neighbours,
            peers=("clarion",),
        ),
    ]  # fmt: skip


def _neighbours(arena: Arena, peer: str) -> Sample:
    with arena.fresh(peer) as server, ThreadPoolExecutor(1) as beside:
        http_port = _start_with_push(server)
        messages = _fill(arena, server)
        _rates(arena, server, http_port, _WARM, messages)
        calm = _rates(arena, server, http_port, _CALM, messages)
        stalled = beside.submit(
            run_job, "stalled", port=server.port, http_port=http_port, topic=_BESIDE,
            seconds=arena.sizes.latency_seconds + 3 * _SETTLED_SECONDS,
        )  # fmt: skip
        time.sleep(_SETTLED_SECONDS)
        besides = _rates(arena, server, http_port, _BESIDE, messages)
        if stalled.done() or not stalled.result()["kept_waiting"]:
            raise RuntimeError("those who take nothing were not there")
    return {f"{name}_kept": besides[name] / rate for name, rate in calm.items()} | {
        f"{name}_messages_per_s": rate for name, rate in calm.items()
    }


def _fill(arena: Arena, server: ServerProcess) -> int:
    admin = KafkaAdmin(server.address)
    for topic in (_WARM, _CALM, _BESIDE):
        admin.create(topic)
        arena.load(server, "produce", topic=topic, value_bytes=1024, connections=4, seconds=60.0,
                   bytes_max=arena.sizes.queue_messages * 1024)  # fmt: skip
    messages = admin.messages(_BESIDE)
    admin.close()
    return messages


def _rates(arena: Arena, server: ServerProcess, http_port: int, topic: str, messages: int) -> dict[str, float]:
    """Messages per second of all three kinds, at the same time."""
    here = {"pids": server.pids, "topic": topic, "seconds": arena.sizes.latency_seconds}
    with ThreadPoolExecutor(3) as at_once:
        jobs = {
            "webhook": at_once.submit(run_job, "push-backlog", port=server.port, http_port=http_port, **here),
            "queue": at_once.submit(run_job, "http-pull", http_port=http_port, messages=messages, **here),
            "streams": at_once.submit(
                run_job, "consume", dialect=server.name, port=server.port, messages=messages, connections=_READERS,
                **here,
            ),
        }  # fmt: skip
        return {name: job.result()["messages_per_s"] for name, job in jobs.items()}


def _start_with_push(server: ServerProcess) -> int:
    assert isinstance(server, ClarionServer)
    http_port = free_port()
    server.more = ("--http", f"127.0.0.1:{http_port}", "--set", "clarion.push.private.networks=127.0.0.0/8")
    server.start()
    return http_port


def _measure(arena: Arena, peer: str) -> Sample:
    with arena.fresh(peer) as server:
        http_port = _start_with_push(server)
        admin = KafkaAdmin(server.address)
        admin.create(_TOPIC)
        admin.close()
        return run_job(
            "push", port=server.port, http_port=http_port, pids=[server.pid], topic=_TOPIC,
            rate=arena.sizes.push_rate, seconds=arena.sizes.latency_seconds,
        )  # fmt: skip
