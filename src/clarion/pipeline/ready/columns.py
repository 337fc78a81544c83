"""Messages as the rows of an archive: raw bytes as they were, or the fields of their JSON beside where they came from.

Raw     key, value, headers, topic, topic_id, partition, offset, timestamp, timestampType, and `date` (and `hour`)
Typed   the JSON's fields, then the same with an underscore before each; `_value` with the bytes unless told otherwise
        (they hold the fields that nobody declared), and `_unparsed` with those of a value that is no such JSON;
        `_is_empty` tells a message without value from one without fields

Times are UTC whatever the session's time zone says: a row's folder must not depend on who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from clarion.pipeline.definition import DefinitionError
from clarion.pipeline.json_values import is_one_object, parser_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

BY: Final = {"date": ("date",), "hour": ("date", "hour"), "none": ()}
ORIGIN: Final = ("topic", "topic_id", "partition", "offset")
_BESIDE: Final = ("key", "headers", *ORIGIN, "timestamp", "timestampType")
_OWN: Final = frozenset(f"_{each}" for each in (*_BESIDE, "value", "unparsed", "is_empty", "date", "hour"))
_CORRUPT: Final = "__corrupt"
_ROW: Final = "__row"
# 1 January of the year 1, and the last day of 9999: other dates name no folder, and a message with such a time (its own
# column keeps it) must not stop an archive.
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_NOT_IN_A_NAME: Final = re.compile(r"[ ,;{}()\n\t=.]")


def raw_rows(messages: DataFrame, by: str) -> DataFrame:
    beside = [each for each in _BESIDE if each != "key"]
    return with_empty_headers(messages).select("key", "value", *beside, *_time_columns("", by))


def with_empty_headers(messages: DataFrame) -> DataFrame:
    """No headers as an empty list. Spark's way of rows to Python takes quadratic time over lists that are null: ten
    thousand of them in a batch cost ten microseconds each (measured with 4.3.0)."""
    from pyspark.sql import functions as F

    nothing = F.array().cast("array<struct<key: string, value: binary>>")
    return messages.withColumn("headers", F.coalesce("headers", nothing))


def typed_rows(messages: DataFrame, schema: StructType, by: str, *, keeps_value: bool) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    check_fields(schema.names)
    wanted = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    options = parser_options(_CORRUPT)
    parsed = with_empty_headers(messages).withColumn(_ROW, F.from_json(F.col("value").cast("string"), wanted, options))
    is_good = F.col(_ROW).isNotNull() & F.col(f"{_ROW}.{_CORRUPT}").isNull() & is_one_object(F.col("value"))
    is_bad = F.col("value").isNotNull() & ~is_good
    columns = [F.col(f"{_ROW}.`{each}`").alias(column_of(each)) for each in schema.names]
    columns += [F.col(each).alias(f"_{each}") for each in _BESIDE]
    columns.append(F.when(is_bad, F.col("value")).alias("_unparsed"))
    columns.append(F.col("value").isNull().alias("_is_empty"))
    if keeps_value:
        columns.append(F.col("value").alias("_value"))
    return parsed.select(*columns, *_time_columns("_", by))


def check_fields(names: Sequence[str]) -> None:
    """Each must be a column of its own, beside those that say where a message came from."""
    columns: dict[str, str] = {}
    for each in names:
        column = column_of(each).lower()
        if column in {own.lower() for own in _OWN}:
            raise DefinitionError(
                f"the JSON's field {each} has the name of a column that says where a message came from"
            )
        if column in columns:
            raise DefinitionError(
                f"the JSON's fields {columns[column]} and {each} would be the same column of the table"
            )
        columns[column] = each


def partition_columns(by: str, *, typed: bool) -> tuple[str, ...]:
    if by not in BY:
        raise DefinitionError(f"by={by!r}: an archive is partitioned by {', '.join(BY)}")
    return tuple(f"_{each}" if typed else each for each in BY[by])


def origin_columns(*, typed: bool) -> str:
    return ",".join(f"_{each}" if typed else each for each in ORIGIN)


def is_typed(names: Sequence[str]) -> bool:
    """Whether a table is a typed archive; DefinitionError if it is none at all."""
    for prefix in ("", "_"):
        if all(f"{prefix}{each}" in names for each in (*ORIGIN, "timestamp")):
            return prefix == "_"
    raise DefinitionError(f"this table is no archive of a topic; it has the columns {', '.join(names)}")


def fields_of_archive(schema: StructType) -> StructType:
    """Of a typed archive's columns, those that are the JSON's: an underscore alone (`_id`) does not make one ours."""
    from pyspark.sql.types import StructType

    return StructType([each for each in schema.fields if each.name not in _OWN])


def _time_columns(prefix: str, by: str) -> list[Column]:
    from pyspark.sql import functions as F

    seconds = F.unix_seconds("timestamp")
    days = F.least(F.greatest(F.floor(seconds / 86_400), F.lit(_FIRST_DAY)), F.lit(_LAST_DAY))
    found = {
        "date": F.date_from_unix_date(days.cast("int")),
        "hour": F.pmod(F.floor(seconds / 3_600), F.lit(24)).cast("int"),
    }
    return [found[each].alias(prefix + each) for each in BY[by]]


def column_of(name: str) -> str:
    """What a table calls a field of the JSON: without the letters that a table's column cannot have."""
    return _NOT_IN_A_NAME.sub("_", name)
