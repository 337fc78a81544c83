"""With a safety rule switched off the simulation finds a violation, and soon: else it would test nothing."""

from __future__ import annotations

import random

import pytest

from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.scenario import Swarm, run

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEEDS_MAX = 60
FIRST_SEED = 1000


def seeds_until_found(mutant: Mutant) -> int | None:
    for count in range(SEEDS_MAX):
        seed = FIRST_SEED + count
        swarm = mutant.swarm(Swarm.draw(random.Random(seed)))
        with mutant.switched_on():
            report = run(seed, swarm=swarm)
        if report.violations:
            print(f"{mutant.name}: seed {count + 1}: {report.violations[0]}")
            return count + 1
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_broken_rule_is_found_out(mutant: Mutant):
    assert seeds_until_found(mutant) is not None, f"nobody noticed: {mutant.rule}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_in_the_same_moods_the_real_broker_breaks_nothing(mutant: Mutant):
    report = run(FIRST_SEED, swarm=mutant.swarm(Swarm.draw(random.Random(FIRST_SEED))))
    assert report.is_clean, report
