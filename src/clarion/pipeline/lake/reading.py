"""Tables as DataFrames: through Spark's own parquet reader in a folder, through pyarrow in an object store.

Spark needs jars to read an object store; pyarrow, which every executor has, needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from clarion.pipeline.lake.delta import exists, open_table, paths_of, schema_of
from clarion.pipeline.lake.location import Location, locate

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from clarion.pipeline.table_reference import TableReference

# What Spark sends to every executor by itself where it knows how large a table is.
BROADCAST_BYTES_MAX: Final = 10 << 20


def read_table(spark: SparkSession, where: str | Location | TableReference, *, version: int | None = None) -> DataFrame:
    """A table's rows. The DataFrame is a snapshot: commits after this call are not in it."""
    place = locate(where) if isinstance(where, str | Location) else where.location
    table = open_table(place)
    if version is not None:
        table.load_as_version(version)
    return _in_a_folder(spark, place, table) if place.is_local else _through_pyarrow(spark, place, table.version())


def look_up(spark: SparkSession, where: str | Location) -> DataFrame:
    """A table's rows as they are whenever they are read: by every micro-batch of a query anew."""
    from pyspark.sql import functions as F

    place = locate(where)
    found = _through_pyarrow(spark, place, None)
    size = sum(pa.table(open_table(place).get_add_actions())["size_bytes"].to_pylist())
    return F.broadcast(found) if size <= BROADCAST_BYTES_MAX else found


def schema_at(where: str | Location) -> pa.Schema | None:
    """A table's columns; None where there is no table."""
    place = locate(where)
    return schema_of(open_table(place)) if exists(place) else None


def _in_a_folder(spark: SparkSession, place: Location, table: DeltaTable) -> DataFrame:
    schema = from_arrow_schema(schema_of(table))
    # Hadoop takes a path's letters as they are: nothing is percent-encoded here.
    uris = [f"file://{place}/{each}" for each in sorted(paths_of(table))]
    if not uris:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).option("basePath", f"file://{place}").parquet(*uris)
    return frame.select(*[_quoted(name) for name in schema.names])  # Spark puts partition columns last


def _through_pyarrow(spark: SparkSession, place: Location, version: int | None) -> DataFrame:
    from clarion.pipeline.lake.sink import FORMAT

    which = {"refresh": "true"} if version is None else {"version": str(version)}
    return spark.read.format(FORMAT).options(**dict(place.options), **which).load(place.uri)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
