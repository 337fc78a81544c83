"""Queries and readers that never outlive their test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.stream_reader import StreamReader
from tests.pipeline.connector.stream_readers import Readers


@pytest.fixture
def checkpoint(tmp_path: Path, spark: SparkSession) -> Iterator[str]:
    """Where a query keeps its progress; whatever still runs when the test ends is stopped."""
    yield str(tmp_path / "checkpoint")
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def readers(bootstrap: str) -> Iterator[Readers]:
    """Makes readers; all of them are closed at the end."""
    made: list[StreamReader] = []

    def make(topic: str, *, where: str = bootstrap, **options: str) -> StreamReader:
        subscription = {} if {"subscribePattern", "assign"} & options.keys() else {"subscribe": topic}
        given = {"bootstrap.servers": where, **subscription, **options}
        reader = StreamReader(source_settings({name.lower(): value for name, value in given.items()}))
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()
