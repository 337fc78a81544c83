"""Which client a scenario runs with, and at which broker."""

from collections.abc import Iterator

import pytest

from tests.clients.adapters import CLIENTS, Confluent
from tests.clients.adapters.model import Client


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`client`, `writer`, `reader`: every client that can do what the scenario's `needs` mark names."""
    mark = metafunc.definition.get_closest_marker("needs")
    needs = set(mark.args) if mark else set()
    able = [client for client in CLIENTS if needs <= client.can]
    for role in ("client", "writer", "reader"):
        if role in metafunc.fixturenames:
            metafunc.parametrize(role, able, ids=[client.name for client in able], indirect=True, scope="session")


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Client]:
    yield from _connected(request.param, bootstrap)


@pytest.fixture(scope="session")
def writer(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Client]:
    yield from _connected(request.param, bootstrap)


@pytest.fixture(scope="session")
def reader(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Client]:
    yield from _connected(request.param, bootstrap)


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Client:
    """Prepares topics for scenarios that are not about admin calls, and for clients that have none."""
    return Confluent(bootstrap)


@pytest.fixture
def topic(unique: str, admin: Client) -> str:
    """A topic of one partition."""
    admin.create_topic(unique)
    return unique


def _connected(kind: type[Client], bootstrap: str) -> Iterator[Client]:
    if reason := kind.why_absent():
        pytest.skip(reason)
    client = kind(bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="session")
def every_reader(bootstrap: str) -> Iterator[list[Client]]:
    readers = [kind(bootstrap) for kind in CLIENTS if not kind.why_absent()]
    yield readers
    for reader in readers:
        reader.close()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*abilities): run only with clients that can do all of this")
