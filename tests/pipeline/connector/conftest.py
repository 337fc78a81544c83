"""Queries that never outlive their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def checkpoint(tmp_path: Path, spark: SparkSession) -> Iterator[str]:
    """Where a query keeps its progress; whatever still runs when the test ends is stopped."""
    yield str(tmp_path / "checkpoint")
    for query in spark.streams.active:
        query.stop()
