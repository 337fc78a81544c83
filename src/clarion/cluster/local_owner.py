"""The process that has the database open, at the service of the others on its machine.

They reach it over a Unix socket in the same folder, which only their common user can open. The catalog of subscriptions
is its as well. A lease belongs to the
connection that was the last to keep it alive, and ends with it: the kernel closes the connections of a process that
dies, however it dies. A process that is frozen loses its leases by their time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from clarion.catalog.content import CatalogAccess
from clarion.catalog.messages import answer
from clarion.cluster import local_protocol as protocol
from clarion.cluster.coordination import LeaseId, StoreError
from clarion.cluster.sqlite_store import SqliteStore
from clarion.world import event_log
from clarion.world.tasks import start_task

log = event_log("cluster")


class StoreOwner:
    def __init__(self, store: SqliteStore, socket_path: str, catalog: CatalogAccess) -> None:
        self.catalog = catalog
        self._store = store
        self._path = socket_path
        self._clients: dict[_Client, None] = {}
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Whoever holds the lock of the folder may do this; what a dead owner left is in the way no longer."""
        self._remove_socket()
        self._server = await asyncio.start_unix_server(self._connected, self._path)
        os.chmod(self._path, 0o600)

    async def close(self) -> None:
        """Clients find out by the end of their connections. Their leases stay: they will go on with the next owner."""
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            await client.close()
        self._remove_socket()
        await self.catalog.close()

    def hand_over(self, lease: LeaseId, client: _Client) -> None:
        """It is this client's now."""
        for other in self._clients:
            other.leases.pop(lease, None)
        client.leases[lease] = None

    def _remove_socket(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self, self._store, writer)
        self._clients[client] = None
        try:
            await client.serve(reader)
        finally:
            del self._clients[client]


class _Client:
    def __init__(self, owner: StoreOwner, store: SqliteStore, writer: asyncio.StreamWriter) -> None:
        self.leases: dict[LeaseId, None] = {}
        self._owner = owner
        self._store = store
        self._writer = writer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._questions: dict[int, asyncio.Task[None]] = {}  # to the catalog, which may be slow to answer
        self._is_closing = False
        self._known: dict[str, Callable[[protocol.Message], Coroutine[Any, Any, object]]] = {
            "get": self._get,
            "range": self._range,
            "transact": self._transact,
            "compact": self._compact,
            "grant_lease": self._grant_lease,
            "keep_alive": self._keep_alive,
            "revoke_lease": self._revoke_lease,
            "catalog": self._catalog,
        }

    async def serve(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._begin(await protocol.receive(reader))
        except (EOFError, OSError, ValueError):
            pass
        await self._end()

    async def close(self) -> None:
        self._is_closing = True
        self._writer.close()
        await self._finish()

    def _begin(self, message: protocol.Message) -> None:
        number = message["id"]
        match message["call"]:
            case "unwatch":
                if watch := self._watches.get(number):
                    watch.cancel()
            case "watch":
                self._run(self._watches, number, self._watch(message))
            case "catalog":
                self._run(self._questions, number, self._answer(message))
            case _:
                self._run(self._calls, number, self._answer(message))

    def _run(self, tasks: dict[int, asyncio.Task[None]], number: int, work: Coroutine[Any, Any, None]) -> None:
        tasks[number] = task = start_task(work, "a request to the store")
        task.add_done_callback(lambda _: tasks.pop(number, None))

    async def _end(self) -> None:
        """The process has gone: what it asked for happens or does not, as a whole; then its leases go."""
        self._writer.close()
        await self._finish()
        if self._is_closing:
            return
        for lease in list(self.leases):
            log.info("lease_ended", lease=lease, reason="the process that held it has closed its connection")
            try:
                await self._store.revoke_lease(lease)
            except (StoreError, OSError) as error:
                log.warning("lease_not_ended", lease=lease, reason=str(error))  # its time will end it

    async def _finish(self) -> None:
        """Changes under way are awaited: they happen in a thread. Watches would never end by themselves. What was asked
        of the catalog happens, and nobody hears of it: others wait meanwhile to lead in place of who has gone."""
        unheard = [*self._watches.values(), *self._questions.values()]
        for task in unheard:
            task.cancel()
        under_way = [*self._calls.values(), *unheard]
        if under_way:
            await asyncio.wait(under_way)

    async def _answer(self, message: protocol.Message) -> None:
        try:
            serve = self._known.get(message["call"])
            if serve is None:
                raise StoreError(f"the owner of the store knows no {message['call']!r}: it is another version")
            self._send({"id": message["id"], "answer": await serve(message)})
        except (StoreError, OSError) as error:
            self._send({"id": message["id"], **protocol.from_error(error)})

    async def _watch(self, message: protocol.Message) -> None:
        try:
            async for change in self._store.watch(message["prefix"], message["from"]):
                self._send({"id": message["id"], "answer": protocol.from_change(change)})
                await self._writer.drain()
        except StoreError as error:
            self._send({"id": message["id"], **protocol.from_error(error)})
        except OSError:
            pass  # the connection: `serve` hears of it too

    def _send(self, message: protocol.Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(protocol.encode(message))

    async def _get(self, message: protocol.Message) -> object:
        return protocol.from_entry(await self._store.get(message["key"]))

    async def _range(self, message: protocol.Message) -> object:
        return protocol.from_range(await self._store.range(message["prefix"]))

    async def _transact(self, message: protocol.Message) -> object:
        compares = protocol.to_compares(message["compares"])
        outcome = await self._store.transact(compares, protocol.to_operations(message["operations"]))
        return {"succeeded": outcome.succeeded, "revision": outcome.revision}

    async def _compact(self, message: protocol.Message) -> object:
        await self._store.compact(message["revision"])
        return None

    async def _grant_lease(self, message: protocol.Message) -> object:
        lease = await self._store.grant_lease(message["ttl_seconds"])
        self._owner.hand_over(lease, self)
        return lease

    async def _keep_alive(self, message: protocol.Message) -> object:
        await self._store.keep_alive(message["lease"])
        self._owner.hand_over(message["lease"], self)
        return None

    async def _revoke_lease(self, message: protocol.Message) -> object:
        self.leases.pop(message["lease"], None)
        await self._store.revoke_lease(message["lease"])
        return None

    async def _catalog(self, message: protocol.Message) -> object:
        return await answer(self._owner.catalog, message["question"])
