"""A broker's say in who is in sync: by compare-and-set.

The leader of a partition sees who keeps up with it. What it asks for is written only over the state that it knows: if
the controller has elected somebody else meanwhile, nothing is. A follower is let in only in the life in which it was
seen to have everything, for in another one it may have lost some.

Every broker may say that it has not everything itself: whatever the state is by then, it leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from clarion.cluster.changes import change, until_answered
from clarion.cluster.coordination import Compare, CoordinationStore, Put, StoreError, unchanged
from clarion.cluster.decisions import RulesOf
from clarion.cluster.elections import expand, leave, shrink
from clarion.cluster.image import ClusterImage, Topic
from clarion.cluster.schema import PartitionState, broker_key, partition_key, read_partition, write_partition
from clarion.model.ids import TopicId
from clarion.world import event_log
from clarion.world.events import Repeats

log = event_log("cluster")

_PAUSE_SECONDS: Final = 0.2  # before the store is asked again


class InSyncSets:
    def __init__(
        self, store: CoordinationStore, broker_id: int, image: Callable[[], ClusterImage], rules_of: RulesOf
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._image = image
        self._rules_of = rules_of
        self._said = Repeats()  # a broker that comes back joins the in-sync sets of a thousand partitions

    async def leave(self, topic: Topic, index: int, reason: str, *, is_served: bool = True) -> int | None:
        """This broker may lack something of the partition. Returns the leader epoch from which on nobody counts on what
        it had; None if nobody has more (of those who are alive, if it `is_served`), or the topic is gone."""
        key = partition_key(topic.id, index)
        while (known := await until_answered(lambda: self._store.get(key))) is not None:
            state = read_partition(known.value, known.mod_revision)
            alive = self._image().brokers
            without = leave(state, self._rules_of(topic), self._broker_id, alive if is_served else None)
            if without is None:
                return None
            # Who is said to be here with everything has to be in the life in which this broker knows it.
            here = [one for one in (*without.in_sync, *without.eligible) if is_served and one in alive]
            compares = [unchanged(known), *(Compare(broker_key(one), alive[one].revision) for one in here)]
            if await change(self._store, compares, [Put(key, write_partition(without))], lambda _: None):
                partition, now = f"{topic.name}-{index}", list(without.in_sync)
                log.warning("in_sync_left", partition=partition, broker=self._broker_id, now=now, reason=reason)
                return without.leader_epoch
            await asyncio.sleep(_PAUSE_SECONDS)  # until the image shows what was in the way
        return None

    async def alter(self, topic_id: TopicId, index: int, partition_epoch: int, followers: Mapping[int, int]) -> None:
        """Have these followers be in sync, each by the broker epoch in which it was seen.

        Returns when the state of that partition epoch is over, by this or by something else that happened; the image
        will show it. Followers that are no longer what they were stay out.
        """
        while (known := self._known(topic_id, index, partition_epoch)) is not None:
            topic, state = known
            wanted = self._wanted(topic, state, followers)
            joined = [one for one in wanted.in_sync if one not in state.in_sync]
            key = partition_key(topic_id, index)
            compares = [
                Compare(key, state.revision),
                *(Compare(broker_key(one), self._image().brokers[one].revision) for one in joined),
            ]
            try:
                if await change(self._store, compares, [Put(key, write_partition(wanted))], lambda _: None):
                    self._say(topic, index, state, wanted)
                    return
            except (StoreError, OSError) as error:
                log.warning("in_sync_not_altered", partition=f"{topic.name}-{index}", reason=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)  # until the image shows what was in the way

    def _known(self, topic_id: TopicId, index: int, partition_epoch: int) -> tuple[Topic, PartitionState] | None:
        topic = self._image().topic_by_id(topic_id)
        if topic is None or index >= topic.partition_count:
            return None
        state = topic.partitions[index]
        is_same = state.leader == self._broker_id and state.partition_epoch == partition_epoch
        return (topic, state) if is_same else None

    def _wanted(self, topic: Topic, state: PartitionState, followers: Mapping[int, int]) -> PartitionState:
        """Also where nobody goes and nobody may come: the leader hears that this was all."""
        rules, alive = self._rules_of(topic), self._image().brokers
        gone = [one for one in state.in_sync if one != state.leader and one not in followers]
        wanted = shrink(state, rules, gone)
        for one, life in followers.items():
            if one not in state.in_sync and one in state.replicas and one in alive and alive[one].epoch == life:
                wanted = expand(wanted, rules, one, life)
        return wanted._replace(partition_epoch=state.partition_epoch + 1)

    def _say(self, topic: Topic, index: int, before: PartitionState, now: PartitionState) -> None:
        if before.in_sync == now.in_sync or not self._said.allow(asyncio.get_running_loop().time()):
            return
        log.info(
            "in_sync_altered",
            partition=f"{topic.name}-{index}",
            before=list(before.in_sync),
            now=list(now.in_sync),
            **self._said.take_left_out(),
        )
