"""What is compiled lives the same lives: the trace of a seed is the same to the last byte, compiled or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clarion import compiled
from tests.sim.cluster import run_cluster
from tests.sim.scenario import run

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ROOT = Path(__file__).parents[2]
SEED = 100
LIVES = f"""
from clarion import compiled
compiled.choose(is_command=True)
from tests.sim.cluster import run_cluster
from tests.sim.scenario import run
print(f"{{compiled.in_words()}}:", run({SEED}).digest, run_cluster({SEED}).digest)
"""


def test_a_seed_lives_the_same_life_compiled():
    done = subprocess.run(
        [sys.executable, "-c", LIVES],
        cwd=ROOT,
        env={**os.environ, compiled.VARIABLE: "", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    what, _, digests = done.stdout.strip().rpartition(": ")
    if what == "not compiled":
        pytest.skip("nothing is compiled from the sources as they are: make compile")
    assert digests.split() == [run(SEED).digest, run_cluster(SEED).digest]
