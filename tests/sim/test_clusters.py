"""Lives of whole clusters under a swarm of faults: every seed is another one, and none may break a promise."""

from __future__ import annotations

import random

import pytest

from tests.sim.cluster import ClusterSwarm, run_cluster

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]

CI_SEEDS = 8
FRESH_SEEDS = 100


@pytest.mark.parametrize("seed", range(CI_SEEDS))
def test_no_seed_breaks_a_promise_of_a_cluster(seed: int):
    """Always the same, so that a change shows; `make sim ARGS=--cluster` lives those that nobody has seen before."""
    report = run_cluster(seed, swarm=ClusterSwarm.draw(random.Random(seed)))  # queues have a test of their own
    assert report.is_clean, report


@pytest.mark.campaign
def test_nor_does_one_that_nobody_has_seen_before():
    fresh = random.SystemRandom().randrange(1 << 30)
    for seed in range(fresh, fresh + FRESH_SEEDS):
        report = run_cluster(seed)
        assert report.is_clean, report


def test_the_same_seed_lives_the_same_life_again():
    first, second = run_cluster(1), run_cluster(1)
    assert (first.digest, first.events) == (second.digest, second.events)
