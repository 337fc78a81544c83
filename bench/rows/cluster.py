"""Three brokers beside three brokers: acks=all with three replicas, two of which must have the message.

Every topic is placed alike on both sides: replicas on all three brokers, each leading a third of the partitions.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench.arena import Arena
from bench.experiment import KAFKA_WIRE, Experiment, Sample
from bench.load import run_job
from bench.load.cluster import BROKERS, ClusterAdmin, is_led_without, is_replicated
from bench.sizes import Sizes

CONNECTIONS = 6  # two to each leader
_SHOWN = ("mb_per_s", "messages_per_s", "cpu_s_per_gb", "rss_mb")
_FAILOVER_PARTITIONS_MAX = 32  # of those that the killed broker leads, so many are written to


def experiments(sizes: Sizes) -> list[Experiment]:
    """Those of one durability together: only one cluster of each peer runs at a time. Killing comes last."""
    return [
        _produce("fsync", sizes),
        _latency("fsync", sizes.cluster_latency_rate_fsync),
        _produce("page-cache", sizes),
        _latency("page-cache", sizes.cluster_latency_rate),
        *(_produce("page-cache", sizes, count) for count in sizes.cluster_partitions),
        _failover(),
        *(_failover(count) for count in sizes.cluster_partitions),
    ]


def _produce(durability: str, sizes: Sizes, partitions: int = BROKERS) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        with arena.cluster_topic(peer, durability, partitions) as (cluster, topic):
            return run_job(
                "produce", dialect=peer, port=cluster.ports[0], pids=cluster.pids, is_cluster=True, topic=topic,
                partitions=partitions, acks=-1, connections=CONNECTIONS, seconds=sizes.seconds,
                bytes_max=sizes.cluster_bytes,
            )  # fmt: skip

    is_plain = partitions == BROKERS
    return Experiment(
        id=f"cluster-produce-{durability}" if is_plain else f"cluster-partitions-{partitions}",
        title="cluster: produce, 1 KB" if is_plain else f"cluster: produce, 1 KB, {partitions:,} partitions",
        acks="all", durability=f"{durability}, 3 brokers", metrics=_SHOWN, peers=KAFKA_WIRE, measure=measure,
    )  # fmt: skip


def _latency(durability: str, rate: int) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        with arena.cluster_topic(peer, durability) as (cluster, topic):
            return run_job(
                "latency", dialect=peer, port=cluster.ports[0], pids=cluster.pids, topic=topic, rate=rate,
                seconds=arena.sizes.latency_seconds, acks=-1,
            )  # fmt: skip

    return Experiment(
        id=f"cluster-latency-{durability}", title=f"cluster: end to end at {rate:,} messages/s", acks="all",
        durability=f"{durability}, 3 brokers", metrics=("p50_ms", "p99_ms", "p999_ms", "cpu_us_per_message"),
        peers=KAFKA_WIRE, measure=measure,
    )  # fmt: skip


def _failover(partitions: int = BROKERS) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        with arena.cluster_topic(peer, "page-cache", partitions) as (cluster, topic), ThreadPoolExecutor(1) as pool:
            led = range(0, partitions, BROKERS)[:_FAILOVER_PARTITIONS_MAX]  # by broker 1
            survivor = ClusterAdmin(("127.0.0.1", cluster.ports[-1]))
            load = pool.submit(
                run_job, "failover", ports=cluster.ports, topic=topic, partitions=list(led),
                kill_pid=cluster.pid_of(1),
            )  # fmt: skip
            survivor.wait_until(topic, lambda state: is_led_without(state, 1), "led by others")
            elected_at = time.perf_counter()
            if not cluster.is_supervised:
                load.result()  # the others take over first
            back_at = time.perf_counter()
            cluster.start_again(1)
            survivor.wait_until(topic, is_replicated, "replicated again")
            replicated_at = time.perf_counter()
            survivor.close()
            sample = load.result()
            killed_at = sample.pop("killed_at")
            refill_s = replicated_at - (killed_at if cluster.is_supervised else back_at)
            return sample | {"elected_s": elected_at - killed_at, "refill_s": refill_s}

    is_plain = partitions == BROKERS
    return Experiment(
        id="cluster-failover" if is_plain else f"cluster-failover-{partitions}",
        title="cluster: kill -9 of a leader" + ("" if is_plain else f", {partitions:,} partitions"), acks="all",
        durability="page-cache, 3 brokers", metrics=("gap_s", "elected_s", "refill_s"), peers=KAFKA_WIRE,
        measure=measure,
    )  # fmt: skip
