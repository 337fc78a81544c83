"""Small files of a Delta table into larger ones, within a partition, beside writers.

A stream leaves a file per task and batch. Rewriting all small files every time would rewrite the young large one again
and again; so files are looked at in tiers, each sixteen times the one below, and a tier is rewritten when it holds
enough files to make one of the next. Every row is then rewritten a few times in all, not once per batch.

delta-rs replaces files without changing rows, and its commit survives appends beside it; if another writer removed one
of the files meanwhile, the attempt is dropped and the next one sees the table anew.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from clarion.pipeline.lake.delta import open_table
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.location import Location, locate, telling
from clarion.pipeline.lake.options import MIB, TableOptions

TIER_FACTOR: Final = 16
SMALLEST_TIER_BYTES: Final = 256 * 1024
FILES_MIN: Final = 8  # of one tier in one partition: below that a rewrite gains little
VACUUM_EVERY: Final = 10  # compactions
RETENTION_HOURS_MIN: Final = 1  # a writer that takes longer between its first file and its commit would lose them

log = logging.getLogger("clarion.pipeline.lake")

Values = tuple[tuple[str, str | None], ...]


class Rewrite(NamedTuple):
    """All files of a partition below `tier_bytes` become files of about that size."""

    values: Values
    tier_bytes: int


class Report(NamedTuple):
    files_before: int
    files_after: int


def compact(path: str | Location, *, target_file_bytes: int = 128 * MIB, files_min: int = FILES_MIN) -> Report:
    """Look at every partition once and rewrite where it pays."""
    place = locate(path)
    table = open_table(place)
    before = len(table.file_uris())
    for rewrite in plan_rewrites(_sizes(table), target_file_bytes, files_min):
        with telling(place):
            _rewrite(place, rewrite)
    return Report(before, len(open_table(place).file_uris()))


def vacuum(path: str | Location, *, retention_hours: int = 7 * 24, dry_run: bool = False) -> list[str]:
    """Delete files that no version of the last `retention_hours` mentions, and those that a dead writer left."""
    if retention_hours < RETENTION_HOURS_MIN:
        raise LakeError(f"vacuum keeps at least {RETENTION_HOURS_MIN} h: younger files may belong to a write under way")
    place = locate(path)
    with telling(place):
        return open_table(place).vacuum(retention_hours, dry_run=dry_run, enforce_retention_duration=False, full=True)


def tidy_sometimes(options: TableOptions, batch_id: int) -> None:
    """After every so many batches; they count from 0."""
    if options.compact_every and batch_id % options.compact_every == options.compact_every - 1:
        tidy(options, batch_id)


def tidy(options: TableOptions, batch_id: int) -> None:
    """What a stream does between two batches. A failure costs space, not rows: it is logged and tried again later."""
    try:
        compact(options.location, target_file_bytes=options.target_file_bytes)
        if options.vacuum_hours and (batch_id + 1) // options.compact_every % VACUUM_EVERY == 0:
            vacuum(options.location, retention_hours=options.vacuum_hours)
    except (DeltaError, LakeError, OSError) as reason:  # of delta-rs: whatever it has against a file of the table
        log.warning("%s was not tidied: %s", options.path, reason)


def plan_rewrites(files: Iterable[tuple[Values, int]], target_bytes: int, files_min: int = FILES_MIN) -> list[Rewrite]:
    """Per partition at most one tier: the largest that has enough files, which takes those below along."""
    tiers = _tiers(target_bytes)
    counts: Counter[Rewrite] = Counter()
    for values, size in files:
        for index, tier in enumerate(tiers):
            if (tiers[index - 1] if index else 0) <= size < tier:
                counts[Rewrite(values, tier)] += 1
    chosen: dict[Values, Rewrite] = {}
    for rewrite, count in counts.items():
        known = chosen.get(rewrite.values)
        if count >= files_min and (known is None or known.tier_bytes < rewrite.tier_bytes):
            chosen[rewrite.values] = rewrite
    return sorted(chosen.values(), key=lambda each: str(each.values))


def _tiers(target_bytes: int) -> list[int]:
    """Smallest first, the target last."""
    tiers = [target_bytes]
    while tiers[-1] // TIER_FACTOR >= SMALLEST_TIER_BYTES:
        tiers.append(tiers[-1] // TIER_FACTOR)
    return tiers[::-1]


def _sizes(table: DeltaTable) -> list[tuple[Values, int]]:
    columns = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    values = [actions[f"partition.{name}"].to_pylist() for name in columns]
    texts = [[None if each is None else _text(each) for each in column] for column in values]
    sizes = actions["size_bytes"].to_pylist()
    rows = zip(*texts, strict=True) if texts else iter([()] * len(sizes))
    return [(tuple(zip(columns, row, strict=True)), size) for row, size in zip(rows, sizes, strict=True)]


def _rewrite(place: Location, rewrite: Rewrite) -> None:
    filters = [(name, "=", "" if value is None else value) for name, value in rewrite.values]
    try:
        open_table(place).optimize.compact(
            partition_filters=filters or None,
            target_size=rewrite.tier_bytes,
            max_concurrent_tasks=1,  # it runs beside a stream
            writer_properties=WriterProperties(compression="ZSTD"),
        )
    except CommitFailedError as reason:
        log.info("%s: another writer was faster than the compaction: %s", place, reason)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
