"""Short words for DataFrames over topics."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

PATIENCE_S = 90


def batch(spark: SparkSession, bootstrap: str, **options: Any) -> DataFrame:
    return spark.read.format("clarion").options(**{"bootstrap.servers": bootstrap, **options}).load()


def stream(spark: SparkSession, bootstrap: str, **options: Any) -> DataFrame:
    return spark.readStream.format("clarion").options(**{"bootstrap.servers": bootstrap, **options}).load()


def save(frame: DataFrame, bootstrap: str, **options: Any) -> None:
    frame.write.format("clarion").options(**{"bootstrap.servers": bootstrap, **options}).mode("append").save()


def into_topic(frame: DataFrame, bootstrap: str, topic: str, checkpoint: str, *, now: bool = False) -> StreamingQuery:
    """A running query that copies keys and values; with `now` only what is there."""
    writer = frame.select("key", "value").writeStream.format("clarion").option("bootstrap.servers", bootstrap)
    writer = writer.option("topic", topic).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if now else writer).start()


def finished(query: StreamingQuery) -> StreamingQuery:
    """Wait for the end of a query that ends by itself."""
    assert query.awaitTermination(PATIENCE_S), f"still running: {query.status}"
    return query


def values(frame: DataFrame) -> list[bytes]:
    rows = frame.select("partition", "offset", "value").collect()
    return [bytes(row.value) for row in sorted(rows)]
