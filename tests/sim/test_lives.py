"""Lives of a broker under a swarm of faults: every seed is another one, and none may break a promise.

`CLARION_SIM_SEED=17` lives one of them again, and prints what happened in it.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.sim.campaign import Tally
from tests.sim.scenario import run

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CI_SEEDS = 32
CAMPAIGN_SECONDS = 1200


def test_no_seed_breaks_a_promise():
    """Some that are always the same, so that a change shows, and some that nobody has seen before."""
    fresh = random.SystemRandom().randrange(1 << 30)
    seeds = [*range(CI_SEEDS // 2), *range(fresh, fresh + CI_SEEDS // 2)]
    for seed in seeds:
        report = run(seed)
        assert report.is_clean, report


@pytest.mark.skipif("CLARION_SIM_SEED" not in os.environ, reason="CLARION_SIM_SEED names the life to look at")
def test_one_life_in_full():
    report = run(int(os.environ["CLARION_SIM_SEED"]), keep_lines=True)
    print("\n".join(report.lines or []))
    print(report)
    assert report.is_clean


@pytest.mark.campaign
@pytest.mark.timeout(CAMPAIGN_SECONDS + 300)
def test_twenty_minutes_of_lives(capsys: pytest.CaptureFixture[str]):
    """`CLARION_SIM_SECONDS` sets another time; `make sim` counts seeds instead, and can be stopped."""
    first = random.SystemRandom().randrange(1 << 30)
    deadline = time.monotonic() + float(os.environ.get("CLARION_SIM_SECONDS", CAMPAIGN_SECONDS))
    tally, broken = Tally(), []
    while time.monotonic() < deadline:
        report = run(first + tally.seeds)
        tally.add(report)
        if not report.is_clean:
            broken.append(report)
    with capsys.disabled():
        print(f"\nfrom {first}: {tally}")
    assert not broken, "\n".join(map(str, broken[:5]))
