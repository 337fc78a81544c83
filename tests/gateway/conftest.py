"""One broker for a whole file: most of a test's time would be the loading of FastAPI."""

from collections.abc import Iterator
from itertools import count

import pytest

from clarion.testing import EmbeddedBroker, embedded
from tests.gateway.asking import Asker

_numbers = count()


@pytest.fixture(scope="module")
def http_broker() -> Iterator[EmbeddedBroker]:
    with embedded(metrics_port=0, clarion_http_share=1.0, auto_create_topics_enable=False) as broker:
        yield broker


@pytest.fixture
def api(http_broker: EmbeddedBroker) -> Iterator[Asker]:
    asker = Asker(http_broker.http_url)
    yield asker
    asker.close()


@pytest.fixture
def topic(http_broker: EmbeddedBroker) -> str:
    """With three partitions, nobody else's."""
    name = f"topic-{next(_numbers)}"
    http_broker.create_topic(name, partitions=3)
    return name
