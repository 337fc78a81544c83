"""`table(path)`: a lake table as a pipeline's source or target. How rows get into files is the lake's business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clarion.pipeline.definition import DefinitionError, MicroBatch, QuerySettings, RunSettings, texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from clarion.pipeline.lake.location import Location

_OUTPUT_MODES = {"append": ("append",), "overwrite": ("complete",), "merge": ("append", "update")}


@dataclass(frozen=True, slots=True)
class TableReference:
    """Where a table lies and how rows get into it."""

    path: str
    partition_by: tuple[str, ...] = ()
    mode: str = "append"  # append, overwrite (the whole table with every batch) or merge (the newest row per key)
    key: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        return f"table {self.path}"

    @property
    def location(self) -> Location:
        """A path is meant from where the driver runs; tasks and commits run elsewhere."""
        from clarion.pipeline.lake.location import locate

        return locate(self.path, self.options)

    @property
    def output_modes(self) -> tuple[str, ...]:
        """In update mode Spark gives every key once a batch. Rows as they come may have a key several times, so that a
        merge must be told which of them is the newest."""
        if self.mode == "merge" and not self.has_order:
            return ("update",)
        return _OUTPUT_MODES[self.mode]

    @property
    def has_order(self) -> bool:
        return any(name.lower() == "orderby" for name in self.options)

    @property
    def keeps_order(self) -> bool:
        return False

    def missing(self, run: RunSettings) -> str | None:
        from clarion.pipeline.lake.location import is_table

        return None if is_table(self.location) else f"there is no table at {self.path}"

    def load(self, spark: SparkSession, run: RunSettings, *, streaming: bool) -> DataFrame:
        """For look-ups and joins: a stream reads it anew with every micro-batch."""
        from clarion.pipeline.lake.reading import look_up, read_table

        return look_up(spark, self.location) if streaming else read_table(spark, self.location)

    def prepare(self, spark: SparkSession, run: RunSettings) -> None:
        """The first write makes the table, with the schema that the rows have."""

    def start(self, df: DataFrame, run: RunSettings, query: QuerySettings) -> StreamingQuery:
        from clarion.pipeline import lake

        return lake.stream_table(df, self, query)

    def write(self, df: DataFrame, run: RunSettings, batch: MicroBatch | None = None) -> None:
        from clarion.pipeline import lake

        lake.write_table(df, self, batch)


def table(
    path: str,
    *,
    partition_by: str | Sequence[str] = (),
    mode: str = "append",
    key: str | Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> TableReference:
    """A lake table by its folder: Delta, which Spark, DuckDB, Polars and pandas read.

    partition_by  columns whose values become folders
    mode          `append`, `overwrite` (for mode="complete") or `merge`: the newest row per `key` replaces the older;
                  options={"orderBy": "ts"} says which is the newest, {"deleteWhen": "value IS NULL"} what deletes
    """
    made = TableReference(str(path), _names(partition_by), mode, _names(key), texts(options))
    _check(made)
    return made


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _check(made: TableReference) -> None:
    where = f"table({made.path!r})"
    if not made.path.strip():
        raise DefinitionError("table(''): give the table's folder")
    if made.mode not in _OUTPUT_MODES:
        raise DefinitionError(f"{where}: mode={made.mode!r}; choose from {', '.join(_OUTPUT_MODES)}")
    if made.mode == "merge" and not made.key:
        raise DefinitionError(f"{where}: mode='merge' needs key=…, the columns that say which row is replaced")
    for name in ("orderBy", "deleteWhen"):
        if made.mode != "merge" and name.lower() in {each.lower() for each in made.options}:
            raise DefinitionError(f"{where}: option {name} is for mode='merge' only")
    if made.mode == "merge" and "sourcecolumns" in {each.lower() for each in made.options}:
        raise DefinitionError(f"{where}: option sourceColumns is for tables that keep every row, not for mode='merge'")
    if made.key and made.mode != "merge":
        raise DefinitionError(f"{where}: key= is for mode='merge' only")
    if "://" in made.path or made.options:
        _check_options(made)


def _check_options(made: TableReference) -> None:
    """An object store that nobody can write to, an option that no table has: told here, and not when a broker and
    Spark are there."""
    from clarion.pipeline.lake.errors import LakeError
    from clarion.pipeline.lake.options import read_options

    options = {name: text for name, text in made.options.items() if name.lower() not in ("orderby", "deletewhen")}
    try:
        read_options({**options, "path": made.path})
    except LakeError as error:
        raise DefinitionError(f"table: {error}") from error
