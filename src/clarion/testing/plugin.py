"""The pytest plugin: `clarion_broker` is a real broker for one test, `clarion_session_broker` for all of them.

Loaded by pytest in every project that has Clarion installed, so nothing heavy is imported before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from clarion.testing.embedded import EmbeddedBroker


@pytest.fixture
def clarion_broker() -> Iterator[EmbeddedBroker]:
    """A broker of the test's own, empty, on a free port; gone when the test ends."""
    from clarion.testing import embedded

    with embedded() as broker:
        yield broker


@pytest.fixture(scope="session")
def clarion_session_broker() -> Iterator[EmbeddedBroker]:
    """One broker for the whole run: quicker still; use topics with names of their own."""
    from clarion.testing import embedded

    with embedded() as broker:
        yield broker
