"""The fields of a topic's JSON, guessed from its first messages.

What a table has decided stays: a restart adds columns that are new, it never changes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from clarion.pipeline.definition import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SAMPLE: Final = 10_000  # messages: enough to meet rare fields, little enough to look at before every start
_CORRUPT: Final = "__corrupt"


def infer(spark: SparkSession, options: Mapping[str, str], known: StructType | None) -> StructType:
    """`options`: of the connector, for the topics. Refuses a topic without a single JSON object, unless it is known."""
    from pyspark.sql import functions as F

    reader = spark.read.format("clarion").options(**options).option("startingOffsets", "earliest")
    values = reader.load().where("value is not null").select(F.col("value").cast("string")).limit(SAMPLE).collect()
    texts = spark.sparkContext.parallelize([row[0] for row in values], 1)
    seen = spark.read.option("columnNameOfCorruptRecord", _CORRUPT).json(texts).schema if values else None
    found = joined(known, None if seen is None else _without_corrupt(seen))
    if not found.fields:
        raise DefinitionError(
            "no JSON object among the topic's first messages: declare its fields, or archive raw bytes"
        )
    return found


def joined(known: StructType | None, seen: StructType | None) -> StructType:
    """The known fields as they are, then those that are new."""
    from pyspark.sql.types import StructType

    fields = [] if known is None else list(known.fields)
    names = {each.name.lower() for each in fields}
    for each in () if seen is None else seen.fields:
        if each.name.lower() not in names:
            names.add(each.name.lower())
            fields.append(each)
    return StructType(fields)


def _without_corrupt(schema: StructType) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([each for each in schema.fields if each.name != _CORRUPT])
