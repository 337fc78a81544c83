"""One connection and one topic per story."""

from collections.abc import Iterator

import pytest

from tests.raw_client import RawClient
from tests.traps.words import create_topic


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawClient]:
    with RawClient(bootstrap) as client:
        yield client


@pytest.fixture
def topic(raw: RawClient, unique: str) -> str:
    create_topic(raw, unique)
    return unique
