"""Ids for idempotent producers, in blocks: each is given out once, also over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from clarion.cluster.changes import change, until_answered
from clarion.cluster.coordination import CoordinationStore, Put, Revision, absent, unchanged

NEXT_PRODUCER_ID: Final = "next-producer-id"
_BLOCK: Final = 1_000  # ids taken from the store at once, as in Kafka: a restart skips the rest of a block


class ProducerIds:
    def __init__(self, store: CoordinationStore, known: Iterable[int] = ()) -> None:
        """`known`: the ids that have written into the logs. The store may be an older copy of itself, and give out a
        block again: a new producer's first messages would then be taken for repetitions, and never written."""
        self._store = store
        self._used_blocks = frozenset(one // _BLOCK for one in known)
        self._block = iter(range(0))
        self._taking = asyncio.Lock()  # its own: a producer does not wait for topics that are being made

    def at_hand(self) -> int | None:
        """One of the block that was taken last; None if it is used up."""
        return next(self._block, None)

    async def next(self) -> int:
        async with self._taking:
            while (fresh := self.at_hand()) is None:
                await self._take_block()
            return fresh

    async def _take_block(self) -> None:
        """If another broker has taken the same block first, the next one is tried."""
        known = await until_answered(lambda: self._store.get(NEXT_PRODUCER_ID))
        first = int(known.value) if known else 0
        while first // _BLOCK in self._used_blocks:
            first += _BLOCK
        compare = unchanged(known) if known else absent(NEXT_PRODUCER_ID)

        def use(_: Revision) -> None:
            self._block = iter(range(first, first + _BLOCK))

        await change(self._store, [compare], [Put(NEXT_PRODUCER_ID, b"%d" % (first + _BLOCK))], use)
