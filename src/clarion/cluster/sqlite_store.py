"""The coordination store of one machine: SQLite, in a thread of its own, off the event loop.

Exactly one connection, in one thread of one process, has the database open: the lock of the data directory guards it.
(SQLite before 3.51.3 can corrupt a write-ahead log that two connections write.) A backup while the broker runs
therefore goes through here. An error of the database other than a full disk is final: what the failed commit left
behind is not known, so nothing is tried again, everybody who waits hears StoreFailedError, and the process is to end
(`on_failure`). The next start finds out what happened.

The history for watchers is in memory and begins with the start: whoever watched before reads anew, as after a
compaction. Leases are kept; a start begins their time anew, since nobody could keep them alive meanwhile. Those of the
process that had the database open (`take_for_owner`) have ended with its lock.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from clarion.cluster.coordination import (
    OPERATIONS_MAX,
    Change,
    Compare,
    Delete,
    Entry,
    LeaseId,
    Operation,
    Range,
    StoreError,
    StoreFailedError,
    TransactionResult,
)
from clarion.cluster.history import History
from clarion.cluster.leases import LeaseClock
from clarion.cluster.sqlite_database import Database, StoreDamagedError, is_full, primary_code
from clarion.world import Disk, event_log, replace_file

log = event_log("cluster")

Result = TypeVar("Result")

_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteStore:
    """Made by `open`."""

    def __init__(self, path: str, on_failure: Callable[[Exception], None]) -> None:
        self._path = path
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clarion-store")
        self._failure: Exception | None = None
        self._is_closed = False
        self._leases = LeaseClock(self._end_lease)
        self._database: Database
        self._history: History

    @classmethod
    async def open(cls, path: str, on_failure: Callable[[Exception], None]) -> SqliteStore:
        """`on_failure` is called on the loop, once, when the store cannot be believed any longer."""
        store = cls(path, on_failure)
        try:
            store._database = await store._loop.run_in_executor(store._thread, _open, path)
        except BaseException:
            store._thread.shutdown()
            raise
        store._history = History(await store._in_thread(lambda: store._database.revision))
        for lease in await store._in_thread(store._database.leases_of_owner):
            await store._end_lease(lease)
        for lease, ttl_seconds in await store._in_thread(store._database.leases):
            store._leases.start(lease, ttl_seconds)
        return store

    async def get(self, key: str) -> Entry | None:
        return await self._in_thread(lambda: self._database.get(key))

    async def range(self, prefix: str) -> Range:
        return await self._in_thread(lambda: self._database.range(prefix))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        return await self._in_thread(lambda: self._transact(compares, operations))

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        return self._history.watch(prefix, from_revision)

    async def compact(self, revision: int) -> None:
        self._history.compact(revision)

    async def grant_lease(self, ttl_seconds: float) -> LeaseId:
        lease = await self._in_thread(lambda: self._database.grant_lease(ttl_seconds))
        self._leases.start(lease, ttl_seconds)
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        self._check_usable()
        self._leases.restart(lease)

    async def take_for_owner(self, lease: LeaseId) -> None:
        """Whoever opens the database next ends it: this process held it, and has gone."""
        self._leases.check(lease)
        await self._in_thread(lambda: self._database.take_for_owner(lease))

    async def revoke_lease(self, lease: LeaseId) -> None:
        self._leases.forget(lease)
        await self._end_lease(lease)

    async def backup(self, disk: Disk, path: str) -> None:
        """A copy of everything as it is at one moment; either a whole one is at `path` afterwards or none.

        Trouble with the copy's own disk is the caller's, as OSError, and does not touch the store.
        """
        content = await self._in_thread(self._database.content)
        await self._loop.run_in_executor(None, replace_file, disk, path, content)

    async def close(self) -> None:
        """What is under way ends first; what comes later is refused."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._leases.close()
        self._history.close()
        await self._loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        self._check_usable()
        return await self._loop.run_in_executor(self._thread, self._guarded, work)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StoreFailedError(f"{self._path} has failed: {self._failure}")
        if self._is_closed:
            raise StoreFailedError(f"{self._path} was closed")

    async def _end_lease(self, lease: LeaseId) -> None:
        keys = await self._in_thread(lambda: self._database.keys_of(lease))
        for at in range(0, len(keys), OPERATIONS_MAX):
            await self.transact((), [Delete(key) for key in keys[at : at + OPERATIONS_MAX]])
        await self._in_thread(lambda: self._database.end_lease(lease))

    # In the thread

    def _transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        outcome, change = self._database.transact(compares, operations)
        if change is not None:
            # Before the caller hears of it, and in the order of the commits.
            self._loop.call_soon_threadsafe(self._history.add, change)
        return outcome

    def _guarded(self, work: Callable[[], Result]) -> Result:
        if self._failure is not None:
            raise StoreFailedError(f"{self._path} has failed: {self._failure}")
        try:
            return work()
        except sqlite3.Error as error:
            if is_full(error):
                raise _no_room(self._path) from error
            self._fail(error)
        except StoreDamagedError as error:
            self._fail(error)
        raise StoreFailedError(f"{self._path} has failed: {self._failure}") from self._failure

    def _fail(self, error: Exception) -> None:
        self._failure = error
        log.error("store_failed", file=self._path, reason=str(error))
        self._loop.call_soon_threadsafe(self._on_failure, error)

    def _close(self) -> None:
        try:
            self._database.close()
        except sqlite3.Error as error:
            # Every commit is in the write-ahead log, which the next start reads.
            log.warning("store_not_closed", file=self._path, reason=str(error))


def _open(path: str) -> Database:
    """In the thread that alone may use it."""
    try:
        return Database(path)
    except sqlite3.Error as error:
        raise _reason(path, error) from error


def _reason(path: str, error: sqlite3.Error) -> StoreError | OSError:
    if primary_code(error) in _DAMAGED:
        return StoreDamagedError(f"{path} is damaged: {error}. Restore the file from a copy")
    return _no_room(path) if is_full(error) else OSError(errno.EIO, str(error), path)


def _no_room(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
