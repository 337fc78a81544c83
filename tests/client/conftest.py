"""One broker for the stories of the Python client, and a topic of its own for each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.testing import EmbeddedBroker, embedded


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(auto_create_topics_enable=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def bus(broker: EmbeddedBroker) -> Iterator[Bus]:
    with clarion.connect(broker.bootstrap) as bus:
        yield bus


@pytest.fixture
def topic(bus: Bus) -> str:
    """With three partitions."""
    return bus.create(f"t-{uuid.uuid4().hex[:8]}", partitions=3).name
