"""Delta tables on the driver: plan a write, commit it once, know what is there already.

A commit carries application transactions: (query, batch), so that a batch which is played again is recognised, and per
partition of a source topic the offset after the last row, so that rows are recognised even when the query's checkpoint
is gone. Both are decided against the very version of the table that the commit then follows: it is written as version
n + 1 of what was looked at or not at all, and the loop looks again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from pyarrow.dataset import field

from clarion.pipeline.lake.commits import Commit, WriterBatch, is_there
from clarion.pipeline.lake.errors import LakeError, LakeRetryError
from clarion.pipeline.lake.files import DataFile, Layout, check_files
from clarion.pipeline.lake.location import Location, locate, telling
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.ranges import Origin, SourceRange, transaction_name
from clarion.pipeline.lake.schema import check_partition_columns, fit, nullable

ATTEMPTS_MAX: Final = 100  # each costs one lost race against another writer of the same table
PAUSE_SECONDS: Final = 0.01
_CAN_WRITE: Final = frozenset({"appendOnly", "invariants", "timestampNtz"})
_CAN_READ: Final = frozenset({"timestampNtz"})

# A stream commits often: its history is kept for a week, not for Delta's default of thirty days.
_NEW_TABLE: Final = {"delta.logRetentionDuration": "interval 7 days"}


def open_table(where: str | Location) -> DeltaTable:
    """The table as it is now, if it is one that this code can handle."""
    place = locate(where)
    try:
        with telling(place):
            table = DeltaTable(place.uri, storage_options=place.storage_options)
    except TableNotFoundError:
        raise LakeError(f"{place}: there is no Delta table") from None
    protocol = table.protocol()
    strange = set(protocol.reader_features or ()) - _CAN_READ
    if strange or protocol.min_reader_version == 2:
        raise LakeError(f"{place}: files of this table cannot be read as they are ({_listed(strange)})")
    return table


def exists(where: str | Location) -> bool:
    place = locate(where)
    with telling(place):
        return DeltaTable.is_deltatable(place.uri, storage_options=place.storage_options)


def schema_of(table: DeltaTable) -> pa.Schema:
    return nullable(pa.schema(table.schema().to_arrow()))


def paths_of(table: DeltaTable) -> Collection[str]:
    """The files of this version, below the table's folder; the log keeps them percent-encoded, the disk does not."""
    return frozenset(unquote(each) for each in pa.table(table.get_add_actions())["path"].to_pylist())


def plan(options: TableOptions, incoming: pa.Schema) -> Layout:
    """How tasks are to write rows of these columns; refuses here, before a row is written, what will not fit."""
    incoming = nullable(incoming)
    partition_by = options.partition_by or ()
    if exists(options.location):
        table = open_table(options.location)
        _check_writable(table, options)
        partition_by = tuple(table.metadata().partition_columns)
        incoming = fit(schema_of(table), incoming, may_add=options.merge_schema).written
    elif options.location.sizes(["_clarion/journal.json"]) != [None]:
        # A vacuum would take its files for those that a dead writer left.
        raise LakeError(f"{options.path}: a plain parquet table, as earlier versions made them; choose another folder")
    check_partition_columns(incoming, partition_by)
    if missing := [name for name in options.source_columns if name not in incoming.names]:
        raise LakeError(
            f"{options.path}: sourceColumns names the column {', '.join(missing)}, and the rows have "
            f"{', '.join(incoming.names)}"
        )
    return Layout(
        root=options.location,
        schema=incoming,
        partition_by=partition_by,
        target_file_bytes=options.target_file_bytes,
        compression=options.compression,
        source_columns=options.source_columns,
        sync=options.sync,
    )


def commit(options: TableOptions, work: Commit) -> bool:
    """Make the files visible, all at once. False: this batch is in the table already, and its new files are gone."""
    if not work.files and not work.overwrite:
        return False
    with telling(options.location):
        check_files(options.location, work.files)
    for attempt in range(ATTEMPTS_MAX):
        try:
            table = grown(opened_or_created(options, work.schema), options, work.schema)
            has_rows_of = partial(_has_rows_of, cache(table.to_pyarrow_dataset), options.source_columns)
            if is_there(work, table.transaction_version, partial(span_of, table), has_rows_of):
                remove_uncommitted(options.location, work.files)
                return False
            with telling(options.location):
                _append(table, options, work)
            return True
        except CommitFailedError:
            # Another writer was faster, and may have written this very batch: look again. The pause differs by process.
            time.sleep(PAUSE_SECONDS * (attempt + 1 + os.getpid() % 7))
    raise LakeRetryError(
        f"{options.path}: lost the race against other writers {ATTEMPTS_MAX} times; nothing was committed"
    )


def remove_uncommitted(where: str | Location, files: Iterable[DataFile]) -> None:
    """Take back files of an abandoned write. A file that the table mentions stays, whatever the writer believes."""
    place = locate(where)
    candidates = [each.path for each in files]
    if candidates and exists(place):
        mentioned = paths_of(open_table(place))
        candidates = [each for each in candidates if each not in mentioned]
    place.remove(candidates)


def next_offset(table: DeltaTable, origin: Origin) -> int | None:
    """The first offset of a topic's partition that the table does not hold; None: it holds nothing of it."""
    return table.transaction_version(transaction_name("next", origin))


def first_offset(table: DeltaTable, origin: Origin) -> int | None:
    """Where the table's knowledge of a partition begins; from here to `next_offset` it holds everything there was."""
    return table.transaction_version(transaction_name("first", origin))


def span_of(table: DeltaTable, origin: Origin) -> tuple[int, int] | None:
    """From where to where the table holds a partition; None: it holds nothing of it."""
    end = next_offset(table, origin)
    return None if end is None else (first_offset(table, origin) or 0, end)


def _has_rows_of(dataset: Callable[[], Any], columns: Sequence[str], part: SourceRange) -> bool:
    """Whether the table has as many rows of these messages as the batch. `columns` as in `ranges_of`."""
    topic, topic_id, partition, offset = columns
    inside = (field(offset) >= part.first_offset) & (field(offset) < part.next_offset)
    wanted = inside & (field(partition) == part.origin.partition)
    found = 0
    # Names are compared here: a dataset skips files without a bound for a text, as earlier versions left for long ones.
    for batch in dataset().to_batches(columns=[topic, topic_id], filter=wanted):
        is_known = pc.equal(pc.coalesce(batch[topic_id], ""), part.origin.topic_id)
        found += pc.sum(pc.and_(pc.equal(batch[topic], part.origin.topic), is_known)).as_py() or 0
    return bool(found >= part.rows)


def transactions(
    table: DeltaTable, batch: WriterBatch | None, ranges: Iterable[SourceRange], *, overwrite: bool = False
) -> list[Transaction]:
    """What the table is to remember of a commit. What it has seen of a partition never becomes less: a merge may come
    with messages that are known beside others that are not."""
    found = [] if batch is None else [Transaction(batch.app_id, batch.version)]
    for each in ranges:
        span = None if overwrite else span_of(table, each.origin)
        end = each.next_offset if span is None else max(each.next_offset, span[1])
        found.append(Transaction(transaction_name("next", each.origin), end))
        if overwrite or first_offset(table, each.origin) is None:
            found.append(Transaction(transaction_name("first", each.origin), each.first_offset))
    return found


def opened_or_created(options: TableOptions, schema: pa.Schema) -> DeltaTable:
    place = options.location
    if not exists(place):
        if place.is_local:
            os.makedirs(place.uri, exist_ok=True)
        with telling(place):
            DeltaTable.create(
                place.uri,
                Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(options.partition_by or ()),
                configuration=_NEW_TABLE,
                storage_options=place.storage_options,
            )
    table = open_table(place)
    _check_writable(table, options)
    return table


def grown(table: DeltaTable, options: TableOptions, schema: pa.Schema) -> DeltaTable:
    added = fit(schema_of(table), schema, may_add=options.merge_schema).added
    if not added:
        return table
    table.alter.add_columns(Schema.from_arrow(pa.schema(added)).fields, commit_properties=_no_retries())
    return open_table(options.location)


def _append(table: DeltaTable, options: TableOptions, work: Commit) -> None:
    version = table.version() + 1
    table.create_write_transaction(
        [_action(each) for each in work.files],
        "overwrite" if work.overwrite else "append",
        table.schema(),
        list(table.metadata().partition_columns),
        commit_properties=_no_retries(transactions(table, work.batch, work.ranges, overwrite=work.overwrite)),
    )
    if options.sync and options.location.is_local:
        _sync_log(options.path, version)


def _no_retries(remembered: list[Transaction] | None = None) -> CommitProperties:
    return CommitProperties(max_commit_retries=0, app_transactions=remembered)


def _action(file: DataFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition_values, file.modified_ms, True, file.statistics)


def _sync_log(path: str, version: int) -> None:
    log = os.path.join(path, "_delta_log")
    for place in (os.path.join(log, f"{version:020}.json"), log):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _check_writable(table: DeltaTable, options: TableOptions) -> None:
    strange = set(table.protocol().writer_features or ()) - _CAN_WRITE
    if strange:
        raise LakeError(f"{options.path}: this table needs writers that know {_listed(strange)}")
    columns = tuple(table.metadata().partition_columns)
    if options.partition_by is not None and options.partition_by != columns:
        raise LakeError(
            f"{options.path}: the table is partitioned by ({', '.join(columns)}), "
            f"and ({', '.join(options.partition_by)}) was asked for"
        )


def _listed(features: Iterable[str]) -> str:
    return ", ".join(sorted(features)) or "column mapping"
