"""The latest changes of a store, in memory, for those who watch it.

A watcher holds no queue: it asks for what came after the last revision it has seen, so that one who is slow costs
nothing and at worst hears that the history has moved on without it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator
from typing import Final

from clarion.cluster.coordination import Change, CompactedError, Revision, StoreFailedError

_CHANGES_MAX: Final = 10_000  # hours of an administrator's work; a watcher that was away longer reads anew
_BYTES_MAX: Final = 16 * 1024 * 1024  # what all of that may cost in memory: values may have a megabyte


class History:
    def __init__(self, revision: Revision) -> None:
        """`revision`: the store's own. What led there is not known here."""
        self._changes: list[Change] = []
        self._bytes = 0
        self._compacted = int(revision)
        self._news = asyncio.Event()
        self._is_closed = False

    def add(self, change: Change) -> None:
        self._changes.append(change)
        self._bytes += _size(change)
        if len(self._changes) > _CHANGES_MAX or self._bytes > _BYTES_MAX:
            self.compact(self._changes[len(self._changes) // 2].revision)
        self._wake()

    def compact(self, revision: int) -> None:
        """Forget what happened up to this revision, including it."""
        kept = [change for change in self._changes if change.revision > revision]
        self._compacted = max(self._compacted, revision)
        self._changes = kept
        self._bytes = sum(map(_size, kept))
        self._wake()

    def close(self) -> None:
        """Whoever watches hears that nothing will come any more."""
        self._is_closed = True
        self._wake()

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        next_revision = from_revision
        while True:
            news = self._news
            for change in self._since(next_revision):
                next_revision = change.revision + 1
                events = tuple(event for event in change.events if event.key.startswith(prefix))
                if events:
                    yield Change(change.revision, events)
            if self._is_closed:
                raise StoreFailedError("the store was closed")
            await news.wait()

    def _since(self, revision: int) -> list[Change]:
        if revision <= self._compacted:
            raise CompactedError(revision, self._compacted + 1)
        return self._changes[bisect_left(self._changes, revision, key=lambda change: change.revision) :]

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _size(change: Change) -> int:
    return sum(len(event.key) + len(event.entry.value if event.entry else b"") for event in change.events)
