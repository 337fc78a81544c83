"""The coordination store of a cluster on several machines: etcd.

All keys lie under one prefix, so that one etcd can serve several clusters. Reads are linearizable. Of a transaction
that got no answer nobody knows the outcome; it is not asked for again here (see `changes`).

A watch is exact: it resumes at the revision after the last one it has told, on whichever endpoint answers. Because a
server that is frozen, or cut off from its peers, is silent instead of closing the stream, a watch that has heard
nothing for a while asks what the newest revision is, and begins anew elsewhere if it has missed one.
"""

from __future__ import annotations

import asyncio
import math
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from clarion.cluster.coordination import (
    Change,
    CompactedError,
    Compare,
    Entry,
    KeyEvent,
    LeaseId,
    LeaseNotFoundError,
    Operation,
    OutcomeUnknownError,
    Put,
    Range,
    Revision,
    StoreError,
    StoreFailedError,
    TransactionResult,
    check_size,
)
from clarion.cluster.etcd_client import EtcdAddress, EtcdClient, EtcdError, EtcdStream, Json, NoAnswerError
from clarion.world import event_log

log = event_log("cluster")

_ATTEMPT_SECONDS: Final = 1.5  # three endpoints can be asked within the shortest lease that makes sense
_POLL_SECONDS: Final = 2.0  # how long a watch believes in silence
_PAUSE_SECONDS: Final = 0.2  # before a watch that has failed begins anew
_PAGE_KEYS: Final = 2000  # of a range, at a time: a page of the largest values stays below etcd's own limit
_COMPACTED: Final = 11  # gRPC's "out of range"
_NOT_FOUND: Final = 5
_OLDEST: Final = (3, 4)
_LOSES_DATA: Final = ("3.5.0", "3.5.1", "3.5.2")  # etcd's own announcement: inconsistent after a crash


class EtcdStore:
    """Made by `open`."""

    def __init__(self, client: EtcdClient, prefix: str, poll_seconds: float) -> None:
        assert prefix, "a store of its own, not all of etcd"
        self._client = client
        self._prefix = prefix
        self._poll_seconds = poll_seconds
        self._is_closed = False
        self._streams: dict[EtcdStream, None] = {}

    @classmethod
    async def open(
        cls,
        address: EtcdAddress,
        prefix: str,
        *,
        attempt_seconds: float = _ATTEMPT_SECONDS,
        poll_seconds: float = _POLL_SECONDS,
    ) -> EtcdStore:
        """StoreError: none of the endpoints answers, or one does that must not be used."""
        store = cls(EtcdClient(address, attempt_seconds=attempt_seconds), prefix, poll_seconds)
        try:
            await store._check_version(len(address.endpoints))
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Entry | None:
        answer = await self._read({"key": self._encoded(key)})
        return next(self._entries(answer), None)

    async def range(self, prefix: str) -> Range:
        while True:
            try:
                return await self._range(prefix)
            except CompactedError:
                pass  # between two of its pages: read anew

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        check_size(compares, operations)
        body = {
            "compare": [self._compare(one) for one in compares],
            "success": [self._operation(one) for one in operations],
        }
        self._check_usable()
        try:
            answer = await self._client.ask("/v3/kv/txn", body)
        except (NoAnswerError, EtcdError) as error:
            raise self._reason(error) from error
        return TransactionResult(bool(answer.get("succeeded")), _revision(answer))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        next_revision = from_revision
        while True:
            self._check_usable()
            try:
                watching = _Watching(self, prefix, next_revision)
                await watching.begin()
                try:
                    while True:
                        for change in await watching.changes():
                            next_revision = change.revision + 1
                            yield change
                finally:
                    watching.close()
            except NoAnswerError as error:
                self._check_usable()
                log.debug("watch_begins_anew", reason=str(error), revision=next_revision)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def compact(self, revision: int) -> None:
        try:
            await self._ask("/v3/kv/compaction", {"revision": str(revision)})
        except CompactedError:
            pass  # by somebody else already

    async def grant_lease(self, ttl_seconds: float) -> LeaseId:
        """etcd counts in whole seconds, and has a shortest time of its own: it may last longer than asked for."""
        answer = await self._ask("/v3/lease/grant", {"TTL": str(math.ceil(ttl_seconds))})
        return LeaseId(int(answer["ID"]))

    async def keep_alive(self, lease: LeaseId) -> None:
        answer = await self._ask("/v3/lease/keepalive", {"ID": str(lease)})
        if int(answer["result"].get("TTL", 0)) <= 0:
            raise LeaseNotFoundError(f"lease {lease} is over")

    async def revoke_lease(self, lease: LeaseId) -> None:
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseNotFoundError:
            pass

    async def close(self) -> None:
        self._is_closed = True
        for stream in list(self._streams):
            stream.close()
        await self._client.close()

    async def _check_version(self, endpoints: int) -> None:
        reason: Exception | None = None
        for _ in range(endpoints):
            try:
                version = str((await self._client.get("/version"))["etcdserver"])
            except (NoAnswerError, EtcdError) as error:
                reason = error
                continue
            if tuple(map(int, version.split(".")[:2])) < _OLDEST or version in _LOSES_DATA:
                raise StoreError(f"etcd {version} must not be used; use 3.4, or 3.5.3 and newer")
            return
        raise StoreError(f"no endpoint of etcd answers: {reason}")

    async def _range(self, prefix: str) -> Range:
        start = self._prefix + prefix
        body = {"key": _b64(start.encode()), "range_end": _b64(_end_of(start)), "limit": str(_PAGE_KEYS)}
        page = await self._read(body)
        revision = _revision(page)
        entries = list(self._entries(page))
        while page.get("more"):
            after = self._encoded(entries[-1].key + "\x00")
            page = await self._read({**body, "key": after, "revision": str(revision)})
            entries += self._entries(page)
        return Range(tuple(entries), revision)

    async def _newest_revision(self) -> Revision:
        return _revision(await self._read({"key": self._encoded(""), "count_only": True}))

    async def _read(self, body: Json) -> Json:
        return await self._ask("/v3/kv/range", body)

    async def _ask(self, path: str, body: Json) -> Json:
        """For what may be asked twice."""
        self._check_usable()
        try:
            return await self._client.ask_surely(path, body)
        except (NoAnswerError, EtcdError) as error:
            raise self._reason(error) from error

    def _reason(self, error: NoAnswerError | EtcdError) -> StoreError:
        if self._is_closed:
            return StoreFailedError("the store was closed")
        if isinstance(error, NoAnswerError):
            return OutcomeUnknownError(f"etcd does not answer: {error}")
        if error.code == _NOT_FOUND:
            return LeaseNotFoundError(str(error))
        if error.code == _COMPACTED:
            return CompactedError(0, 0)
        return StoreError(f"etcd refuses: {error}")

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreFailedError("the store was closed")

    def _compare(self, one: Compare) -> Json:
        return {
            "key": self._encoded(one.key),
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(one.mod_revision),
        }

    def _operation(self, one: Operation) -> Json:
        if isinstance(one, Put):
            put = {"key": self._encoded(one.key), "value": _b64(one.value), "lease": str(one.lease or 0)}
            return {"request_put": put}
        return {"request_delete_range": {"key": self._encoded(one.key)}}

    def _encoded(self, key: str) -> str:
        return _b64((self._prefix + key).encode())

    def _entries(self, answer: Json) -> Iterator[Entry]:
        return map(self._entry, answer.get("kvs", ()))

    def _entry(self, kv: Json) -> Entry:
        lease = int(kv.get("lease", 0))
        return Entry(
            self._key(kv),
            b64decode(kv.get("value", "")),
            Revision(int(kv["create_revision"])),
            Revision(int(kv["mod_revision"])),
            LeaseId(lease) if lease else None,
        )

    def _key(self, kv: Json) -> str:
        return b64decode(kv["key"]).decode()[len(self._prefix) :]

    def _event(self, event: Json) -> KeyEvent:
        is_gone = event.get("type") == "DELETE"
        return KeyEvent(self._key(event["kv"]), None if is_gone else self._entry(event["kv"]))


class _Watching:
    """One stream of a watch."""

    def __init__(self, store: EtcdStore, prefix: str, from_revision: int) -> None:
        self._store = store
        self._prefix = store._prefix + prefix
        self._from = from_revision
        self._known = 0  # the newest revision that this endpoint has told
        self._stream: EtcdStream

    async def begin(self) -> None:
        # From one earlier, which is passed over: etcd takes a watch from the very revision that it has compacted to,
        # of which it may have forgotten deletions.
        start = max(1, self._from - 1)
        create = {"key": _b64(self._prefix.encode()), "range_end": _b64(_end_of(self._prefix))}
        body = {"create_request": {**create, "start_revision": str(start)}}
        self._stream = await self._store._client.stream("/v3/watch", body)
        self._store._streams[self._stream] = None

    async def changes(self) -> list[Change]:
        try:
            async with asyncio.timeout(self._store._poll_seconds):
                answer = await self._stream.receive()
        except TimeoutError:
            await self._check_silence()
            return []
        except EtcdError as error:
            raise self._store._reason(error) from error
        if answer.get("canceled"):
            raise self._cancelled(answer)
        self._known = max(self._known, _revision(answer))
        events = [event for event in answer.get("events", ()) if _mod_revision(event) >= self._from]
        return [
            Change(Revision(revision), tuple(map(self._store._event, group)))
            for revision, group in groupby(events, _mod_revision)
        ]

    def close(self) -> None:
        self._stream.close()
        self._store._streams.pop(self._stream, None)

    async def _check_silence(self) -> None:
        try:
            newest = await self._store._newest_revision()
        except OutcomeUnknownError:
            return  # nobody answers at all: no reason to believe that another stream would
        if newest > self._known:
            raise NoAnswerError(f"silent at revision {self._known}, and etcd is at {newest}")

    def _cancelled(self, answer: Json) -> StoreError | NoAnswerError:
        compacted = int(answer.get("compact_revision", 0))
        if compacted:
            return CompactedError(self._from, compacted + 1)
        return NoAnswerError(str(answer.get("cancel_reason", "the watch was cancelled")))


def _revision(answer: Json) -> Revision:
    return Revision(int(answer["header"]["revision"]))


def _mod_revision(event: Any) -> int:
    return int(event["kv"]["mod_revision"])


def _b64(value: bytes) -> str:
    return b64encode(value).decode()


def _end_of(prefix: str) -> bytes:
    """The first key that does not begin so. UTF-8 has no byte 255, so the last one can always be raised."""
    start = prefix.encode()
    return start[:-1] + bytes([start[-1] + 1])
