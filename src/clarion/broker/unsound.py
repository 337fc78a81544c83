"""Replicas that nobody should rely on: they leave the in-sync set, and what is damaged is filled anew from a good one.

    damaged     what it holds is not what was written, by its checksums       leaves, and is filled anew
    failed      its disk has refused to write or to flush                     leaves, until a start finds the disk well
    short       it ends before what was flushed, as was found at the start    leaves, and fetches what it lacks
    not made    its files could not be made                                   leaves, until they can

Where nobody else who is there holds everything it stays: what it has is the best there is. Every second all are looked
at, whoever noticed what; before the broker joins, so that nobody is elected for what it lost while it was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from clarion.broker.partitions import Partitions
from clarion.broker.replicas import Replicas
from clarion.cluster import ClusterImage, Topic
from clarion.cluster.coordination import StoreError
from clarion.cluster.in_sync import InSyncSets
from clarion.cluster.schema import NO_LEADER
from clarion.replication import Partition
from clarion.world.tasks import start_task

_LOOK_SECONDS: Final = 1.0  # nothing is lost meanwhile; a leader that cannot write refuses its clients for so long


class UnsoundReplicas:
    def __init__(
        self, node_id: int, partitions: Partitions, in_sync: InSyncSets, image: Callable[[], ClusterImage]
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._in_sync = in_sync
        self._image = image
        self._left: dict[Partition, int] = {}  # from which leader epoch on nobody counts on it
        self._watching: asyncio.Task[None] | None = None

    async def leave(self) -> None:
        """Those that are unsound now. Before the broker joins also those that were found to be short."""
        for partition in self._partitions:
            reason = partition.unsound
            if partition.is_short and self._watching is None:
                reason = reason or "it ends before what was flushed"
            if reason and partition not in self._left:
                topic = self._image().topic_by_id(partition.topic_id)
                if topic is None:
                    continue
                is_served = self._watching is not None
                epoch = await self._in_sync.leave(topic, partition.tp.partition, reason, is_served=is_served)
                if epoch is not None:
                    self._left[partition] = epoch

    def start(self, replicas: Replicas) -> None:
        self._left = {one: epoch for one, epoch in self._left.items() if one.unsound}
        self._watching = start_task(self._watch(replicas), "unsound replicas")

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self, replicas: Replicas) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with suppress(StoreError, OSError):  # the store is away: the next look comes soon
                await self.leave()
                for topic, index, reason in self._not_made(replicas):
                    await self._in_sync.leave(topic, index, reason, is_served=False)
            self._left = {one: epoch for one, epoch in self._left.items() if not one.is_gone}
            for partition, epoch in self._left.items():
                if partition.is_damaged and self._may_be_filled(partition, epoch):
                    replicas.fill_anew(partition)

    def _not_made(self, replicas: Replicas) -> Iterator[tuple[Topic, int, str]]:
        """Those for which somebody still waits."""
        for (topic_id, index), reason in list(replicas.not_made.items()):
            topic = self._image().topic_by_id(topic_id)
            if topic is not None and self._node_id in (
                *topic.partitions[index].in_sync,
                topic.partitions[index].leader,
            ):
                yield topic, index, reason

    def _may_be_filled(self, partition: Partition, epoch: int) -> bool:
        """A good one leads, and is there: until then the damaged one is better than none."""
        topic = self._image().topic_by_id(partition.topic_id)
        if topic is None:
            return False
        state = topic.partitions[partition.tp.partition]
        is_out = self._node_id not in (*state.in_sync, *state.eligible, state.leader)
        is_led = state.leader != NO_LEADER and state.leader in self._image().brokers
        return state.leader_epoch >= epoch and is_out and is_led
