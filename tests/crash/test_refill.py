"""A replica is filled while others write: their 99th percentile at most doubles.

REFILL_MB says how much is filled (500 where it is not given; the goal speaks of 5,000), REFILL_ROUNDS how often. A
campaign: what it measures depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from clarion.net.channel import Channel, ChannelSettings
from clarion.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.servers import ClarionProcess
from tests.waiting import wait_for

from .test_cluster_kill import PATIENCE_SECONDS, Brokers

FILLED_MB = int(os.environ.get("REFILL_MB", "500"))
CALM_SECONDS = 10.0  # before and after each time
ROUNDS = int(os.environ.get("REFILL_ROUNDS", "3"))
PER_SECOND = 200
BULK_PARTITIONS = 4
BOTH, ALL_THREE = (1, 2), (1, 2, 3)


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


def fill_bulk(brokers: Brokers) -> None:
    assigned = NewTopic("bulk", BULK_PARTITIONS, replica_assignment=[list(BOTH)] * BULK_PARTITIONS)
    brokers.admin.create_topics([assigned])["bulk"].result(PATIENCE_SECONDS)
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 50, "log_level": 0})
    value = os.urandom(10_000)
    for number in range(FILLED_MB * 100):
        while True:
            try:
                producer.produce("bulk", value, partition=number % BULK_PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(10 * PATIENCE_SECONDS) == 0


def move_bulk(brokers: Brokers, replicas: tuple[int, ...]) -> None:
    partitions = tuple(
        ReassignablePartition(partition_index=index, replicas=replicas) for index in range(BULK_PARTITIONS)
    )
    request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name="bulk", partitions=partitions),))

    async def ask() -> None:
        host, _, port = brokers.bootstrap.split(",")[0].rpartition(":")
        channel = await Channel.open(ChannelSettings(host, int(port), "tests"))
        answer = await channel.ask(45, request)
        channel.close()
        assert [one.error_code for topic in answer.responses for one in topic.partitions] == [0] * BULK_PARTITIONS

    asyncio.run(ask())


def is_moved(brokers: Brokers, replicas: tuple[int, ...]) -> bool:
    return all(in_sync == sorted(replicas) for _, in_sync in brokers.partitions("bulk").values())


def set_share(brokers: Brokers, share: float) -> None:
    entry = ConfigEntry("clarion.replica.fill.share", str(share), incremental_operation=AlterConfigOpType.SET)
    for number in ALL_THREE:
        one = ConfigResource(ConfigResource.Type.BROKER, str(number), incremental_configs=[entry])
        brokers.admin.incremental_alter_configs([one])[one].result(PATIENCE_SECONDS)


def latencies_during_refill(brokers: Brokers) -> tuple[list[float], float]:
    """And how many megabytes per second were filled."""
    is_over, began = threading.Event(), time.perf_counter()

    def watch() -> None:
        deadline = time.monotonic() + 10 * PATIENCE_SECONDS
        while not is_moved(brokers, ALL_THREE) and time.monotonic() < deadline:
            is_over.wait(0.2)
        is_over.set()

    move_bulk(brokers, ALL_THREE)
    watching = threading.Thread(target=watch)
    watching.start()
    found = latencies_until(brokers.bootstrap, is_over.is_set)
    watching.join()
    assert is_moved(brokers, ALL_THREE)
    return found, FILLED_MB / (time.perf_counter() - began)


@dataclass
class Seen:
    """By one share: every latency while nothing is filled, and while a replica is."""

    calm: list[float] = field(default_factory=list)
    filling: list[float] = field(default_factory=list)
    megabytes_per_second: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        speeds = ", ".join(f"{one:.0f}" for one in self.megabytes_per_second)
        return f"{told(self.calm)}; {told(self.filling)} while {FILLED_MB} MB came at {speeds} MB/s"


def told(latencies: list[float]) -> str:
    p50, p99 = percentile_ms(latencies, 50), percentile_ms(latencies, 99)
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms of {len(latencies)}"


def calm_latencies(brokers: Brokers) -> list[float]:
    end = time.perf_counter() + CALM_SECONDS
    return latencies_until(brokers.bootstrap, lambda: time.perf_counter() > end)


def refill(brokers: Brokers, share: float, seen: Seen) -> None:
    """Between two calms: what else the machine does meanwhile is in both."""
    set_share(brokers, share)
    seen.calm += calm_latencies(brokers)
    latencies, speed = latencies_during_refill(brokers)
    seen.filling += latencies
    seen.megabytes_per_second.append(speed)
    seen.calm += calm_latencies(brokers)
    move_bulk(brokers, BOTH)
    wait_for(lambda: is_moved(brokers, BOTH), seconds=PATIENCE_SECONDS)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_producers_notice_little_of_a_replica_that_is_filled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All messages of all rounds count: no round is left out for having been a bad one."""
    words = ["--brokers", "3"]
    with ClarionProcess(tmp_path / "data", durability="page-cache", args=words) as supervisor:
        brokers = Brokers(supervisor)
        brokers.create("live", 3)
        fill_bulk(brokers)
        calm_latencies(brokers)  # the first requests find everything cold
        seen = {share: Seen() for share in (1.0, 0.2)}
        for _ in range(ROUNDS):
            for share, its in seen.items():  # alternately: the machine has other things to do as well
                refill(brokers, share, its)
        with capsys.disabled():
            for share, its in seen.items():
                print(f"\nshare {share}: {its}")
        usual = seen[0.2]
        assert percentile_ms(usual.filling, 99) <= 2 * percentile_ms(usual.calm, 99), str(usual)
