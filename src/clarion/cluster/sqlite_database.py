"""The tables behind the SQLite store: synchronous, for one thread, the only one that has the file open.

Write-ahead log with `synchronous=FULL`: a commit is on the device when it returns. The locking mode is exclusive, so
that no second connection gets in and the index of the write-ahead log needs no file of shared memory. Every row has a
checksum of its own, since SQLite's pages have none: a flipped bit is found, not believed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from struct import pack
from typing import Final

from clarion.cluster.coordination import (
    Change,
    Compare,
    Entry,
    LeaseId,
    LeaseNotFoundError,
    Operation,
    Put,
    Range,
    Revision,
    StoreError,
    TransactionResult,
    check_size,
    decide,
)
from clarion.wire.checksum import crc32c
from clarion.world import RealDisk, event_log, replace_file

log = event_log("cluster")

_FORMAT: Final = 1
_APPLICATION: Final = 0x436C6172  # "Clar", as `file` and `PRAGMA application_id` show it
_WAL_BYTES_MAX: Final = 4 * 1024 * 1024  # written before the log is moved into the database; a start reads it whole
_PAGE_BYTES: Final = 4096

_TABLES: Final = (
    "CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL,"
    " mod_revision INTEGER NOT NULL, lease INTEGER, crc INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX entries_by_lease ON entries (lease) WHERE lease IS NOT NULL",
    "CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_seconds REAL NOT NULL)",
    "CREATE TABLE state (revision INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0)",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={_FORMAT}",
)
# Added to databases that were made without it; whoever does not know it yet passes it over.
_LEASES_KNOW_THEIR_OWNER: Final = ("ALTER TABLE leases ADD COLUMN is_owners INTEGER NOT NULL DEFAULT 0",)
_COLUMNS: Final = "key, value, create_revision, mod_revision, lease, crc"
_SAVE: Final = f"INSERT OR REPLACE INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk has no room: the change was rolled back, and the next one may fit."""
    return primary_code(error) == sqlite3.SQLITE_FULL


def primary_code(error: sqlite3.Error) -> int:
    """Without the details in the upper bits."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _make_file(path: str) -> None:
    """A new database, there whole or not at all, with two flushes where SQLite itself would need eight.

    Made here also for its mode: it is its owner's alone, and the write-ahead log takes after it.
    """
    for leftover in (path + "-wal", path + "-journal"):  # of a database that is gone: this one they would damage
        if os.path.exists(leftover):
            os.unlink(leftover)
    replace_file(RealDisk(), path, _new_content())


def _new_content() -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for statement in _TABLES:
            connection.execute(statement)
        content = bytearray(connection.serialize())
    finally:
        connection.close()
    content[_VERSIONS_AT : _VERSIONS_AT + 2] = _WRITE_AHEAD_LOG
    return bytes(content)


# https://www.sqlite.org/fileformat.html: the versions needed to write and to read the file; 2 has a write-ahead log
_VERSIONS_AT: Final = 18
_WRITE_AHEAD_LOG: Final = b"\x02\x02"


class StoreDamagedError(StoreError):
    """The database cannot be believed; a person has to look at it."""


class Database:
    def __init__(self, path: str) -> None:
        """Open it, make it if there is none, and check every page and every row."""
        self._path = path
        if not os.path.exists(path) or not os.path.getsize(path):
            _make_file(path)
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        self._unmoved_bytes = 0
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    @property
    def revision(self) -> Revision:
        (revision,) = self._connection.execute("SELECT revision FROM state").fetchone()
        return Revision(revision)

    def get(self, key: str) -> Entry | None:
        row = self._connection.execute(f"SELECT {_COLUMNS} FROM entries WHERE key = ?", (key.encode(),)).fetchone()
        return self._entry(row) if row else None

    def range(self, prefix: str) -> Range:
        start = prefix.encode()
        # UTF-8 has no byte 255, so the last one can always be raised.
        bounds = (start, start[:-1] + bytes([start[-1] + 1])) if start else (b"", b"\xff")
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE key >= ? AND key < ? ORDER BY key", bounds
        )
        return Range(tuple(map(self._entry, rows)), self.revision)

    def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> tuple[TransactionResult, Change | None]:
        """With the change, if there is one."""
        check_size(compares, operations)
        revision = self.revision
        change = decide(compares, operations, self.get, revision)
        if change is None or not change.events:
            return TransactionResult(change is not None, revision), None
        self._check_leases(operations)
        self._commit(change)
        return TransactionResult(True, change.revision), change

    def grant_lease(self, ttl_seconds: float) -> LeaseId:
        made = self._connection.execute("INSERT INTO leases (ttl_seconds) VALUES (?)", (ttl_seconds,))
        assert made.lastrowid is not None
        return LeaseId(made.lastrowid)

    def take_for_owner(self, lease: LeaseId) -> None:
        """It is held by the process that has the database open, and ends with its lock."""
        self._connection.execute("UPDATE leases SET is_owners = 1 WHERE id = ?", (lease,))

    def leases_of_owner(self) -> list[LeaseId]:
        return [LeaseId(one) for (one,) in self._connection.execute("SELECT id FROM leases WHERE is_owners = 1")]

    def leases(self) -> list[tuple[LeaseId, float]]:
        return [(LeaseId(one), ttl) for one, ttl in self._connection.execute("SELECT id, ttl_seconds FROM leases")]

    def keys_of(self, lease: LeaseId) -> list[str]:
        rows = self._connection.execute("SELECT key FROM entries WHERE lease = ? ORDER BY key", (lease,))
        return [key.decode() for (key,) in rows]

    def end_lease(self, lease: LeaseId) -> None:
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease,))

    def content(self) -> bytes:
        """The whole database as one file would hold it, at this moment."""
        return self._connection.serialize()

    def close(self) -> None:
        self._connection.close()

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA locking_mode=EXCLUSIVE")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        execute("PRAGMA wal_autocheckpoint=0")  # done by `_commit`, where a failure is not passed over
        (version,) = execute("PRAGMA user_version").fetchone()
        if version > _FORMAT:
            raise StoreDamagedError(
                f"{self._path} has format {version}, this version of Clarion knows {_FORMAT}; use a newer version"
            )
        if version == 0:
            self._in_one_commit(_TABLES)
        if not any(column == "is_owners" for _, column, *_ in execute("PRAGMA table_info(leases)")):
            self._in_one_commit(_LEASES_KNOW_THEIR_OWNER)
        self._check()

    def _check(self) -> None:
        (found,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise self._damaged(found)
        content = self.range("")
        newest = max((entry.mod_revision for entry in content.entries), default=0)
        if newest > content.revision:
            raise self._damaged(f"a key has revision {newest}, the store {content.revision}")

    def _in_one_commit(self, statements: Sequence[str]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            self._connection.execute(statement)
        self._connection.execute("COMMIT")

    def _commit(self, change: Change) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            for event in change.events:
                if event.entry is None:
                    execute("DELETE FROM entries WHERE key = ?", (event.key.encode(),))
                else:
                    execute(_SAVE, _row(event.entry))
                    self._unmoved_bytes += len(event.entry.value)
            execute("UPDATE state SET revision = ?", (change.revision,))
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        self._unmoved_bytes += _PAGE_BYTES * (len(change.events) + 1)
        if self._unmoved_bytes > _WAL_BYTES_MAX:
            self._move_log()

    def _move_log(self) -> None:
        """From the write-ahead log into the database. A full disk is no reason to deny the commit: it stands."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
            log.warning("store_not_shortened", file=self._path, reason=str(error))
        self._unmoved_bytes = 0

    def _check_leases(self, operations: Sequence[Operation]) -> None:
        for lease in {one.lease for one in operations if isinstance(one, Put) and one.lease is not None}:
            if self._connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone() is None:
                raise LeaseNotFoundError(f"lease {lease} is over")

    def _entry(self, row: tuple[bytes, bytes, int, int, int | None, int]) -> Entry:
        key, value, created, modified, lease, crc = row
        if crc != _crc(key, value, created, modified, lease):
            raise self._damaged(f"the checksum of {key!r} does not match")
        bound = None if lease is None else LeaseId(lease)
        return Entry(key.decode(), value, Revision(created), Revision(modified), bound)

    def _damaged(self, what: str) -> StoreDamagedError:
        return StoreDamagedError(f"{self._path} is damaged: {what}. Restore the file from a copy")


def _row(entry: Entry) -> tuple[bytes, bytes, int, int, int | None, int]:
    key, created, modified, lease = entry.key.encode(), entry.create_revision, entry.mod_revision, entry.lease
    return key, entry.value, created, modified, lease, _crc(key, entry.value, created, modified, lease)


def _crc(key: bytes, value: bytes, created: int, modified: int, lease: int | None) -> int:
    numbers = pack(">qqqi", created, modified, -1 if lease is None else lease, len(key))
    return crc32c(value, crc32c(key, crc32c(numbers)))
