"""One small Spark for all folders: a process has one, whoever asks for it first. It ends with the process."""

import os

import pytest

SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "5",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for Spark is marked so; who starts one in a process of its own says it himself."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark():
    from clarion.pipeline import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # As many tries for a task as by default: some tests kill its worker.
    return session(SMALL, master="local[2,4]", name="clarion-tests")
