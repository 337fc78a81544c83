"""The coordination store of several brokers on one machine: one of them has the database open, the others ask it.

Whoever gets the lock of the folder is the owner (`local_owner`); a supervisor that starts the brokers gets it first.
When the owner dies, the kernel lets go of the lock, and one of the others takes it and serves on. Every lease then
begins its full time anew, for nobody could keep it alive meanwhile; only the dead owner's own have ended with its
lock. An owner that is frozen keeps the lock: all decisions wait for it, reading and writing of messages does not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from clarion.catalog.access import ANSWER_SECONDS, CATALOG_FILE, OpenCatalog
from clarion.catalog.content import CatalogAccess, CatalogAwayError
from clarion.catalog.messages import AskedCatalog, answer
from clarion.cluster import local_protocol as protocol
from clarion.cluster.coordination import (
    Change,
    Compare,
    CoordinationStore,
    Entry,
    LeaseId,
    LeaseNotFoundError,
    Operation,
    OutcomeUnknownError,
    Range,
    Revision,
    StoreError,
    StoreFailedError,
    TransactionResult,
    check_size,
)
from clarion.cluster.local_owner import StoreOwner
from clarion.cluster.sqlite_store import SqliteStore
from clarion.world import event_log
from clarion.world.lock import FolderLock, FolderTakenError
from clarion.world.tasks import start_task

log = event_log("cluster")

DATABASE: Final = "registry.db"
SOCKET: Final = "store.sock"
_ANSWER_SECONDS: Final = 3.0  # after which a caller hears that nobody answers; the answer may still come
_SEARCH_SECONDS: Final = 0.02  # between two attempts to find the owner, or to become it
_SOCKET_PATH_BYTES_MAX: Final = 100  # of the 108 that the kernel takes

Result = TypeVar("Result")


class LocalStore:
    """Made by `open`."""

    def __init__(self, folder: str, on_failure: Callable[[Exception], None], answer_seconds: float) -> None:
        self._folder = folder
        self._on_failure = on_failure
        self._answer_seconds = answer_seconds
        self._lock: FolderLock | None = None
        self._owner: StoreOwner | None = None
        self._store: SqliteStore | _Remote | None = None
        self._is_attached = asyncio.Event()
        self._is_closed = False
        self._own_leases: dict[LeaseId, None] = {}
        self._attaching: asyncio.Task[None] | None = None
        self._folder_fd: int | None = None

    @classmethod
    async def open(
        cls, folder: str, on_failure: Callable[[Exception], None], *, answer_seconds: float = _ANSWER_SECONDS
    ) -> LocalStore:
        """`on_failure`: as of SqliteStore, should this process be the owner."""
        store = cls(folder, on_failure, answer_seconds)
        await store._attach()
        return store

    @property
    def is_owner(self) -> bool:
        return self._owner is not None

    async def get(self, key: str) -> Entry | None:
        return await self._ask(lambda store: store.get(key))

    async def range(self, prefix: str) -> Range:
        return await self._ask(lambda store: store.range(prefix))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        check_size(compares, operations)
        return await self._ask(lambda store: store.transact(compares, operations))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        """A new owner knows no history: whoever had not heard of everything is told so, and reads anew."""
        next_revision = from_revision
        while True:
            self._check_usable()
            await self._is_attached.wait()
            store = self._store
            try:
                if store is not None:
                    async for change in store.watch(prefix, next_revision):
                        next_revision = change.revision + 1
                        yield change
            except (_OwnerGoneError, StoreFailedError):
                self._check_usable()
                if self.is_owner:
                    raise

    async def compact(self, revision: int) -> None:
        await self._ask(lambda store: store.compact(revision))

    async def grant_lease(self, ttl_seconds: float) -> LeaseId:
        lease = await self._ask(lambda store: store.grant_lease(ttl_seconds))
        self._own_leases[lease] = None
        if isinstance(self._store, SqliteStore):
            await self._store.take_for_owner(lease)
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        try:
            await self._ask(lambda store: store.keep_alive(lease))
        except LeaseNotFoundError:
            self._own_leases.pop(lease, None)
            raise

    async def revoke_lease(self, lease: LeaseId) -> None:
        self._own_leases.pop(lease, None)
        await self._ask(lambda store: store.revoke_lease(lease))

    @property
    def catalog(self) -> CatalogAccess:
        """Subscriptions: the owner has them open, the others ask it."""
        return AskedCatalog(self._ask_catalog)

    async def _ask_catalog(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        async def ask(store: CoordinationStore) -> Mapping[str, Any]:
            if isinstance(store, _Remote):
                return await store.ask_catalog(question)
            assert self._owner is not None
            return await answer(self._owner.catalog, question)

        try:
            return await self._ask(ask, ANSWER_SECONDS)
        except StoreError as error:
            raise CatalogAwayError(str(error)) from error

    async def close(self) -> None:
        """Its leases end with it, as they would if the process died."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_attached.set()
        if self._attaching is not None:
            self._attaching.cancel()
            with suppress(asyncio.CancelledError):
                await self._attaching
        if isinstance(self._store, SqliteStore):
            for lease in self._own_leases:
                with suppress(StoreError, OSError):
                    await self._store.revoke_lease(lease)
        if self._owner is not None:
            await self._owner.close()
        if self._store is not None:
            await self._store.close()
        if self._lock is not None:
            self._lock.release()
        if self._folder_fd is not None:
            os.close(self._folder_fd)

    async def _ask(
        self, ask: Callable[[CoordinationStore], Awaitable[Result]], answer_seconds: float | None = None
    ) -> Result:
        self._check_usable()
        try:
            async with asyncio.timeout(answer_seconds or self._answer_seconds):
                await self._is_attached.wait()
                self._check_usable()
                assert self._store is not None
                return await ask(self._store)
        except TimeoutError:
            raise OutcomeUnknownError("the owner of the store does not answer") from None
        except _OwnerGoneError:
            await asyncio.sleep(0)  # who asks again at once must leave the turn in which this store hears of it
            raise OutcomeUnknownError("the owner of the store has gone") from None

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreFailedError("the store was closed")

    async def _attach(self) -> None:
        while not (await self._become_owner() or await self._connect()):  # noqa: ASYNC110
            await asyncio.sleep(_SEARCH_SECONDS)
        self._is_attached.set()

    async def _attach_again(self) -> None:
        """Nobody waits for this: what stands in its way ends the process."""
        try:
            await self._attach()
        except (StoreError, OSError) as error:
            self._on_failure(error)

    async def _become_owner(self) -> bool:
        try:
            self._lock = FolderLock(self._folder)
        except FolderTakenError:
            return False
        try:
            self._store = store = await SqliteStore.open(os.path.join(self._folder, DATABASE), self._on_failure)
            for lease in self._own_leases:
                with suppress(LeaseNotFoundError):
                    await store.take_for_owner(lease)
            catalog = OpenCatalog(os.path.join(self._folder, CATALOG_FILE))
            owner = StoreOwner(store, self._socket_path(), catalog)
            await owner.start()
        except BaseException:
            self._lock.release()
            self._lock = None
            raise
        self._owner = owner
        log.info("store_owned", folder=self._folder)
        return True

    async def _connect(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket_path())
        except OSError:
            return False
        self._store = _Remote(reader, writer, self._owner_gone)
        return True

    def _owner_gone(self) -> None:
        if not self._is_closed:
            log.warning("store_owner_gone", folder=self._folder)
            self._is_attached.clear()
            self._store = None
            self._attaching = start_task(self._attach_again(), "finding the store again")

    def _socket_path(self) -> str:
        path = os.path.join(self._folder, SOCKET)
        if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
            return path
        if self._folder_fd is None:
            self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder_fd}/{SOCKET}"


class _OwnerGoneError(Exception):
    """The connection has closed; what was asked may have been done."""


class _Remote:
    """The owner's store, from another process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_gone: Callable[[], None]) -> None:
        self._writer = writer
        self._on_gone = on_gone
        self._next = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._watching: dict[int, asyncio.Queue[protocol.Message | None]] = {}
        self._receiving = start_task(self._receive(reader), "answers of the store")

    async def get(self, key: str) -> Entry | None:
        return protocol.to_entry(await self._call("get", key=key))

    async def range(self, prefix: str) -> Range:
        return protocol.to_range(await self._call("range", prefix=prefix))

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        packed = {
            "compares": protocol.from_compares(compares),
            "operations": protocol.from_operations(operations),
        }
        answer = await self._call("transact", **packed)
        return TransactionResult(answer["succeeded"], Revision(answer["revision"]))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        number = self._number()
        told = self._watching[number] = asyncio.Queue()
        try:
            self._send({"id": number, "call": "watch", "prefix": prefix, "from": from_revision})
            while (message := await told.get()) is not None:
                if "error" in message:
                    raise protocol.to_error(message, from_revision)
                yield protocol.to_change(message["answer"])
            raise _OwnerGoneError
        finally:
            self._watching.pop(number, None)
            if not self._writer.is_closing():
                self._send({"id": number, "call": "unwatch"})

    async def compact(self, revision: int) -> None:
        await self._call("compact", revision=revision)

    async def grant_lease(self, ttl_seconds: float) -> LeaseId:
        return LeaseId(await self._call("grant_lease", ttl_seconds=ttl_seconds))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._call("keep_alive", lease=lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._call("revoke_lease", lease=lease)

    async def ask_catalog(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        told: Mapping[str, Any] = await self._call("catalog", question=question)
        return told

    async def close(self) -> None:
        self._writer.close()
        self._receiving.cancel()
        with suppress(asyncio.CancelledError):
            await self._receiving
        self._let_go()

    async def _call(self, call: str, **arguments: Any) -> Any:
        number = self._number()
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"id": number, "call": call, **arguments})
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _send(self, message: protocol.Message) -> None:
        if self._writer.is_closing():
            raise _OwnerGoneError
        self._writer.write(protocol.encode(message))

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._tell(await protocol.receive(reader))
        except (EOFError, OSError, ValueError):
            pass
        self._writer.close()
        self._let_go()
        self._on_gone()

    def _tell(self, message: protocol.Message) -> None:
        number = message["id"]
        if number in self._watching:
            self._watching[number].put_nowait(message)
        elif (waiting := self._waiting.get(number)) is not None and not waiting.done():
            if "error" in message:
                waiting.set_exception(protocol.to_error(message))
            else:
                waiting.set_result(message["answer"])

    def _let_go(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_OwnerGoneError())
        for told in self._watching.values():
            told.put_nowait(None)
