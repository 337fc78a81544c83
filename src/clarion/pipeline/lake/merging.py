"""Rows that replace rows: the newest per key, kept by delta-rs' merge on the driver.

Spark leaves one row per key of a batch, so what crosses the driver is the changes, not the messages. The merge's commit
carries the same application transactions as an append's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from clarion.pipeline.lake.commits import WriterBatch, is_done, is_held
from clarion.pipeline.lake.delta import (
    ATTEMPTS_MAX,
    PAUSE_SECONDS,
    grown,
    next_offset,
    opened_or_created,
    schema_of,
    span_of,
    transactions,
)
from clarion.pipeline.lake.errors import LakeError, LakeRetryError
from clarion.pipeline.lake.history import next_offsets
from clarion.pipeline.lake.location import telling
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.ranges import Origin, SourceRange
from clarion.pipeline.lake.schema import fit, nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRule:
    """How a row meets the row of the same key."""

    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()  # the row with the largest values is the newest; empty: what comes later is
    delete_when: str | None = None  # SQL over `new` and `old`; the row of that key goes
    insert_when: str | None = None  # SQL over `new`; None: always
    update_when: str | None = None  # None: always
    leave_out: tuple[str, ...] = ()  # columns that decide but are not kept


# Columns that decide and are not kept; rows that come with such names are refused.
DELETED: Final = "__deleted"
RANK: Final = "__rank"


def ordered(key: tuple[str, ...], order_by: tuple[str, ...], *, deletes: bool) -> MergeRule:
    """The newest row per key stays, whichever batch it comes with; rows that are `DELETED` take theirs along."""
    later = _is_later(order_by)
    return MergeRule(
        key=key,
        order_by=order_by,
        delete_when=f"new.{_quoted(DELETED)} AND ({later})" if deletes else None,
        insert_when=f"NOT new.{_quoted(DELETED)}" if deletes else None,
        update_when=later if order_by else None,
        leave_out=(DELETED,) if deletes else (),
    )


def _is_later(columns: Sequence[str]) -> str:
    """SQL: `new` is not older than `old`, the first column deciding before the second; no value is before any value."""
    found = "true"
    for name in reversed(columns):
        new, old = f"new.{_quoted(name)}", f"old.{_quoted(name)}"
        greater = f"({new} > {old} OR ({old} IS NULL AND {new} IS NOT NULL))"
        equal = f"({new} = {old} OR ({old} IS NULL AND {new} IS NULL))"
        found = f"({greater} OR ({equal} AND {found}))"
    return found


def newest_per_key(df: DataFrame, rule: MergeRule) -> DataFrame:
    """One row per key, decided in Spark."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not rule.order_by:
        return df
    window = Window.partitionBy(*rule.key).orderBy(*[F.col(name).desc() for name in rule.order_by])
    return df.withColumn(RANK, F.row_number().over(window)).where(F.col(RANK) == 1).drop(RANK)


def merge_unseen(
    options: TableOptions,
    rows_after: Callable[[Mapping[Origin, int]], pa.Table],
    rule: MergeRule,
    *,
    batch: WriterBatch | None = None,
    ranges: Sequence[SourceRange] = (),
) -> bool:
    """Merge what the table has not seen of these ranges: `rows_after` the offsets that it is told. Finding them takes a
    while, in which another query may have merged some of them: a key that it deleted since must not come back."""
    for _ in range(ATTEMPTS_MAX):
        seen = next_offsets(options.location, [each.origin for each in ranges])
        rows = rows_after(seen)
        try:
            return bool(rows.num_rows) and merge(options, rows, rule, batch=batch, ranges=ranges, seen=seen)
        except _SeenMoreError:
            continue
    raise LakeRetryError(f"{options.path}: another query merged the same messages {ATTEMPTS_MAX} times")


class _SeenMoreError(Exception):
    """The table has seen more than it had when the rows were chosen."""


def merge(
    options: TableOptions,
    rows: pa.Table,
    rule: MergeRule,
    *,
    batch: WriterBatch | None = None,
    ranges: Sequence[SourceRange] = (),
    seen: Mapping[Origin, int] | None = None,
) -> bool:
    """Merge rows with distinct keys. False: this batch is in the table already. `seen`: up to where the table had seen
    the origins of these ranges when the rows were chosen."""
    rows = rows.cast(nullable(rows.schema))
    _check_keys(rows, rule)
    kept = rows.drop_columns(list(rule.leave_out)).schema
    for attempt in range(ATTEMPTS_MAX):
        try:
            table = grown(opened_or_created(options, kept), options, kept)
            if is_done(batch, table.transaction_version) and is_held(ranges, partial(span_of, table)):
                return False
            if seen is not None and any(next_offset(table, each.origin) != seen.get(each.origin) for each in ranges):
                raise _SeenMoreError
            remembered = CommitProperties(app_transactions=transactions(table, batch, ranges))
            with telling(options.location):
                _merge(table, rows, rule, kept, remembered)
            return True
        except CommitFailedError:
            time.sleep(PAUSE_SECONDS * (attempt + 1 + os.getpid() % 7))
    raise LakeRetryError(
        f"{options.path}: lost the race against other writers {ATTEMPTS_MAX} times; nothing was merged"
    )


def _merge(table: DeltaTable, rows: pa.Table, rule: MergeRule, kept: pa.Schema, properties: CommitProperties) -> None:
    known = schema_of(table)
    # delta-rs sets a value in whole: a struct must have all fields that it has in the table, though they be empty.
    types = pa.schema([known.field(name) for name in fit(known, kept, may_add=False).written.names])
    decides = [each for each in rows.schema if each.name in rule.leave_out]
    source = rows.select([*types.names, *[each.name for each in decides]]).cast(pa.schema([*types, *decides]))
    same = " AND ".join(_is_same(name, rows) for name in rule.key)
    values = {_quoted(name): f"new.{_quoted(name)}" for name in types.names}
    merger = table.merge(
        source, same, source_alias="new", target_alias="old", commit_properties=properties, streamed_exec=False
    )
    if rule.delete_when:
        merger = merger.when_matched_delete(rule.delete_when)
    merger = merger.when_matched_update(values, rule.update_when)
    merger = merger.when_not_matched_insert(values, rule.insert_when)
    merger.execute()


def _check_keys(rows: pa.Table, rule: MergeRule) -> None:
    missing = [name for name in rule.key if name not in rows.schema.names]
    if missing:
        raise LakeError(f"the rows have no column {', '.join(missing)} to merge by")
    if rows.num_rows != rows.select(list(rule.key)).group_by(list(rule.key)).aggregate([]).num_rows:
        raise LakeError(
            f"several rows of a batch have the same ({', '.join(rule.key)}): option orderBy says which is the newest"
        )


def _is_same(name: str, rows: pa.Table) -> str:
    """No value is a key like any other, as in a GROUP BY. Said only where it is needed: a join by it is slower."""
    sign = "IS NOT DISTINCT FROM" if rows[name].null_count else "="
    return f"old.{_quoted(name)} {sign} new.{_quoted(name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
