"""Looks, once per second, for followers that lag behind their leaders for too long: nobody waits for them then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from clarion.replication.partition import Partition

LOOK_SECONDS: Final = 1.0  # a follower may lag for thirty


class LagWatch:
    def __init__(self, partitions: Iterable[Partition], now_ms: Callable[[], int]) -> None:
        """`partitions` are gone through anew each time."""
        self._partitions = partitions
        self._now_ms = now_ms
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now_ms = self._now_ms()
            for partition in self._partitions:
                partition.tick(now_ms)
