"""Plain parquet folders, for readers without Delta: exactly once, though half a batch may be seen for a moment.

Tasks write below `_staging`, which readers skip. The driver then writes the journal `_clarion/journal.json` in one
step: the batch, its origins, and which files are to be moved; that is the commit. Moving comes after it, and whoever
opens the table next finishes a move that a crash interrupted. A lock file keeps drivers apart.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from clarion.pipeline.lake.commits import Commit, is_there
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.files import DataFile, Layout, check_files, sync_folders
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.ranges import Origin
from clarion.pipeline.lake.schema import check_partition_columns, fit, nullable

FOLDER: Final = "_clarion"
STAGING: Final = "_staging"


@dataclass(slots=True)
class Journal:
    """All that is remembered about a plain table."""

    schema: str = ""  # Arrow's, in base64
    partition_by: list[str] = field(default_factory=list)
    batches: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    next: dict[str, int] = field(default_factory=dict)
    moving_from: str = ""
    moving: list[str] = field(default_factory=list)
    removing: list[str] = field(default_factory=list)

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


def exists(path: str) -> bool:
    return os.path.exists(_journal_path(path))


def schema_at(path: str) -> pa.Schema:
    return _read(path).columns


def plan(options: TableOptions, incoming: pa.Schema) -> Layout:
    incoming = nullable(incoming)
    partition_by = options.partition_by or ()
    if exists(options.path):
        with _locked(options.path):
            journal = _settled(options.path)
        _check_partitioning(options, journal)
        partition_by = tuple(journal.partition_by)
        incoming = fit(journal.columns, incoming, may_add=options.merge_schema).written
    check_partition_columns(incoming, partition_by)
    return Layout(
        root=options.path,
        schema=incoming,
        partition_by=partition_by,
        target_file_bytes=options.target_file_bytes,
        compression=options.compression,
        source_columns=options.source_columns,
        staging=f"{STAGING}/{uuid.uuid4()}",
        sync=options.sync,
    )


def commit(options: TableOptions, work: Commit) -> bool:
    """As for Delta: all files or none, once."""
    if not work.files and not work.overwrite:
        return False
    check_files(os.path.join(options.path, work.staging), work.files)
    with _locked(options.path):
        journal = _settled(options.path)
        if is_there(work, journal.batches.get, lambda origin: journal.next.get(_key(origin))):
            remove_uncommitted(options.path, work.files, work.staging)
            return False
        _write(options.path, _with(journal, options, work))
        _settled(options.path)
    return True


def remove_uncommitted(path: str, files: Iterable[DataFile], staging: str) -> None:
    """Staged files that the journal is about to move stay."""
    if staging and (not exists(path) or _read(path).moving_from != staging):
        shutil.rmtree(os.path.join(path, staging), ignore_errors=True)


def vacuum(path: str, *, older_than: float, dry_run: bool) -> list[str]:
    """Remove what dead writers staged before `older_than` (seconds since 1970); nothing else here is ever replaced."""
    with _locked(path):
        _settled(path)
        staged = [each for each in Path(path, STAGING).glob("*") if each.stat().st_mtime < older_than]
        for each in staged if not dry_run else ():
            shutil.rmtree(each, ignore_errors=True)
    return [str(each.relative_to(path)) for each in staged]


def first_offset(path: str, origin: Origin) -> int | None:
    return _read(path).first.get(_key(origin))


def next_offset(path: str, origin: Origin) -> int | None:
    return _read(path).next.get(_key(origin))


def _with(journal: Journal, options: TableOptions, work: Commit) -> Journal:
    """The journal after this commit, with the moves still to be done."""
    known = journal.columns if journal.schema else work.schema
    fitted = fit(known, work.schema, may_add=options.merge_schema)
    changed = {each.name: each for each in fitted.added}
    columns = [changed.pop(each.name, each) for each in known] + list(changed.values())
    return Journal(
        schema=base64.b64encode(pa.schema(columns).serialize().to_pybytes()).decode(),
        partition_by=journal.partition_by if journal.schema else list(options.partition_by or ()),
        batches=journal.batches | ({work.batch.app_id: work.batch.version} if work.batch else {}),
        first={_key(each.origin): each.first_offset for each in work.ranges} | journal.first,
        next=journal.next | {_key(each.origin): each.next_offset for each in work.ranges},
        moving_from=work.staging,
        moving=[each.path for each in work.files],
        removing=_files(options.path) if work.overwrite else [],
    )


def _settled(path: str) -> Journal:
    """The journal, after whatever it says is still to be moved or removed has been; safe to repeat at any point."""
    journal = _read(path)
    if not (journal.moving or journal.removing):
        return journal
    for each in journal.moving:
        source, target = Path(path, journal.moving_from, each), Path(path, each)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.exists():
            os.replace(source, target)
        elif not target.exists():
            raise LakeError(f"{target}: committed, and neither here nor in {journal.moving_from}")
    for each in journal.removing:
        Path(path, each).unlink(missing_ok=True)
    sync_folders(path, journal.moving)
    if journal.moving_from:
        shutil.rmtree(Path(path, journal.moving_from), ignore_errors=True)
    journal.moving_from, journal.moving, journal.removing = "", [], []
    _write(path, journal)
    return journal


def _read(path: str) -> Journal:
    try:
        found: dict[str, Any] = json.loads(Path(_journal_path(path)).read_text())
    except FileNotFoundError:
        return Journal()
    return Journal(**found)


def _write(path: str, journal: Journal) -> None:
    draft = _journal_path(path) + ".new"
    with open(draft, "w") as file:
        json.dump(asdict(journal), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, _journal_path(path))
    sync_folders(path, [os.path.join(FOLDER, "journal.json")])


@contextmanager
def _locked(path: str) -> Iterator[None]:
    os.makedirs(os.path.join(path, FOLDER), exist_ok=True)
    with open(os.path.join(path, FOLDER, "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_partitioning(options: TableOptions, journal: Journal) -> None:
    if options.partition_by is not None and list(options.partition_by) != journal.partition_by:
        raise LakeError(f"{options.path}: the table is partitioned by ({', '.join(journal.partition_by)})")


def _files(path: str) -> list[str]:
    found = (each.relative_to(path) for each in Path(path).rglob("*.parquet"))
    return [str(each) for each in found if not str(each).startswith("_")]


def _key(origin: Origin) -> str:
    return f"{origin.topic}/{origin.topic_id}/{origin.partition}"


def _journal_path(path: str) -> str:
    return os.path.join(path, FOLDER, "journal.json")
