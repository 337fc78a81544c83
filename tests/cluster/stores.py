"""The stores that the conformance suite runs over. Whoever writes another one adds it here."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from clarion.cluster.coordination import CoordinationStore
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore
from clarion.cluster.sqlite_store import SqliteStore

OpenStore = Callable[[], Awaitable[CoordinationStore]]


def no_failure(error: Exception) -> None:
    raise AssertionError(f"the store failed: {error}")


def sqlite_in(folder: Path) -> OpenStore:
    async def open_store() -> CoordinationStore:
        return await SqliteStore.open(str(folder / "registry.db"), no_failure)

    return open_store


def simulated() -> OpenStore:
    service = SimulatedService()

    async def open_store() -> CoordinationStore:
        service.restart()
        return SimulatedStore(service, random.Random(0))

    return open_store
