"""Lives of whole clusters under a swarm of faults: every seed is another one, and none may break a promise."""

from __future__ import annotations

import random

import pytest

from tests.sim.cluster import ClusterSwarm, run_cluster
from tests.sim.group_members import Owners

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


def test_members_go_on_while_one_of_them_waits_for_what_another_gives_up():
    """Whoever fell silent then was given up for dead, and what he held was given to somebody else."""
    owners = Owners({0: "a", 1: "a", 2: "b"}, {"a": 6, "b": 7})
    assert not owners.are_settled(3), "b may be waiting for what a has not given up yet"
    owners.epochs["a"] = 7
    assert owners.are_settled(3)
    owners.give_up("a", kept=frozenset({0}))
    assert not owners.are_settled(3), "b has not heard yet that it has it"
    owners.epochs = {"a": 0, "b": 0}
    assert not owners.are_settled(2)
