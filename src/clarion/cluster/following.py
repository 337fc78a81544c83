"""The image of the cluster, a moment behind the store: by watching it, and by not trusting the watch alone.

A watch of a server that is frozen is silent, and so is one with nothing to tell. So every few seconds the store is
asked for its revision; an image that does not reach it is made anew from all there is. Only later revisions count: of
two things that are heard, the one that happened last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final, Protocol

from clarion.cluster.changes import until_answered
from clarion.cluster.coordination import Change, CoordinationStore, Range, Revision, StoreError
from clarion.cluster.image import EMPTY, ClusterImage
from clarion.cluster.schema import CLUSTER_ID
from clarion.world import event_log
from clarion.world.tasks import start_task

log = event_log("cluster")

_LOOK_SECONDS: Final = 3.0  # between two looks at the store's revision
_GRACE_SECONDS: Final = 0.5  # what happened this long ago should have been heard of
_PAUSE_SECONDS: Final = 0.2  # before what went wrong is tried anew
_REACH_SECONDS: Final = 10.0  # who waits for longer hears that the outcome is not known here


class Listener(Protocol):
    """Somebody else who lives by what the store says."""

    def take(self, change: Change) -> None: ...

    def take_all(self, content: Range) -> None: ...


class Following:
    """Made by `start`; `close` ends it."""

    def __init__(
        self,
        store: CoordinationStore,
        on_image: Callable[[ClusterImage], None],
        listeners: tuple[Listener, ...] = (),
        *,
        on_failure: Callable[[Exception], None] = lambda _: None,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """`on_image` is called with every new image, in order. `on_failure`, if a mistake of ours has ended that:
        whoever goes on with an image that stands still, and keeps its lease, is one whom nobody replaces."""
        self._store = store
        self._on_image = on_image
        self._on_failure = on_failure
        self._listeners = listeners
        self._look_seconds = look_seconds
        self._image = EMPTY
        self._waiting: dict[asyncio.Future[None], Revision] = {}
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._read_all()
        self._running = start_task(self._run(), "following the store")
        self._running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        error = None if running.cancelled() else running.exception()
        if isinstance(error, Exception):
            self._on_failure(error)

    def abandon(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def reach(self, revision: Revision) -> None:
        """Returns when the image is of this revision or a later one. TimeoutError if that takes too long."""
        if self._image.revision >= revision:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[reached] = revision
        try:
            async with asyncio.timeout(_REACH_SECONDS):
                await reached
        finally:
            self._waiting.pop(reached, None)

    async def refresh(self) -> None:
        """Returns when the image shows all that had happened when this was called."""
        await self.reach(await self._store_revision())

    async def _run(self) -> None:
        while True:
            watching = asyncio.get_running_loop().create_task(self._watch(self._image.revision + 1))  # awaited below
            try:
                while not (await asyncio.wait([watching], timeout=self._look_seconds))[0]:
                    if not await self._is_current():
                        log.warning("watch_silent", revision=self._image.revision)
                        break
            except (StoreError, OSError) as error:
                log.info("store_not_answering", reason=str(error))  # the lease's keeper complains
            finally:
                watching.cancel()
                with suppress(asyncio.CancelledError, StoreError, OSError):
                    await watching
            await self._read_again()

    async def _watch(self, from_revision: int) -> None:
        """CompactedError: the history no longer tells all that happened."""
        async with aclosing(self._store.watch("", from_revision)) as changes:
            async for one in changes:
                if one.revision > self._image.revision:
                    for listener in self._listeners:
                        listener.take(one)
                    self._show(self._image.after(one))

    async def _is_current(self) -> bool:
        revision = await self._store_revision()
        if self._image.revision < revision:
            await asyncio.sleep(_GRACE_SECONDS)
        return self._image.revision >= revision

    async def _store_revision(self) -> Revision:
        return (await until_answered(lambda: self._store.range(CLUSTER_ID))).revision

    async def _read_again(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(StoreError, OSError):
                return await self._read_all()

    async def _read_all(self) -> None:
        content = await until_answered(lambda: self._store.range(""))
        if content.revision > self._image.revision:
            for listener in self._listeners:
                listener.take_all(content)
            self._show(ClusterImage.of(content))

    def _show(self, image: ClusterImage) -> None:
        self._image = image
        self._on_image(image)
        for reached, revision in list(self._waiting.items()):
            if image.revision >= revision and not reached.done():
                reached.set_result(None)
