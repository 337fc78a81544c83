"""Messages as rows and rows as messages: pure plans over DataFrames, nothing runs here.

A value that does not fit the declared JSON is bad: no value, not UTF-8, not one JSON object, a field of another
type, or a field declared `not null` that is missing. Bad rows are counted by an observation (`BAD_ROWS`), which
every progress report carries, and leave the plan as `on_bad` says. The observation stands between parsing and
filtering on purpose: Spark would otherwise push the filter below the projection and parse everything twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion.pipeline.definition import DefinitionError, RunSettings
from clarion.pipeline.json_values import is_one_object, parser_options
from clarion.pipeline.progress import BAD_ROWS, ROWS_IN
from clarion.pipeline.queries import observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from clarion.pipeline.topic_reference import TopicReference

METADATA = "_message"
_ORIGIN = ("key", "topic", "partition", "offset", "timestamp")
_ROW, _BAD, _CORRUPT = "__row", "__bad", "__corrupt"


def rows_of(messages: DataFrame, topic: TopicReference, run: RunSettings) -> DataFrame:
    """The connector's columns as the rows that `topic(…)` promised."""
    from pyspark.sql import functions as F

    if not messages.isStreaming:
        messages = observed(messages, ROWS_IN, F.count(F.lit(1)), run)
    if topic.json is None:
        return _named(messages, topic)
    schema = schema_of(topic)
    good = _without_bad(_parsed(messages, schema, topic), schema, topic, run)
    return good.select(*_columns(schema, topic))


def messages_of(rows: DataFrame, topic: TopicReference, run: RunSettings) -> DataFrame:
    """Rows as `key`, `value` and whatever else of a message was named, or raw messages still have."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    for name in filter(None, topic.columns.values()):
        if name not in rows.columns:
            raise DefinitionError(f"{topic.description}: there is no column {name!r}, only {', '.join(rows.columns)}")
    is_raw = topic.value is None and isinstance(_kind(rows, "value"), BinaryType)
    key = topic.key or ("key" if is_raw and "key" in rows.columns else None)
    value = "value" if is_raw else topic.value
    columns = [
        (_as_bytes(rows, key) if key else F.lit(None).cast("binary")).alias("key"),
        (_as_bytes(rows, value) if value else _whole(rows, topic)).alias("value"),
        *_headers(rows, topic, is_raw),
        *_timestamp(rows, topic, is_raw),
    ]
    if topic.partition:
        columns.append(_partition(rows, topic.partition))
    if topic.by:
        columns.append(_destination(topic.by, run))
    return rows.select(*columns)


def _whole(rows: DataFrame, topic: TopicReference) -> Column:
    """All columns as one JSON object, but for headers and what says where the message goes."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType

    from clarion.pipeline.source.data_source import HEADER

    apart = {topic.headers, topic.partition, topic.by}
    if _kind(rows, "headers") == ArrayType(HEADER):  # they came along for the case that messages are copied
        apart.add("headers")
    fields = [F.col(_quoted(each)) for each in rows.columns if each not in apart]
    return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).cast("binary")


def _headers(rows: DataFrame, topic: TopicReference, is_raw: bool) -> list[Column]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import MapType

    name = topic.headers or ("headers" if is_raw and "headers" in rows.columns else None)
    if name is None:
        return []
    column = F.col(_quoted(name))
    if isinstance(_kind(rows, name), MapType):
        column = F.map_entries(column.cast("map<string,binary>"))
    return [column.cast("array<struct<key:string,value:binary>>").alias("headers")]


def _timestamp(rows: DataFrame, topic: TopicReference, is_raw: bool) -> list[Column]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import TimestampNTZType, TimestampType

    name = topic.timestamp or ("timestamp" if is_raw else "")
    kind = _kind(rows, name)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return [F.col(_quoted(name)).alias("timestamp")]
    if topic.timestamp and kind is not None:
        raise DefinitionError(f"{topic.description}: timestamp={name!r} is {kind.simpleString()}, not a timestamp")
    return []


def _partition(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegralType

    kind = _kind(rows, name)
    if kind is not None and not isinstance(kind, IntegralType):
        raise DefinitionError(f"partition={name!r} is {kind.simpleString()}, not a whole number")
    return F.col(_quoted(name)).cast("int").alias("partition")


def _destination(name: str, run: RunSettings) -> Column:
    """The topic of each row; never one that the pipeline reads, since that would not end."""
    from pyspark.sql import functions as F

    column = F.col(_quoted(name)).cast("string")
    is_source = F.lit(False)
    for each in run.reads:
        is_source = is_source | column.isin(list(getattr(each, "names", ())))
        if pattern := getattr(each, "pattern", None):
            is_source = is_source | column.rlike(f"^(?:{pattern})$")
    refused = F.raise_error(F.concat(F.lit("a row names topic "), column, F.lit(", which the pipeline reads")))
    return F.when(is_source, refused.cast("string")).otherwise(column).alias("topic")


def _kind(rows: DataFrame, name: str) -> DataType | None:
    return rows.schema[name].dataType if name in rows.columns else None


def schema_of(topic: TopicReference) -> StructType:
    """The declared fields; DefinitionError where Spark does not understand them."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    assert topic.json is not None
    try:
        schema = StructType.fromDDL(topic.json)
    except PySparkException as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise DefinitionError(f"{topic.description}: json={topic.json!r} is not a valid field list: {first}") from error
    assert isinstance(schema, StructType)
    return schema


def _named(messages: DataFrame, topic: TopicReference) -> DataFrame:
    """The connector's columns under the names that were asked for; key and value as text."""
    from pyspark.sql import functions as F

    return messages.select(
        *(
            _as_asked(each).alias(name) if (name := topic.columns.get(each)) else F.col(each)
            for each in messages.columns
        )
    )


def _as_asked(part: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(part).cast("string") if part in ("key", "value") else F.col(part)


def _parsed(messages: DataFrame, schema: StructType, topic: TopicReference) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    nullable = [StructField(each.name, each.dataType) for each in schema.fields]
    wanted = StructType([*nullable, StructField(_CORRUPT, StringType())])
    options = parser_options(_CORRUPT, topic.json_options)
    return messages.withColumn(_ROW, F.from_json(F.col("value").cast("string"), wanted, options))


def _without_bad(parsed: DataFrame, schema: StructType, topic: TopicReference, run: RunSettings) -> DataFrame:
    from pyspark.sql import functions as F

    fields = F.array_compact(
        F.array(*(F.when(F.col(f"{_ROW}.{_quoted(each)}").isNull(), F.lit(each)) for each in schema.names))
    )
    evidence = F.struct(*_ORIGIN, "value", fields.alias("fields"))
    marked = parsed.withColumn(_BAD, F.when(_is_bad(schema, topic), evidence))
    counted = observed(marked, BAD_ROWS, F.count(_BAD), run)
    if topic.on_bad == "drop":
        return counted.where(F.col(_BAD).isNull())
    if topic.on_bad == "fail":
        return counted.where(F.when(F.col(_BAD).isNotNull(), _failure()).otherwise(F.lit(True)))
    from pyspark.sql.pandas.functions import arrow_udf

    from clarion.pipeline.quarantine import keeper

    name = topic.quarantine_for(run.name)
    assert name is not None
    required = [each.name for each in schema.fields if not each.nullable]
    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    keep = keeper(topic.connection(run), name, run.name, types, required)
    # Not deterministic, so that Spark does not filter rows by the function's own conditions before we have seen them.
    is_kept = arrow_udf(keep, "boolean").asNondeterministic()  # type: ignore[call-overload]
    return counted.where(is_kept(F.col(_BAD)))


def _is_bad(schema: StructType, topic: TopicReference) -> Column:
    from pyspark.sql import functions as F

    bad = (
        F.col(_ROW).isNull()
        | F.col(f"{_ROW}.{_CORRUPT}").isNotNull()
        | ~is_one_object(F.col("value"), topic.json_options)
    )
    for each in schema.fields:
        if not each.nullable:
            bad = bad | F.col(f"{_ROW}.{_quoted(each.name)}").isNull()
    return bad


def _failure() -> Column:
    from pyspark.sql import functions as F

    place = [F.col(f"{_BAD}.{each}").cast("string") for each in ("topic", "partition", "offset")]
    message = F.format_string("bad record in %s-%s at offset %s: it does not fit the declared JSON", *place)
    return F.raise_error(message).cast("boolean")


def _columns(schema: StructType, topic: TopicReference) -> list[Column]:
    from pyspark.sql import functions as F

    columns = [F.col(f"{_ROW}.{_quoted(each)}").alias(each) for each in schema.names]
    columns += [
        _as_asked(part).alias(name) for part, name in topic.columns.items() if name and name not in schema.names
    ]
    if topic.metadata:
        columns.append(F.struct(*_ORIGIN).alias(METADATA))
    return columns


def _as_bytes(rows: DataFrame, name: str) -> Column:
    """Bytes and text as they are, a struct or list as JSON, anything else as text."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

    column, kind = F.col(_quoted(name)), rows.schema[name].dataType
    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, ArrayType | MapType | StructType | VariantType):
        return F.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
