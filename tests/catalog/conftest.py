"""Every story of the catalog is told on SQLite and on PostgreSQL."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """A place for a catalog that nobody has used yet, as often as it is called."""
    if request.param == "postgresql":
        server: postgres.PostgresProcess = request.getfixturevalue("postgres_server")
        return server.new_database
    numbers = iter(range(1_000))
    return lambda: str(tmp_path / f"catalog-{next(numbers)}.db")


@pytest.fixture
def place(new_place: Callable[[], str]) -> str:
    return new_place()
