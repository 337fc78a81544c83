"""The broker's epoch: every start begins a new term as leader, so that a log that lost its tail never passes for the
one it was."""

from __future__ import annotations

from typing import Final

from clarion.cluster.changes import change
from clarion.cluster.coordination import CoordinationStore, Put, absent, unchanged

BROKER_EPOCH: Final = "broker-epoch"


async def next_broker_epoch(store: CoordinationStore, latest_in_logs: int) -> int:
    """Above every epoch that was ever used: by what the store says, and by what the logs say (-1: nothing).

    The store may be an older copy of itself. An epoch that went back would look like damage to the next recovery.
    """
    while True:
        known = await store.get(BROKER_EPOCH)
        epoch = max(int(known.value) if known else -1, latest_in_logs) + 1
        compare = unchanged(known) if known else absent(BROKER_EPOCH)
        if await change(store, [compare], [Put(BROKER_EPOCH, b"%d" % epoch)], lambda _: None):
            return epoch
