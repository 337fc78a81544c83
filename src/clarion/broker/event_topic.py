"""What the cluster manager decided, kept in a topic: `__cluster_events`, one JSON object for each event.

The store holds the latest few hundred. Whoever leads the topic's only partition copies them from there, in their order
and each once, for they are numbered: so it does not matter who decided, nor that nobody led the topic meanwhile. The
controller's broker makes the topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from clarion.broker.threads import in_thread
from clarion.cluster import CoordinationStore, StoreError
from clarion.cluster.changes import until_answered
from clarion.cluster.events import EVENTS, ClusterEvent, events_in
from clarion.model.errors import KafkaError
from clarion.model.names import EVENTS_TOPIC
from clarion.replication import Partition
from clarion.wire.records import decode_batch, encode_batch
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(90 * 24 * 3600 * 1000),  # who looks for the reason of something looks within months
    "retention.bytes": str(100 * 1024 * 1024),  # half a million events; a cluster in trouble must not fill its disks
}
_PAUSE_SECONDS: Final = 5.0  # before what went wrong is tried again: nobody waits for it
_NOTHING: Final = -1


class EventTopic:
    def __init__(self, broker: Broker, store: CoordinationStore) -> None:
        self._broker = broker
        self._store = store
        self._news = asyncio.Event()
        self._task = start_task(self._run(), "copying the cluster's events")

    def on_image(self) -> None:
        """Somebody else may be the controller now, or lead the topic."""
        self._news.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._do_our_part()
            except (StoreError, OSError, KafkaError) as error:
                log.info("events_not_kept", reason=str(error), consequence="tried again; the store has the latest")
                await asyncio.sleep(_PAUSE_SECONDS)
                self._news.set()

    async def _do_our_part(self) -> None:
        broker = self._broker
        topic = broker.image.topic(EVENTS_TOPIC)
        if topic is None:
            if broker.image.controller == broker.node_id:
                await broker.create_topic(EVENTS_TOPIC, 1, _SETTINGS)
            return
        partition = broker.partitions.find(topic.id, 0)
        if partition is not None and partition.is_leader:
            await self._keep(partition, partition.leader_epoch)

    async def _keep(self, partition: Partition, epoch: int) -> None:
        """For as long as this broker leads the topic in this epoch; what ends it is noticed with the next event."""
        found = await until_answered(lambda: self._store.range(EVENTS))
        batches = partition.batches()
        last = await in_thread(lambda: _last_number(batches))
        known = events_in(found.entries)
        if known and known[-1].number < last:
            last = _NOTHING  # of another store, whose numbers began anew
        last = self._append(partition, known, last)
        async with aclosing(self._store.watch(EVENTS, found.revision + 1)) as changes:
            async for change in changes:
                if not partition.is_leader or partition.leader_epoch != epoch:
                    self._news.set()
                    return
                last = self._append(partition, events_in(one.entry for one in change.events if one.entry), last)

    def _append(self, partition: Partition, events: Iterable[ClusterEvent], last: int) -> int:
        """Those with a higher number than the last one; returns the highest."""
        fresh = [one for one in events if one.number > last]
        if not fresh:
            return last
        batch = encode_batch([(None, one.put.value, (), one.at_ms) for one in fresh])
        partition.append_own(batch, self._broker.arrival_ms())
        return fresh[-1].number


def _last_number(batches: Iterable[bytes]) -> int:
    """In a thread."""
    newest = deque(batches, maxlen=1)
    numbers = [ClusterEvent.of(one.value or b"").number for batch in newest for one in decode_batch(batch)]
    return max(numbers, default=_NOTHING)
