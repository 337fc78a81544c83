"""Looks, once per second, for followers that lag behind for too long, and for those that have come to be in sync."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from clarion.replication.partition import Partition
from clarion.world.tasks import start_task

LOOK_SECONDS: Final = 1.0  # a follower may lag for thirty


class LagWatch:
    def __init__(
        self, partitions: Iterable[Partition], now_ms: Callable[[], int], here: Callable[[float], Mapping[int, int]]
    ) -> None:
        """`partitions` are gone through anew each time. `here`: who fetches as a replica at a time of the loop's."""
        self._partitions = partitions
        self._now_ms = now_ms
        self._here = here
        self._task = start_task(self._run(), "watch of followers' lag")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now_ms, here = self._now_ms(), self._here(asyncio.get_running_loop().time())
            for partition in self._partitions:
                partition.tick(now_ms, here)
