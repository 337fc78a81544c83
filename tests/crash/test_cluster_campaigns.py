"""Minutes of faults against three brokers under load, over both stores: nothing acknowledged is lost, doubled or out of
order, no client waits for long while a majority lives, none is restarted, and in the end every replica has everything.

`CLARION_CAMPAIGN_SECONDS` says how long the faults last; what was seen is printed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.crash.brokers import STORES, Brokers, running_brokers
from tests.crash.load import QUIET, Client, Committer, History, Publisher, Reader, read_committed
from tests.history import check
from tests.raw_client import RawClient
from tests.waiting import wait_for

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(2400)]

SECONDS = float(os.environ.get("CLARION_CAMPAIGN_SECONDS", "300"))
TOPIC, GROUP = "busy", "followers"
PARTITIONS = 6
PER_SECOND = 150  # of each publisher
IMPATIENT = {"socket.timeout.ms": 3000, "request.timeout.ms": 3000}
WAIT_SECONDS_MAX = 10.0
KILL_EVERY_SECONDS = 10.0
FROZEN_SECONDS, CALM_SECONDS = 15.0, 20.0
STORE_AWAY_SECONDS = 2.5  # less than half a term
STORE_GONE_SECONDS = 30.0
FAIL_OVER_SECONDS_MAX = 3.0


class Member(Client):
    """Of a group that the brokers coordinate: subscribes, reads and commits."""

    def __init__(self, history: History, bootstrap: str) -> None:
        super().__init__(history)
        self._bootstrap = bootstrap
        self.read: set[str] = set()
        self.longest_wait_seconds = 0.0

    def work(self) -> None:
        settings = {**QUIET, "socket.timeout.ms": 3000, "bootstrap.servers": self._bootstrap, "group.id": "members"}
        # Its session is as long as clients have it, 45 s: one of six ends while a frozen coordinator is replaced, and a
        # member that joins anew then waits for its own former self to be given up.
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        last = None
        while not self._stopping.is_set():
            for message in consumer.consume(500, 0.05):
                assert message.error() is None, message.error()
                self.read.add((message.value() or b"").decode())
                if last is not None:
                    self.longest_wait_seconds = max(self.longest_wait_seconds, time.monotonic() - last)
                last = time.monotonic()
        consumer.close()


class Load:
    """Two idempotent producers, one who commits what it reads, and a member of a group."""

    def __init__(self, brokers: Brokers, seed: int) -> None:
        self.brokers = brokers
        self.history = History()
        brokers.create(TOPIC, PARTITIONS, min_insync_replicas="2", segment_bytes="1048576")
        where = (self.history, brokers.bootstrap)
        self.publishers = [
            Publisher(
                *where,
                f"p{number}",
                TOPIC,
                PARTITIONS,
                seed=seed + number,
                per_second=PER_SECOND,
                **{**IMPATIENT, "delivery.timeout.ms": 120_000},
            )
            for number in (1, 2)
        ]
        self.member = Member(*where)
        self._clients: list[Client] = [*self.publishers, self.member, Committer(*where, GROUP, TOPIC, PARTITIONS)]
        for client in self._clients:
            client.start()
        self.wait_for_answers()

    def wait_for_answers(self) -> None:
        before = [one.acked for one in self.publishers]
        wait_for(
            lambda: all(one.acked > count for one, count in zip(self.publishers, before, strict=True)),
            seconds=90,
            what="answers to publishers",
        )

    def forget_waits(self) -> None:
        """What has been waited for so far is another story."""
        for one in (*self.publishers, self.member):
            one.longest_wait_seconds = 0.0

    @property
    def longest_wait_seconds(self) -> tuple[float, float]:
        """For an acknowledgement, and for the next message."""
        return max(one.longest_wait_seconds for one in self.publishers), self.member.longest_wait_seconds

    def finish(self) -> str:
        """Everything is checked; returns what was seen, in words."""
        longest = self.longest_wait_seconds
        for client in self.publishers:
            client.stop()
        whole = self.brokers.wait_until_whole()
        sent = {one.value for one in self.history.acked()}
        wait_for(lambda: sent <= self.member.read, seconds=90, what="the group reads all")
        for client in self._clients:
            client.stop()
        Reader(self.history, self.brokers.bootstrap, "from the start", TOPIC, PARTITIONS).read_on()
        read_committed(self.history, self.brokers.bootstrap, GROUP, TOPIC, PARTITIONS)
        check(self.history.operations)
        assert len(sent) == sum(one.acked for one in self.publishers)
        return (
            f"{len(sent)} messages acknowledged, none lost, doubled or out of order; the longest wait for an "
            f"acknowledgement {longest[0]:.2f} s, for a message {longest[1]:.2f} s; whole again after {whole:.2f} s"
        )


def campaign(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str], fault: Callable[[Load, random.Random], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    with running_brokers(tmp_path, store) as brokers:
        load, chance, count = Load(brokers, seed), random.Random(seed), 0
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            fault(load, chance)
            count += 1
            waited = load.longest_wait_seconds
            with capsys.disabled():
                print(
                    f"\n{store}, fault {count}: longest waits {waited[0]:.2f} s, {waited[1]:.2f} s", end="", flush=True
                )
            assert max(waited) <= WAIT_SECONDS_MAX
        told = load.finish()
    with capsys.disabled():
        print(f"\nseed {seed}, {store}, {count} faults in {SECONDS:.0f} s: {told}")


@pytest.mark.parametrize("store", STORES)
def test_a_random_broker_is_killed_every_ten_seconds(tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]):
    def kill(load: Load, chance: random.Random) -> None:
        began = time.monotonic()
        load.brokers.wait_until_whole()
        load.brokers.kill9(chance.choice(load.brokers.ids))
        time.sleep(max(0.0, KILL_EVERY_SECONDS - (time.monotonic() - began)))

    campaign(tmp_path, store, capsys, kill)


@pytest.mark.parametrize("store", STORES)
def test_one_broker_after_the_other_is_frozen(tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]):
    def freeze(load: Load, chance: random.Random) -> None:
        with load.brokers.frozen(chance.choice(load.brokers.ids)):
            time.sleep(FROZEN_SECONDS)
        time.sleep(CALM_SECONDS)

    campaign(tmp_path, store, capsys, freeze)


def test_etcd_is_away_for_less_than_half_a_term(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def be_away(load: Load, chance: random.Random) -> None:
        etcd = load.brokers.etcd
        assert etcd is not None
        if chance.random() < 0.5:
            etcd.freeze()
            time.sleep(STORE_AWAY_SECONDS)
            etcd.thaw()
        else:
            etcd.kill()
            time.sleep(STORE_AWAY_SECONDS / 2)
            etcd.start()
        time.sleep(chance.uniform(2.0, 6.0))
        if chance.random() < 0.3:
            load.brokers.wait_until_whole()
            load.brokers.kill9(chance.choice(load.brokers.ids))
            time.sleep(KILL_EVERY_SECONDS / 2)

    campaign(tmp_path, "etcd", capsys, be_away)


def test_etcd_is_away_for_thirty_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Writes stop, the brokers say why, and when it is back all goes on."""
    with running_brokers(tmp_path, "etcd") as brokers:
        load, etcd = Load(brokers, 1), brokers.etcd
        assert etcd is not None
        etcd.freeze()
        began = time.monotonic()
        stopped = began
        acked = [one.acked for one in load.publishers]
        while time.monotonic() < began + STORE_GONE_SECONDS:
            time.sleep(0.05)
            if (now := [one.acked for one in load.publishers]) != acked:
                acked, stopped = now, time.monotonic()
        assert stopped - began < 10, "writing went on without a lease"
        assert "writing waits until the store answers" in brokers.supervisor.stderr
        etcd.thaw()
        back = time.monotonic()
        load.wait_for_answers()
        resumed = time.monotonic() - back
        told = load.finish()
    with capsys.disabled():
        print(f"\netcd away for 30 s: writes stopped after {stopped - began:.1f} s, resumed in {resumed:.1f} s; {told}")


@pytest.mark.parametrize("store", STORES)
def test_the_leaders_of_a_thousand_partitions_are_replaced_within_three_seconds(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
):
    with running_brokers(tmp_path, store) as brokers:
        brokers.create("many", 1000)
        waits = []
        for dead in brokers.ids:
            brokers.wait_until_whole(300)
            other = brokers.bootstrap.split(",")[dead % 3]
            with RawClient(other) as client:
                led = [one for one in _leaders(client) if one == dead]
                brokers.kill9(dead)
                began = time.monotonic()
                wait_for(lambda client=client, dead=dead: not {dead, -1} & set(_leaders(client)), seconds=90)
                waits.append(time.monotonic() - began)
            with capsys.disabled():
                print(
                    f"\n{store}: {len(led)} leaders of broker {dead} replaced in {waits[-1]:.2f} s", end="", flush=True
                )
        assert max(waits) <= FAIL_OVER_SECONDS_MAX


def _leaders(client: RawClient) -> list[int]:
    told = client.ask("metadata", 9, topics=[{"name": "many"}], allow_auto_topic_creation=False)
    return [one.leader_id for one in told.topics[0].partitions]
