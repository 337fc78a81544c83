"""For every test a broker of its own, which may be killed, frozen, emptied."""

import pytest

from tests.pipeline.faults.scene import Scene
from tests.servers import ClarionProcess

# Retention looks often, so that a test does not have to wait for it.
IMPATIENT = {"CLARION_RETENTION_CHECK_SECONDS": "0.1"}


@pytest.fixture
def broker(tmp_path):
    with ClarionProcess(tmp_path / "broker" / "data", durability="page-cache", env=IMPATIENT) as process:
        yield process


@pytest.fixture
def scene(broker, tmp_path, request):
    return Scene(broker, tmp_path, lambda: request.getfixturevalue("spark"))
