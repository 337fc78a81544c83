"""A catalog that this process has open: one thread asks it, the event loop waits for answers.

Nothing is imported and no file is made before there is something to write, or a file to read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from clarion.catalog.content import NO_REVISION, CatalogAwayError, CatalogNews
from clarion.model.subscription import Subscription

if TYPE_CHECKING:
    from clarion.catalog.database import CatalogDatabase

CATALOG_FILE: Final = "catalog.db"
ANSWER_SECONDS: Final = 20.0  # more than a lost connection's time limits, one after the other
_WAITING_MAX: Final = 200  # more stand in line for one thread only while nobody answers
_CLOSE_SECONDS: Final = 3.0

Result = TypeVar("Result")


class OpenCatalog:
    """`place`: the path of a SQLite file, or a URL of PostgreSQL's. Implements CatalogAccess."""

    def __init__(self, place: str, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._place = place
        self._answer_seconds = answer_seconds
        self._thread: ThreadPoolExecutor | None = None
        self._database: CatalogDatabase | None = None
        self._waiting = 0

    async def news(self, known: int) -> CatalogNews | None:
        if self._is_unmade:
            return None if known == NO_REVISION else CatalogNews(NO_REVISION, (), frozenset())
        return await self._in_thread(lambda database: database.news(known))

    async def save(self, subscription: Subscription, expected: int) -> Subscription:
        return await self._in_thread(lambda database: database.save(subscription, expected))

    async def remove(self, name: str, expected: int) -> None:
        await self._in_thread(lambda database: database.remove(name, expected))

    async def close(self) -> None:
        if self._thread is None:
            return
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def _is_unmade(self) -> bool:
        return self._database is None and "://" not in self._place and not _has_content(self._place)

    async def _in_thread(self, work: Callable[[CatalogDatabase], Result]) -> Result:
        if self._waiting >= _WAITING_MAX:
            raise CatalogAwayError("the catalog does not answer, and too many wait for it")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="clarion-catalog")
        self._waiting += 1
        asking = asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)
        asking.add_done_callback(self._count_done)
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await asyncio.shield(asking)
        except TimeoutError:
            raise CatalogAwayError("the catalog does not answer") from None

    def _count_done(self, asked: asyncio.Future[Result]) -> None:
        """Also of who did not wait for it: then nobody else hears of its error."""
        self._waiting -= 1
        if not asked.cancelled():
            asked.exception()

    def _do(self, work: Callable[[CatalogDatabase], Result]) -> Result:
        if self._database is None:
            from clarion.catalog.database import CatalogDatabase  # half a second's worth of imports

            self._database = CatalogDatabase(self._place)
        return work(self._database)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()


def _has_content(path: str) -> bool:
    try:
        return os.path.getsize(path) > 0
    except FileNotFoundError:
        return False
