"""One broker under attack for each module, checked after every test."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.conftest import IS_FRESH
from tests.fuzz.neighbour import Target


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = Target(tmp_path_factory.mktemp("besieged") / "data")
    yield target
    target.close()


@pytest.fixture
def target(besieged: Target) -> Iterator[Target]:
    """The broker; whatever the test does to it, it must be unharmed afterwards."""
    before = besieged.vitals()
    besieged.canary.check()
    yield besieged
    print(besieged.check_unharmed(before))


@pytest.fixture
def chance() -> random.Random:
    drawn = random.SystemRandom().randrange(1 << 32) if IS_FRESH else 730039737
    seed = int(os.environ.get("CLARION_FUZZ_SEED") or drawn)
    print(f"CLARION_FUZZ_SEED={seed}")
    return random.Random(seed)
