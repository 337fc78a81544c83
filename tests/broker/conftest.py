"""The broker under test runs on the loop it is made for, on a disk in memory: most tests wait for flushes else."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from clarion.testing.clock import ShiftedClock

MEMORY = "/dev/shm"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="clarion-test-", dir=MEMORY if os.path.isdir(MEMORY) else None)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()
