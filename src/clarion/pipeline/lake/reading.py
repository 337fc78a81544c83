"""Tables as DataFrames: Spark's own parquet reader over the files that the table mentions now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from clarion.pipeline.lake.delta import exists, open_table, paths_of, schema_of
from clarion.pipeline.lake.options import local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


def read_table(spark: SparkSession, path: str, *, version: int | None = None) -> DataFrame:
    """A table's rows. The DataFrame is a snapshot: commits after this call are not in it."""
    path = local_path(path)
    table = open_table(path)
    if version is not None:
        table.load_as_version(version)
    return snapshot(spark, path, table)


def snapshot(spark: SparkSession, path: str, table: DeltaTable) -> DataFrame:
    """The rows of a table that is open already."""
    schema = from_arrow_schema(schema_of(table))
    # Hadoop takes a path's letters as they are: nothing is percent-encoded here.
    uris = [f"file://{os.path.join(path, each)}" for each in sorted(paths_of(table))]
    if not uris:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).option("basePath", f"file://{path}").parquet(*uris)
    return frame.select(*[_quoted(name) for name in schema.names])  # Spark puts partition columns last


def schema_at(path: str) -> pa.Schema | None:
    """A table's columns; None where there is no table."""
    path = local_path(path)
    return schema_of(open_table(path)) if exists(path) else None


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
