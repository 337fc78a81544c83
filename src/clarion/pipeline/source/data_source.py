"""The format `clarion`, as Spark knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.source.options import source_settings

if TYPE_CHECKING:
    from clarion.pipeline.sink.writer import BatchWriter, StreamWriter

# A topic's columns in Spark's words; `rows` has the same in Arrow's.
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


class ClarionSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "clarion"

    def schema(self) -> StructType:
        """Asked by `load()`, so a wrong option is refused there."""
        settings = source_settings(self.options)
        return message_schema(with_headers=settings.include_headers, with_topic_id=settings.include_topic_id)

    def reader(self, schema: StructType) -> DataSourceReader:
        from clarion.pipeline.source.history import HistoryReader
        from clarion.pipeline.source.reader import BatchReader

        self._check_schema(schema)
        settings = source_settings(self.options)
        return BatchReader(settings) if settings.history is None else HistoryReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from clarion.pipeline.source.stream_reader import StreamReader

        self._check_schema(schema)
        return StreamReader(source_settings(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from clarion.pipeline.sink.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from clarion.pipeline.sink.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError("the columns of a topic are fixed; leave out .schema(…) and select what you need")


def message_schema(*, with_headers: bool, with_topic_id: bool) -> StructType:
    fields = StructType(list(MESSAGE.fields))
    if with_headers:
        fields = fields.add("headers", ArrayType(HEADER))
    return fields.add("topic_id", StringType()) if with_topic_id else fields
