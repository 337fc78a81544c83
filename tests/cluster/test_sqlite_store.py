"""What is SQLite's own: damage is found, nobody believes a failed commit, a full disk passes, a backup is whole."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clarion.cluster.coordination import Put, StoreFailedError
from clarion.cluster.sqlite_database import Database, StoreDamagedError
from clarion.cluster.sqlite_store import SqliteStore
from clarion.world import RealDisk
from tests.cluster.stores import no_failure


async def open_store(folder: Path) -> SqliteStore:
    return await SqliteStore.open(str(folder / "registry.db"), no_failure)


async def content(folder: Path) -> dict[str, bytes]:
    store = await open_store(folder)
    try:
        return {entry.key: entry.value for entry in (await store.range("")).entries}
    finally:
        await store.close()


def test_it_is_as_durable_as_sqlite_can_be(tmp_path: Path):
    database = Database(str(tmp_path / "registry.db"))
    names = ("journal_mode", "synchronous", "locking_mode", "wal_autocheckpoint")
    asked = {name: database._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}
    assert asked == {"journal_mode": "wal", "synchronous": 2, "locking_mode": "exclusive", "wal_autocheckpoint": 0}
    database.transact((), [Put("a", b"1")])
    assert sorted(os.listdir(tmp_path)) == ["registry.db", "registry.db-wal"], "no file of shared memory"
    for name in os.listdir(tmp_path):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    database.close()


def test_a_new_database_is_put_in_place_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "registry.db"
    first_seen = []
    connect = sqlite3.connect

    def look_then_connect(target, **options):
        if target == str(path):
            first_seen.append(path.read_bytes())
        return connect(target, **options)

    monkeypatch.setattr(sqlite3, "connect", look_then_connect)
    database = Database(str(path))
    assert path.read_bytes() == first_seen[0], "nothing was left for SQLite to write"
    database.transact((), [Put("a", b"1")])
    database.close()
    whole = connect(":memory:")
    whole.deserialize(first_seen[0][:18] + b"\x01\x01" + first_seen[0][20:])  # in memory there is no write-ahead log
    assert whole.execute("SELECT revision FROM state").fetchall() == [(0,)]


def test_the_write_ahead_log_of_a_database_that_is_gone_is_not_believed(tmp_path: Path):
    path = tmp_path / "registry.db"
    database = Database(str(path))
    database.transact((), [Put("a", b"1")])
    log = (tmp_path / "registry.db-wal").read_bytes()
    database.close()
    path.unlink()
    (tmp_path / "registry.db-wal").write_bytes(log)
    database = Database(str(path))
    assert database.range("").entries == ()
    database.close()


def test_nobody_else_gets_in_while_it_is_open(tmp_path: Path):
    path = str(tmp_path / "registry.db")
    database = Database(path)
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM state')"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=30)
    assert "database is locked" in done.stderr
    database.close()


def test_the_write_ahead_log_does_not_grow_for_ever(tmp_path: Path):
    database = Database(str(tmp_path / "registry.db"))
    largest = 0
    for number in range(60):
        database.transact((), [Put(f"k{number % 3}", bytes(500_000))])
        largest = max(largest, (tmp_path / "registry.db-wal").stat().st_size)
    assert largest < 8 * 1024 * 1024
    assert (tmp_path / "registry.db").stat().st_size < 8 * 1024 * 1024
    database.close()


def test_every_flipped_bit_is_found_or_does_not_matter(tmp_path: Path):
    path = tmp_path / "registry.db"
    database = Database(str(path))
    for number in range(40):
        database.transact((), [Put(f"topics/t{number}", b"%040d" % number)])
    expected = database.range("")
    database.close()
    whole = path.read_bytes()
    found = 0
    for at in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        try:
            database = Database(str(path))
        except (StoreDamagedError, sqlite3.Error):
            found += 1
        else:
            assert database.range("").entries == expected.entries, f"byte {at} was believed"
            database.close()
        for leftover in tmp_path.glob("registry.db-*"):
            leftover.unlink()
    assert found > 50


async def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path):
    (tmp_path / "registry.db").write_bytes(b"hello, world" * 1000)
    with pytest.raises(StoreDamagedError, match=r"registry\.db is damaged: file is not a database"):
        await open_store(tmp_path)


async def test_a_newer_format_is_refused_in_words(tmp_path: Path):
    await (await open_store(tmp_path)).close()
    connection = sqlite3.connect(tmp_path / "registry.db")
    connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(StoreDamagedError, match="has format 2"):
        await open_store(tmp_path)


class Broken:
    """A connection whose commits fail: the real one, with one statement turned into an error."""

    def __init__(self, connection: sqlite3.Connection, code: int, statement: str = "COMMIT") -> None:
        self._connection = connection
        self._code = code
        self._statement = statement
        self.is_broken = True

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if statement.startswith(self._statement) and self.is_broken:
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorcode = self._code
            raise error
        return self._connection.execute(statement, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


async def test_after_a_failed_commit_nothing_is_tried_again_and_the_owner_is_told_once(tmp_path: Path):
    failures: list[Exception] = []
    store = await SqliteStore.open(str(tmp_path / "registry.db"), failures.append)
    await store.transact((), [Put("a", b"1")])
    broken = store._database._connection = Broken(store._database._connection, sqlite3.SQLITE_IOERR_FSYNC)
    results = await asyncio.gather(
        *(store.transact((), [Put("a", b"%d" % number)]) for number in range(2, 5)), return_exceptions=True
    )
    assert [type(one) for one in results] == [StoreFailedError] * 3
    broken.is_broken = False  # the disk is well again, and that changes nothing
    for attempt in (store.transact((), [Put("a", b"9")]), store.get("a"), store.range("")):
        with pytest.raises(StoreFailedError):
            await attempt
    assert len(failures) == 1
    await store.close()
    assert await content(tmp_path) == {"a": b"1"}


async def test_a_full_disk_refuses_a_change_and_later_takes_it(tmp_path: Path):
    store = await open_store(tmp_path)
    await store.transact((), [Put("a", b"1")])
    full = store._database._connection = Broken(store._database._connection, sqlite3.SQLITE_FULL)
    with pytest.raises(OSError, match="No space left") as refused:
        await store.transact((), [Put("a", b"2")])
    assert refused.value.errno == errno.ENOSPC
    assert (await store.get("a")).value == b"1"
    full.is_broken = False
    await store.transact((), [Put("a", b"3")])
    await store.close()
    assert await content(tmp_path) == {"a": b"3"}


async def test_a_full_disk_that_keeps_the_log_from_being_moved_denies_no_change(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("clarion.cluster.sqlite_database._WAL_BYTES_MAX", 0)
    store = await open_store(tmp_path)
    store._database._connection = Broken(store._database._connection, sqlite3.SQLITE_FULL, "PRAGMA wal_checkpoint")
    for number in range(3):
        assert (await store.transact((), [Put("a", b"%d" % number)])).succeeded
    await store.close()
    assert await content(tmp_path) == {"a": b"2"}


async def test_a_log_that_cannot_be_moved_for_another_reason_ends_it(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("clarion.cluster.sqlite_database._WAL_BYTES_MAX", 0)
    failures: list[Exception] = []
    store = await SqliteStore.open(str(tmp_path / "registry.db"), failures.append)
    code = sqlite3.SQLITE_IOERR_FSYNC
    store._database._connection = Broken(store._database._connection, code, "PRAGMA wal_checkpoint")
    with pytest.raises(StoreFailedError):
        await store.transact((), [Put("a", b"1")])
    assert len(failures) == 1
    await store.close()


async def test_a_backup_while_it_runs_is_a_store_of_its_own(tmp_path: Path):
    store = await open_store(tmp_path)
    for number in range(50):
        await store.transact((), [Put(f"k{number}", b"1")])
    (tmp_path / "copy").mkdir()
    changing = [store.transact((), [Put(f"k{number}", b"2"), Put(f"l{number}", b"2")]) for number in range(50)]
    copied = store.backup(RealDisk(), str(tmp_path / "copy" / "registry.db"))
    await asyncio.gather(*changing[:25], copied, *changing[25:])
    await store.transact((), [Put("later", b"")])
    found = await content(tmp_path / "copy")
    assert set(found) >= {f"k{number}" for number in range(50)}
    for number in range(50):
        assert (found[f"k{number}"] == b"2") == (f"l{number}" in found), "all of a change or nothing of it"
    assert "later" not in found
    assert "later" in {entry.key for entry in (await store.range("")).entries}
    await store.close()


async def test_a_backup_to_a_bad_place_does_not_touch_the_store(tmp_path: Path):
    store = await open_store(tmp_path)
    await store.transact((), [Put("a", b"1")])
    with pytest.raises(OSError):
        await store.backup(RealDisk(), str(tmp_path / "nowhere" / "registry.db"))
    await store.transact((), [Put("a", b"2")])
    await store.close()
