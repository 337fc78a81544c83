"""The log of a partition, on a real disk; a file's stories may want it with a policy of their own, its `POLICY`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.log.log import Log
from tests.log.partitions import DEFAULTS, open_log


@pytest.fixture
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path / "t-0", getattr(request.module, "POLICY", DEFAULTS))
    yield log
    log.abandon()
