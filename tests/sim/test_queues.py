"""Lives with a queue: share consumers that accept, release, reject, renew and vanish, under a swarm of faults."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim.clients import Violation
from tests.sim.cluster import ClusterSwarm, run_cluster
from tests.sim.queue_members import Queue
from tests.sim.scenario import Report, Swarm, run

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]

CI_SEEDS = 4
FRESH_SEEDS = 60
# Nobody but the queue, and those who fill it.
ALONE = {"producers": 1, "owners": 0, "classic_members": 0, "consumer_members": 0, "queue_members": 3}


def of_one_broker(seed: int) -> Report:
    swarm = Swarm.draw(random.Random(seed))
    return run(seed, swarm=replace(swarm, **ALONE, deliveries_max=(5, 50)[seed % 2]))


def of_a_cluster(seed: int) -> Report:
    swarm = ClusterSwarm.draw(random.Random(seed))
    return run_cluster(seed, swarm=replace(swarm, **ALONE, deliveries_max=(5, 50)[seed % 2], partitions=2, brokers=3))


@pytest.mark.parametrize("seed", range(CI_SEEDS))
def test_no_seed_breaks_a_promise_of_a_queue(seed: int) -> None:
    """Always the same, so that a change shows; `make sim` lives those that nobody has seen before."""
    report = of_one_broker(seed)
    assert report.is_clean, report


@pytest.mark.parametrize("seed", range(CI_SEEDS // 2))
def test_no_seed_breaks_a_promise_of_a_queue_in_a_cluster(seed: int) -> None:
    report = of_a_cluster(seed)
    assert report.is_clean, report


def test_a_count_comes_again_only_if_the_member_may_have_given_its_records_back() -> None:
    world: Any = SimpleNamespace(loop=SimpleNamespace(time=lambda: 1.0))
    leader: Any = None
    queue = Queue(world, "g", deliveries_max=5, leader=leader)
    queue.late_closes.add(("late", 0))  # the end of a session that was said to be lost, and ends the next one
    queue.delivered("late", (0, 7), 1, asked_at=0.5)
    queue.delivered("other", (0, 7), 1, asked_at=1.5)
    with pytest.raises(Violation, match=r"for the 1\. time, after it was for the 1\."):
        queue.delivered("other", (0, 7), 1, asked_at=2.5)


@pytest.mark.campaign
def test_nor_does_one_that_nobody_has_seen_before() -> None:
    fresh = random.SystemRandom().randrange(1 << 30)
    for seed in range(fresh, fresh + FRESH_SEEDS):
        for report in (of_one_broker(seed), of_a_cluster(seed)):
            assert report.is_clean, report
