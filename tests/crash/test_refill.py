"""A replica is filled while others write: their 99th percentile at most doubles.

REFILL_MB says how much is filled (500 where it is not given; the goal speaks of 5,000), REFILL_SHARE with how much of
the event loops' time. A campaign: what it measures depends on what else the machine does, so parts of the refill and
calm alternate, and every message of each counts.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from clarion.net.channel import Channel, ChannelSettings
from clarion.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.servers import ClarionProcess

from .test_cluster_kill import PATIENCE_SECONDS, Brokers

FILLED_MB = int(os.environ.get("REFILL_MB", "500"))
ROUNDS = 5  # each fills a part of it
CALM_SECONDS = 15.0  # before each of them
SHARE = os.environ.get("REFILL_SHARE", "0.2")
PER_SECOND = 200
PARTITIONS = 4  # of each part
BOTH, ALL_THREE = (1, 2), (1, 2, 3)
PARTS = [f"bulk-{number}" for number in range(ROUNDS)]


def latencies_until(bootstrap: str, is_over: Callable[[], bool]) -> list[float]:
    """In seconds, of messages at a fixed pace to all of three replicas, sent and acknowledged one by one."""
    found: list[float] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})

    def sent(at: float) -> Callable[[object, object], None]:
        return lambda error, _: found.append(time.perf_counter() - at if error is None else PATIENCE_SECONDS)

    due = time.perf_counter()
    while not is_over():
        producer.produce("live", b"x" * 1024, on_delivery=sent(time.perf_counter()))
        due += 1 / PER_SECOND
        while (left := due - time.perf_counter()) > 0:
            producer.poll(left)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return found


def percentile_ms(latencies: list[float], rank: int) -> float:
    return statistics.quantiles(latencies, n=100)[rank - 1] * 1000


def write_parts(brokers: Brokers) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 50, "log_level": 0})
    value = os.urandom(10_000)
    for part in PARTS:
        assigned = NewTopic(part, PARTITIONS, replica_assignment=[list(BOTH)] * PARTITIONS)
        brokers.admin.create_topics([assigned])[part].result(PATIENCE_SECONDS)
        for number in range(FILLED_MB * 100 // ROUNDS):
            while True:
                try:
                    producer.produce(part, value, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(10 * PATIENCE_SECONDS) == 0


def add_replica(brokers: Brokers, part: str) -> None:
    partitions = tuple(ReassignablePartition(partition_index=index, replicas=ALL_THREE) for index in range(PARTITIONS))
    request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name=part, partitions=partitions),))

    async def ask() -> None:
        host, _, port = brokers.bootstrap.split(",")[0].rpartition(":")
        channel = await Channel.open(ChannelSettings(host, int(port), "tests"))
        answer = await channel.ask(45, request)
        channel.close()
        assert [one.error_code for topic in answer.responses for one in topic.partitions] == [0] * PARTITIONS

    asyncio.run(ask())


def has_replica(brokers: Brokers, part: str) -> bool:
    return all(in_sync == list(ALL_THREE) for _, in_sync in brokers.partitions(part).values())


def latencies_during_refill(brokers: Brokers, part: str) -> tuple[list[float], float]:
    """And how many seconds it took."""
    is_over, began = threading.Event(), time.perf_counter()

    def watch() -> None:
        deadline = time.monotonic() + 10 * PATIENCE_SECONDS
        while not has_replica(brokers, part) and time.monotonic() < deadline:
            is_over.wait(0.2)
        is_over.set()

    add_replica(brokers, part)
    watching = threading.Thread(target=watch)
    watching.start()
    found = latencies_until(brokers.bootstrap, is_over.is_set)
    watching.join()
    assert has_replica(brokers, part)
    return found, time.perf_counter() - began


def calm_latencies(brokers: Brokers) -> list[float]:
    os.sync()  # what was filled before is on disk: nothing of it is written back meanwhile
    end = time.perf_counter() + CALM_SECONDS
    return latencies_until(brokers.bootstrap, lambda: time.perf_counter() > end)


def told(latencies: list[float]) -> str:
    p50, p99 = percentile_ms(latencies, 50), percentile_ms(latencies, 99)
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms of {len(latencies)}"


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_producers_notice_little_of_a_replica_that_is_filled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--brokers", "3", "--set", f"clarion.replica.fill.share={SHARE}"]
    with ClarionProcess(tmp_path / "data", durability="page-cache", args=words) as supervisor:
        brokers = Brokers(supervisor)
        brokers.create("live", 3)
        write_parts(brokers)
        calm_latencies(brokers)  # the first requests find everything cold
        calm: list[float] = []
        filling: list[float] = []
        seconds = 0.0
        for part in PARTS:
            quiet = calm_latencies(brokers)
            busy, took = latencies_during_refill(brokers, part)
            calm, filling, seconds = calm + quiet, filling + busy, seconds + took
            with capsys.disabled():
                print(f"\n{part}: {told(quiet)}; {told(busy)} while it was filled in {took:.0f} s", end="", flush=True)
    with capsys.disabled():
        print(f"\nshare {SHARE}, {FILLED_MB} MB in {seconds:.0f} s: calm {told(calm)}, filling {told(filling)}")
    assert percentile_ms(filling, 99) <= 2 * percentile_ms(calm, 99)
