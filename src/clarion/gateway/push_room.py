"""What the push subscriptions of a broker have under way together, and how much that may be."""

from __future__ import annotations

import asyncio
from typing import Final

from clarion.gateway.loop_share import LoopShare

REQUESTS_MAX: Final = 256  # of all subscriptions: file descriptors, and tasks that the loop has to look after
BYTES_MAX: Final = 128 * 1024 * 1024  # of messages that were pulled and are not settled, likewise
OWN_BYTES_MAX: Final = 8 * 1024 * 1024  # of one subscription: a few pulls, which are a megabyte for each partition


class PushRoom:
    """What all subscriptions of a broker have under way."""

    def __init__(self, loop_share: LoopShare) -> None:
        self.loop_share = loop_share
        self.requests = 0
        self.held_bytes = 0
        self._waiting: set[asyncio.Event] = set()

    def has_request_for(self, own: int) -> bool:
        return own == 0 or self.requests < REQUESTS_MAX

    def has_bytes_for(self, own: int) -> bool:
        return own == 0 or (own < OWN_BYTES_MAX and self.held_bytes < BYTES_MAX)

    def tell_when_free(self, event: asyncio.Event) -> None:
        self._waiting.add(event)

    def free(self) -> None:
        """Somebody has given something back."""
        for event in self._waiting:
            event.set()
        self._waiting.clear()
