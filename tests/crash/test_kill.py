"""`kill -9` in the middle of load: no acknowledged message is missing, doubled, out of order or elsewhere than it was.

The page cache outlives the process, so `page-cache` durability must lose as little as `fsync` here.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.crash.load import Committer, History, Publisher, Reader, make_topic, read_committed
from tests.history import check
from tests.servers import ClarionProcess
from tests.waiting import wait_for

PARTITIONS = 4
PUBLISHERS = 3
TOPIC = "busy"
GROUP = "followers"
# Checkpoints between the kills, so that recovery begins in the middle; segments small enough to roll all the time.
IMPATIENT = {"CLARION_CHECKPOINT_SECONDS": "0.3", "CLARION_OFFSETS_PARTITIONS": "2"}


@dataclass
class Figures:
    durability: str
    kills: int = 0
    acked: int = 0
    restart_ms: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        slowest = max(self.restart_ms, default=0)
        return (
            f"{self.kills} kills, {self.durability}: {self.acked} messages acknowledged, 0 lost, 0 doubled, in order; "
            f"slowest restart {slowest:.0f} ms"
        )


@pytest.mark.parametrize(("durability", "kills"), [("fsync", 4), ("page-cache", 2)])
def test_a_killed_broker_has_every_acknowledged_message(tmp_path: Path, durability: str, kills: int):
    print(run(tmp_path, durability, kills, seed=kills))


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("durability", ["fsync", "page-cache"])
def test_two_hundred_kills_lose_nothing(tmp_path: Path, durability: str, capsys: pytest.CaptureFixture[str]):
    seed = random.SystemRandom().randrange(1 << 32)
    with capsys.disabled():
        print(f"\nseed {seed}", flush=True)
        print(run(tmp_path, durability, 200, seed))


def run(tmp_path: Path, durability: str, kills: int, seed: int) -> Figures:
    chance, history, figures = random.Random(seed), History(), Figures(durability)
    with ClarionProcess(tmp_path / "data", durability=durability, env=IMPATIENT) as server:
        make_topic(server.bootstrap, TOPIC, PARTITIONS, segment_bytes="65536")
        follower = Reader(history, server.bootstrap, "follower", TOPIC, PARTITIONS)
        clients = _busy_clients(history, server.bootstrap, seed)
        checked = 0
        for _ in range(kills):
            _wait_for_load(clients)
            time.sleep(chance.uniform(0, 0.25))
            _kill_and_restart(server, figures)
            checked = _check_acknowledged(history, follower, checked)
            read_committed(history, server.bootstrap, GROUP, TOPIC, PARTITIONS)
        for client in clients:
            client.stop()
        follower.read_on()
        Reader(history, server.bootstrap, "from the start", TOPIC, PARTITIONS).read_on()
        read_committed(history, server.bootstrap, GROUP, TOPIC, PARTITIONS)
    check(history.operations)
    figures.acked = len(history.acked())
    assert figures.acked == sum(one.acked for one in clients if isinstance(one, Publisher))
    return figures


def _busy_clients(history: History, bootstrap: str, seed: int) -> list[Publisher | Committer]:
    clients: list[Publisher | Committer] = [
        Publisher(history, bootstrap, f"p{number}", TOPIC, PARTITIONS, seed=seed + number)
        for number in range(PUBLISHERS)
    ]
    clients.append(Committer(history, bootstrap, GROUP, TOPIC, PARTITIONS))
    for client in clients:
        client.start()
    return clients


def _wait_for_load(clients: list[Publisher | Committer]) -> None:
    """Every publisher gets answers again."""
    before = {one: one.acked for one in clients if isinstance(one, Publisher)}
    wait_for(lambda: all(one.acked > count for one, count in before.items()), seconds=60, what="answers to publishers")


def _kill_and_restart(server: ClarionProcess, figures: Figures) -> None:
    server.kill9()
    began = time.monotonic()
    server.start()
    figures.kills += 1
    figures.restart_ms.append((time.monotonic() - began) * 1000)


def _check_acknowledged(history: History, follower: Reader, checked: int) -> int:
    """What had been acknowledged before the restart, and not looked for yet, is read by whoever followed the log."""
    until, acked = history.acked_since(checked)
    follower.read_on()
    for send in acked:
        at = follower.next_offsets[int(send.partition.rpartition("-")[2])]
        assert send.offset < at, f"{send.value} was acknowledged at {send.offset}; the log ends at {at}"
    return until
