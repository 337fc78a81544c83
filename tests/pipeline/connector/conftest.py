"""One small Spark for the folder, and queries that never outlive their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clarion.pipeline import session

SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "5",
}


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return session(SMALL, master="local[2,2]", name="clarion-tests")


@pytest.fixture
def checkpoint(tmp_path: Path, spark: SparkSession) -> Iterator[str]:
    """Where a query keeps its progress; whatever still runs when the test ends is stopped."""
    yield str(tmp_path / "checkpoint")
    for query in spark.streams.active:
        query.stop()
