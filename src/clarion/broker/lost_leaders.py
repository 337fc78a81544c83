"""Leaders that were lost just now: who asks where to go waits for a moment, and hears of their successors.

A client whose connection to a leader breaks asks another broker for metadata within milliseconds. That broker's own
connection, by which it follows the leader, breaks in the same moment; but until the cluster has agreed on another one
some tens of milliseconds pass. To answer meanwhile that the old one leads costs a client a second: librdkafka does not
ask again sooner, and Java not before it has tried to connect there. To answer that nobody leads costs a tenth.

A connection may break for other reasons. The wait is short, and ends when the leader is heard again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from clarion.cluster import ClusterImage
from clarion.cluster.image import EMPTY

_WAIT_SECONDS: Final = 0.5  # an election takes 0.02 to 0.05 s, and 0.15 over etcd; no client loses its patience so soon
# A broker that is busy finds the question and the end of its own connection at the same time: what came with a request
# is heard before it is answered. So many turns of the loop it takes from a socket to `note`.
_TURNS: Final = 5


class LostLeaders:
    def __init__(self, wait_seconds: float = _WAIT_SECONDS) -> None:
        self.wait_seconds = wait_seconds
        self._image = EMPTY
        self._deadlines: dict[int, float] = {}  # by broker
        self._changed = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._deadlines)

    def note(self, broker_id: int, is_there: bool) -> None:
        """A leader has answered, or its connection has ended."""
        self.find(broker_id) if is_there else self.lose(broker_id)

    def lose(self, broker_id: int) -> None:
        if _leads_anything(self._image, broker_id):
            self._deadlines[broker_id] = asyncio.get_running_loop().time() + self.wait_seconds

    def find(self, broker_id: int) -> None:
        if self._deadlines.pop(broker_id, None) is not None:
            self._changed.set()

    def on_image(self, image: ClusterImage) -> None:
        """A broker whose lease has ended is lost for those, too, who had no connection to it."""
        before, self._image = self._image.brokers, image
        if image.brokers is not before:
            for gone in before.keys() - image.brokers.keys() - self._deadlines.keys():
                self.lose(gone)
        for broker_id in [one for one in self._deadlines if not _leads_anything(image, one)]:
            del self._deadlines[broker_id]
        self._changed.set()

    async def replaced(self, leaders: Callable[[], Iterable[int]]) -> None:
        """Returns when none of these was lost, or it has taken too long to replace them. They are asked for anew."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        while self and (waited_for := [self._deadlines[one] for one in set(leaders()) if one in self._deadlines]):
            self._changed.clear()
            try:
                async with asyncio.timeout_at(max(waited_for)):
                    await self._changed.wait()
            except TimeoutError:
                now = asyncio.get_running_loop().time()
                self._deadlines = {one: until for one, until in self._deadlines.items() if until > now}


def _leads_anything(image: ClusterImage, broker_id: int) -> bool:
    return any(state.leader == broker_id for topic in image.topics.values() for state in topic.partitions)
