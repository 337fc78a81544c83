"""A topic's columns in Spark's words; `rows` has the same in Arrow's."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

MESSAGE = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
HEADER = StructType().add("key", StringType()).add("value", BinaryType())


def message_schema(*, with_headers: bool, with_topic_id: bool) -> StructType:
    fields = StructType(list(MESSAGE.fields))
    if with_headers:
        fields = fields.add("headers", ArrayType(HEADER))
    return fields.add("topic_id", StringType()) if with_topic_id else fields
