"""The stores that the conformance suite runs over. Whoever writes another one adds it here."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from clarion.cluster.coordination import CoordinationStore
from clarion.cluster.etcd_client import EtcdAddress
from clarion.cluster.etcd_store import EtcdStore
from clarion.cluster.local_store import LocalStore
from clarion.cluster.simulated_store import SimulatedService, SimulatedStore
from clarion.cluster.sqlite_store import SqliteStore

OpenStore = Callable[[], Awaitable[CoordinationStore]]


def no_failure(error: Exception) -> None:
    raise AssertionError(f"the store failed: {error}")


def sqlite_in(folder: Path) -> OpenStore:
    async def open_store() -> CoordinationStore:
        return await SqliteStore.open(str(folder / "registry.db"), no_failure)

    return open_store


def local_in(folder: Path) -> OpenStore:
    """The first one that is opened is the owner, later ones ask it."""

    async def open_store() -> CoordinationStore:
        return await LocalStore.open(str(folder), no_failure)

    return open_store


def simulated() -> OpenStore:
    service = SimulatedService()

    async def open_store() -> CoordinationStore:
        service.restart()
        return SimulatedStore(service, random.Random(0))

    return open_store


def etcd_at(*endpoints: tuple[str, int]) -> OpenStore:
    prefix = f"{uuid.uuid4()}/"  # one server for all tests, a store of its own for each

    async def open_store() -> CoordinationStore:
        return await EtcdStore.open(EtcdAddress(endpoints), prefix, poll_seconds=0.3)

    return open_store
