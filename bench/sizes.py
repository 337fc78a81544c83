"""How much of everything a run does: the default takes about a quarter of an hour, `--quick` a few minutes."""

from __future__ import annotations

from dataclasses import dataclass

GB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    rounds: int = 3
    seconds: float = 2.0  # of one measured stretch
    latency_seconds: float = 5.0
    warm_seconds: float = 3.0  # per kind of load, when a server of the pool starts; the JVM needs it
    produce_bytes: int = 800_000_000  # of one round at most: below one segment, and three peers' rounds fit in memory
    filled_bytes: int = 400_000_000  # what the reading rows read
    fanout_bytes: int = 400_000_000  # delivered, over all readers
    users_messages: int = 300_000
    queue_messages: int = 200_000
    latency_rate: int = 1000
    latency_rate_fsync: int = 500
    push_rate: int = 200  # each is a request of its own to an endpoint that shares the machine
    recovery_bytes: tuple[int, ...] = (GB // 1000, GB)  # the small one shows what is not the log
    idle_connections: int = 10_000
    many_partitions: int = 10_000
    cluster_bytes: int = 300_000_000  # of one round at most, and on every one of three brokers
    cluster_warm_seconds: float = 10.0  # per kind of load: three JVMs compile on the cores that one has otherwise
    cluster_latency_rate: int = 500  # three brokers share the machine, and each message is written three times
    cluster_latency_rate_fsync: int = 100
    cluster_partitions: tuple[int, ...] = ()  # variants of the cluster's rows with more than one partition per broker
    pretouch_bytes: int = 4 * GB
    spark_messages: int = 1_500_000  # of 100 B; rows with larger messages or more work take a part of them
    spark_lone_messages: int = 24  # one every 450 ms
    spark_micro_batches: int = 12
    spark_replay_messages: int = 1_000_000


DEFAULT = Sizes()
FULL = Sizes(
    rounds=5, recovery_bytes=(GB // 1000, GB, 5 * GB), cluster_partitions=(100, 1000), spark_replay_messages=10_000_000
)
QUICK = Sizes(
    rounds=1, seconds=0.7, latency_seconds=1.5, warm_seconds=0.8, cluster_warm_seconds=4.0, produce_bytes=400_000_000,
    filled_bytes=200_000_000, fanout_bytes=100_000_000, users_messages=100_000, queue_messages=50_000,
    recovery_bytes=(GB // 4,),
    idle_connections=1000, many_partitions=1000, pretouch_bytes=2 * GB, spark_messages=400_000, spark_lone_messages=12,
    spark_micro_batches=6, spark_replay_messages=100_000,
)  # fmt: skip
