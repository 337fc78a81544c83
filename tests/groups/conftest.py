"""A coordinator without a broker; the topics that a file's stories want are its `TOPICS`, name and partition count."""

from collections.abc import Iterator

import pytest

from tests.groups.driver import Driver


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = Driver()
    if topics := getattr(request.module, "TOPICS", {}):
        driver.set_topics(**topics)
    yield driver
    driver.close()
