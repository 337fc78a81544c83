"""Numbers of which each is given out once, by all brokers together and over restarts: broker epochs, producer ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from clarion.cluster.changes import change, until_answered
from clarion.cluster.coordination import Compare, CoordinationStore, Entry, Put, absent, unchanged

BROKER_EPOCH: Final = "broker-epoch"
NEXT_PRODUCER_ID: Final = "next-producer-id"
_TAKER: Final = "-taker"  # behind a counter's key: who took the last number
_BLOCK: Final = 1_000  # ids taken from the store at once, as in Kafka: a restart skips the rest of a block


async def advance(store: CoordinationStore, key: str, following: Callable[[int | None], int], taker: str) -> int:
    """Set the counter to what follows its present value (None: it has none yet), and return that.

    `taker` tells brokers apart. Where an answer was lost, the store is asked what became of the change, and the number
    alone would not say whose it is: another broker may have taken the very same one.
    """
    while True:
        known = await until_answered(lambda: store.get(key))
        before = await until_answered(lambda: store.get(key + _TAKER))
        number = following(int(known.value) if known else None)
        puts = [Put(key, b"%d" % number), Put(key + _TAKER, taker.encode())]
        if await change(store, [_as_it_was(known, key), _as_it_was(before, key + _TAKER)], puts, lambda _: None):
            return number


def _as_it_was(known: Entry | None, key: str) -> Compare:
    return unchanged(known) if known else absent(key)


async def next_broker_epoch(store: CoordinationStore, latest_in_logs: int, taker: str) -> int:
    """Above every epoch that was ever used: by what the store says, and by what the logs say (-1: nothing).

    Every start begins a new term as leader, so that a log that lost its tail never passes for the one it was. The
    store may be an older copy of itself; an epoch that went back would look like damage to the next recovery.
    """
    return await advance(
        store, BROKER_EPOCH, lambda known: max(-1 if known is None else known, latest_in_logs) + 1, taker
    )


class ProducerIds:
    def __init__(self, store: CoordinationStore, taker: str, known: Iterable[int] = ()) -> None:
        """`known`: the ids that have written into the logs. The store may be an older copy of itself, and give out a
        block again: a new producer's first messages would then be taken for repetitions, and never written."""
        self._store = store
        self._taker = taker
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
        behind = await advance(self._store, NEXT_PRODUCER_ID, self._end_of_next_block, self._taker)
        self._block = iter(range(behind - _BLOCK, behind))

    def _end_of_next_block(self, known: int | None) -> int:
        first = known or 0
        while first // _BLOCK in self._used_blocks:
            first += _BLOCK
        return first + _BLOCK
