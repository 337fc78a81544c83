"""A table at one moment, by its log: its files and its transactions. With pyarrow alone, as executors have it.

A snapshot is the last checkpoint and the commits after it. A process that has looked before goes on from there: what a
micro-batch costs is one listing and the commits since the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.location import Location, telling

LOG: Final = "_delta_log"
READERS: Final = 8  # of commits at once: a commit is small, and an object store answers after tens of milliseconds
KNOWN_MAX: Final = 16  # tables that a process remembers
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")


@dataclass(frozen=True, slots=True)
class TableFile:
    path: str  # below the table's place
    size: int
    values: Mapping[str, str | None]  # of the columns that the table is partitioned by
    statistics: str = "{}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    version: int
    files: Mapping[str, TableFile]
    transactions: Mapping[str, int]
    written_ns: int = -1  # when its commit was: a table that was deleted and made again has other ones


def snapshot(location: Location, version: int | None = None) -> Snapshot:
    """The table now, or as it was at a version; LakeError if there is none, or if its log has a hole."""
    with telling(location):
        names = location.files_in(LOG)
        commits = {int(match[1]): when for name, when in names.items() if (match := _COMMIT.fullmatch(name))}
        known = _known.get(location)
        if version is not None or known is None or commits.get(known.version) != known.written_ns:
            known = _at_checkpoint(location, names, version)
        last = max(commits, default=-1) if version is None else version
        after = range(known.version + 1, last + 1)
        if last < 0:
            raise LakeError(f"{location}: there is no Delta table")
        if not commits.keys() >= set(after):
            raise LakeError(f"{location}: its log has a hole before version {last}")
        found = replace(_replayed(location, known, after), written_ns=commits.get(last, -1))
    if version is None:
        _remember(location, found)
    return found


_known: dict[Location, Snapshot] = {}


def _remember(location: Location, found: Snapshot) -> None:
    _known.pop(location, None)
    _known[location] = found
    if len(_known) > KNOWN_MAX:
        del _known[next(iter(_known))]


def _at_checkpoint(location: Location, names: Iterable[str], version: int | None) -> Snapshot:
    parts: dict[int, list[str]] = {}
    wanted: dict[int, int] = {}
    for name in names:
        if (found := _CHECKPOINT.fullmatch(name)) and (version is None or int(found[1]) <= version):
            parts.setdefault(int(found[1]), []).append(name)
            wanted[int(found[1])] = int(found[2] or 1)
    whole = [number for number, of_it in parts.items() if len(of_it) >= wanted[number]]
    if not whole:
        return Snapshot(-1, {}, {})
    at = max(whole)
    files: dict[str, TableFile] = {}
    transactions: dict[str, int] = {}
    for name in parts[at]:
        with location.open(f"{LOG}/{name}") as source, pq.ParquetFile(source) as file:
            columns = [each for each in ("add", "txn") if each in file.schema_arrow.names]
            for batch in file.iter_batches(columns=columns):
                for column in columns:
                    for action in batch.column(column).drop_null().to_pylist():
                        _apply({column: action}, files, transactions)
    return Snapshot(at, files, transactions)


def _replayed(location: Location, before: Snapshot, versions: range) -> Snapshot:
    if not versions:
        return before
    files, transactions = dict(before.files), dict(before.transactions)

    def read(version: int) -> bytes:
        with location.open(f"{LOG}/{version:020}.json") as file:
            return bytes(file.read())

    with ThreadPoolExecutor(READERS) as pool:
        for text in pool.map(read, versions):
            for line in text.splitlines():
                _apply(json.loads(line), files, transactions)
    return Snapshot(versions[-1], files, transactions)


def _apply(action: Mapping[str, Any], files: dict[str, TableFile], transactions: dict[str, int]) -> None:
    if (added := action.get("add")) is not None:
        if added.get("deletionVector"):
            raise LakeError("files of this table cannot be read as they are (deletion vectors)")
        path = unquote(added["path"])
        values = dict(added.get("partitionValues") or {})  # pyarrow reads a map as pairs
        files[path] = TableFile(path, added["size"], values, added.get("stats") or "{}")
    elif (removed := action.get("remove")) is not None:
        files.pop(unquote(removed["path"]), None)
    elif (done := action.get("txn")) is not None:
        transactions[done["appId"]] = done["version"]
