"""Coordinators over an internal topic, which is made when it is first needed.

Each partition of it has a coordinator of its own, a shard, on the broker that leads it (`coordinator_shard`).

    lead(partition) → loading → loaded ⇄ call, tick → resign
                         └→ failed → tried again

Nothing here knows what is coordinated. Groups are (`group_service`); transactions, queues and push state will be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Generic, NamedTuple

from clarion.broker.coordinator_shard import SAID_AGAIN_SECONDS, C, CoordinatorShard, User
from clarion.cluster import BrokerRegistration, StoreError, Topic
from clarion.cluster.schema import NO_LEADER
from clarion.groups.placement import partition_for
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition
from clarion.world import event_log
from clarion.world.events import Repeats
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_RETRY_SECONDS: Final = (5, 15, 60)  # what could not be loaded is tried again: a disk may recover


class InternalTopic(NamedTuple):
    """How the topic is made when it is first needed."""

    name: str
    partition_count: Callable[[], int]
    settings: Mapping[str, str]


class CoordinatorRuntime(Generic[C]):
    """All shards of one internal topic that this broker leads."""

    def __init__(self, broker: Broker, topic: InternalTopic, new_coordinator: Callable[[], C], user: User[C]) -> None:
        self._broker = broker
        self._topic = topic
        self._new_coordinator = new_coordinator
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._not_made = Repeats(lines_max=1, seconds=SAID_AGAIN_SECONDS)
        self._shards: dict[int, CoordinatorShard[C]] = {}  # by partition
        self._creating = asyncio.Lock()
        self._loading: dict[asyncio.Task[None], None] = {}

    @property
    def shards(self) -> list[CoordinatorShard[C]]:
        return list(self._shards.values())

    def start(self) -> None:
        """Begin to load; until a shard is loaded it answers COORDINATOR_LOAD_IN_PROGRESS."""
        topic = self._broker.image.topic(self._topic.name)
        if topic is not None:
            for partition in self._broker.partitions.of_topic(topic):
                if partition.is_leader:
                    self._add(partition)
            self._load_later(self.shards)

    async def stop(self) -> None:
        for task in list(self._loading):
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        for shard in self.shards:
            shard.stop()

    def lead(self, partition: Partition) -> None:
        """This broker leads one more partition of the topic from now on, or in another term."""
        self.resign(partition.tp.partition)
        self._load_later([self._add(partition)])

    def resign(self, index: int) -> None:
        """Another broker leads it from now on: whoever waits hears NOT_COORDINATOR."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.resign()

    # Who coordinates what

    def find(self, key: str) -> CoordinatorShard[C] | None:
        """None if another broker does, or nobody yet."""
        topic = self._broker.image.topic(self._topic.name)
        return None if topic is None else self._shards.get(partition_for(key, topic.partition_count))

    async def get(self, key: str) -> CoordinatorShard[C]:
        """The topic is made if there is none yet."""
        await self.ensure_topic()
        shard = self.find(key)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates {key!r}")
        return shard

    def coordinator_of(self, key: str) -> BrokerRegistration | None:
        """The broker that does; None while nobody leads the partition."""
        return self._broker.image.brokers.get(self.leader_of(key))

    def leader_of(self, key: str) -> int:
        """Of the partition that it belongs to, whether that broker is there or not."""
        topic = self._broker.image.topic(self._topic.name)
        return NO_LEADER if topic is None else topic.partitions[partition_for(key, topic.partition_count)].leader

    async def ensure_topic(self) -> None:
        """It is made, and its shards are loaded, when it is first needed."""
        if self._shards and not self._creating.locked():
            return
        async with self._creating:
            topic = self._broker.image.topic(self._topic.name) or await self._create_topic()
            if self._broker.node is not None:
                return  # with the partitions that it is given to lead, a broker of a cluster gets their shards
            led = self._broker.partitions.of_topic(topic)
            fresh = [self._add(one) for one in led if one.tp.partition not in self._shards]
            if not fresh:
                return  # others were faster
            await self._load(fresh)
            self._load_later([shard for shard in fresh if shard.failure])

    async def _create_topic(self) -> Topic:
        topic = self._topic
        try:
            return await self._broker.create_topic(topic.name, topic.partition_count(), topic.settings)
        except (OSError, StoreError) as error:
            if self._not_made.allow(self._loop.time()):
                left_out = self._not_made.take_left_out()
                log.error("internal_topic_not_made", error=None, topic=topic.name, reason=str(error), **left_out)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        except KafkaError as error:
            known = self._broker.image.topic(topic.name)
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or known is None:
                raise
            return known  # another broker was faster

    # Loading

    def _add(self, partition: Partition) -> CoordinatorShard[C]:
        shard = CoordinatorShard(self._broker, partition, self._new_coordinator, self._user)
        self._shards[partition.tp.partition] = shard
        return shard

    def _load_later(self, shards: list[CoordinatorShard[C]]) -> None:
        if shards:
            task = start_task(self._load_until_done(shards), "loading of coordinators")
            self._loading[task] = None
            task.add_done_callback(self._loading.pop)

    async def _load_until_done(self, shards: list[CoordinatorShard[C]]) -> None:
        await self._load([shard for shard in shards if shard.is_loading])
        waits = chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1]))
        while failed := [shard for shard in shards if shard.failure]:
            await asyncio.sleep(next(waits))
            for shard in failed:
                shard.start_over()
            await self._load(failed)

    async def _load(self, shards: list[CoordinatorShard[C]]) -> None:
        await self._user.before_load()
        for shard in shards:
            await shard.load()
