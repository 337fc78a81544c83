"""Changes of what the cluster agrees on about topics, and the image of it in memory. One place decides whether a topic
exists.

Decisions are made on the event loop, from the image; writing is the store's, off the loop; the image follows what the
store has done: at once where this is the only broker, in a cluster as soon as it is heard from there, together with
what others did (`following`). Topics that are being deleted leave the registry first; their folders follow. A topic
made again under an old name gets a new id, by which the old one's files can be told apart after a crash in between.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from clarion.cluster.changes import ConflictError, change, despite_others
from clarion.cluster.coordination import (
    ABSENT,
    OPERATIONS_MAX,
    Change,
    Compare,
    CoordinationStore,
    Delete,
    Entry,
    KeyEvent,
    Operation,
    Put,
    Revision,
    absent,
    in_transactions,
    unchanged,
)
from clarion.cluster.counters import BROKER_EPOCH, next_broker_epoch
from clarion.cluster.following import Following
from clarion.cluster.image import EMPTY, ClusterImage, Topic
from clarion.cluster.placement import Load, Replicas, place
from clarion.cluster.schema import (
    CLUSTER_ID,
    DELETING,
    NO_EPOCH,
    PARTITIONS,
    TOPIC_CHANGES,
    TOPICS,
    UNSAID,
    BrokerRegistration,
    Endpoint,
    PartitionState,
    broker_key,
    deleting_key,
    partition_key,
    split_partition_key,
    topic_key,
    write_broker,
    write_partition,
    write_topic,
)
from clarion.cluster.topic_rules import TopicLimits, check_growth, check_new_name, check_new_topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId

REPLICATION_FACTOR: Final = 3  # of topics for which nobody has asked for another; fewer where there are fewer brokers

LatestEpoch = Callable[[Topic, int], int]  # in which somebody has written into a partition's log; -1: nobody has


class TopicRegistry:
    """Made by `load`. A change is in the store before anybody can read it here."""

    def __init__(
        self,
        store: CoordinationStore,
        new_id: Callable[[], UUID],
        limits: TopicLimits,
        node_id: int,
        replication_factor: int,
    ) -> None:
        self._store = store
        self._new_id = new_id
        self.limits = limits
        self._node_id = node_id
        self.default_replication_factor = replication_factor
        self.image: ClusterImage = EMPTY
        self.broker_epoch = 0  # of this life, once `begin_term` has taken it
        self._following: Following | None = None
        self._written = ABSENT  # the revision of the last change that was made here

    @classmethod
    async def load(
        cls,
        store: CoordinationStore,
        new_id: Callable[[], UUID],
        *,
        partitions_max: int,
        topic_partitions_max: int | None = None,
        node_id: int = 1,
        replication_factor: int = REPLICATION_FACTOR,
    ) -> TopicRegistry:
        """`topic_partitions_max`: None for as many as of all topics. `replication_factor`: of topics for which nobody
        asks for another."""
        limits = TopicLimits(partitions_max, partitions_max if topic_partitions_max is None else topic_partitions_max)
        registry = cls(store, new_id, limits, node_id, replication_factor)
        await registry._make_cluster_id()
        await registry._read_all()
        return registry

    def follow(self, following: Following) -> None:
        """There are other brokers: the image is what this shows, and what is done here is seen when it does."""
        self._following = following

    async def revision(self) -> Revision:
        """Of everything that the cluster agrees on: it grows with every change."""
        return (await self._store.range(CLUSTER_ID)).revision

    # Topics

    async def create(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        return await self.add(self.draft(name, partition_count, overrides))

    def draft(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str],
        replication_factor: int | None = None,
        assignments: Sequence[Replicas] | None = None,
    ) -> Topic:
        """A topic that may be added: nobody knows of it yet.

        `replication_factor`: None if nobody asked for one. `assignments`: where its replicas shall be.
        """
        check_new_topic(self.image, self.limits, name, partition_count)
        partitions = self._new_partitions(partition_count, replication_factor, assignments)
        topic = Topic(name, self._new_id(), partitions, dict(overrides), replication_factor)
        write_topic(topic.entry)
        return topic

    async def add(self, topic: Topic) -> Topic:
        """From here on it exists."""

        async def attempt() -> Topic:
            check_new_name(self.image, topic.name)
            along = [Put(TOPIC_CHANGES, topic.id.hex.encode())]
            return await self._put(topic, range(topic.partition_count), along, is_once=True)

        return await despite_others(attempt)  # another topic was made meanwhile, or this one

    def draft_grown(self, name: str, partition_count: int, assignments: Sequence[Replicas] | None = None) -> Topic:
        """A topic with so many partitions: nobody knows of the new ones yet."""
        topic = self.known(name)
        check_growth(self.image, self.limits, topic, partition_count)
        more = self._new_partitions(
            partition_count - topic.partition_count, topic.replication_factor, assignments, topic.partition_count
        )
        return replace(topic, partitions=topic.partitions + more)

    async def grow(self, grown: Topic) -> Topic:
        """From here on it has all the partitions of the draft."""
        return await self._put(grown, range(self.known(grown.name).partition_count, grown.partition_count))

    async def configure(self, name: str, overrides: Mapping[str, str], *, forgets_eligible: bool = False) -> Topic:
        """`forgets_eligible`: how many have to be in sync changes. Who left the in-sync set under another minimum may
        lack what was acknowledged since, and must not lead by virtue of having been in sync once."""
        topic = self.known(name)
        puts = [
            Put(partition_key(topic.id, index), write_partition(_without_eligible(state)))
            for index, state in enumerate(topic.partitions)
            if forgets_eligible and state.eligible
        ]
        return await self._put(replace(topic, overrides=dict(overrides)), range(0), puts)

    async def alter_partition(
        self, topic: Topic, index: int, state: PartitionState, replication_factor: int | None = None
    ) -> None:
        """Another state in place of the one that this topic shows. `replication_factor`: what it is from here on."""
        operations: list[Operation] = [Put(partition_key(topic.id, index), write_partition(state))]
        if replication_factor is not None:
            entry = replace(topic, replication_factor=replication_factor).entry
            operations.append(Put(topic_key(topic.name), write_topic(entry)))
        await self._change(operations)

    async def delete(self, name: str) -> Topic:
        """From here on it does not exist; `forget_deleted` follows when its files are gone."""
        topic = self.known(name)
        await self._change([Delete(topic_key(name)), Put(deleting_key(topic.id), name.encode())])
        return topic

    @property
    def being_deleted(self) -> frozenset[TopicId]:
        """Topics that no longer exist and of which files may be left."""
        return frozenset(self.image.deleting.keys() - self.image.topics_by_id.keys())

    async def forget_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        known = sorted(topic_id for topic_id in topic_ids if topic_id in self.image.deleting)
        await self._change([*self._without_partitions(known), *(Delete(deleting_key(one)) for one in known)])

    async def forget_unclaimed(self, topic_ids: Iterable[TopicId] | None = None) -> None:
        """Remove what is written of partitions that no topic counts; None: of all, as a start does."""
        await self._change(self._without_partitions(self.image.unclaimed if topic_ids is None else topic_ids))

    def _without_partitions(self, topic_ids: Iterable[TopicId]) -> list[Operation]:
        left = self.image.unclaimed
        return [Delete(partition_key(one, index)) for one in topic_ids for index in sorted(left.get(one, ()))]

    async def _put(self, topic: Topic, new: range, along: Sequence[Operation] = (), *, is_once: bool = False) -> Topic:
        """Its new partitions first: with the topic, in the last transaction, all of it is there at once.

        A new topic changes the one key that all new topics change: a request that comes late, when an attempt after it
        has made the topic and somebody has deleted it, does not make it once more (nor does its maker: `is_once`).
        The topic is still what it was when this was drafted: between two transactions others may change it.
        """
        puts = [Put(partition_key(topic.id, index), write_partition(topic.partitions[index])) for index in new]
        last = [*along, Put(topic_key(topic.name), write_topic(topic.entry))]
        if len(puts) + len(last) > OPERATIONS_MAX:
            await self._change(puts)
            if any(self.image.revision_of_partition(topic.id, index) == ABSENT for index in new):
                raise ConflictError  # it took so long that the cluster has cleaned up behind us
            puts = []
        await self._change([*puts, *last], {topic_key(topic.name): topic.revision}, is_once=is_once)
        return self.image.topics[topic.name]

    def _new_partitions(
        self,
        count: int,
        replication_factor: int | None = None,
        assignments: Sequence[Replicas] | None = None,
        start: int = 0,
    ) -> tuple[PartitionState, ...]:
        """Led by the first of their replicas.

        They begin with an epoch that a topic of the same name, deleted since, cannot have had: clients that know topics
        by name alone would take a lower one for news from the past, and pass over it. Where there is one broker that is
        its own, which grows with every start; in a cluster the store's revision, for every election is a change of it.
        """
        if self._following is None:
            here = (self._node_id,)
            return (PartitionState(self._node_id, self.broker_epoch, here, here),) * count
        image = self.image
        if not image.brokers.keys() >= {one for replicas in assignments or () for one in replicas} or not image.brokers:
            # Their leases have ended, since the store was asked for who may hold it or while it was away.
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the brokers that should hold it are not there; try again")
        if assignments is None:
            staying = [one for one in image.brokers.values() if not one.is_leaving]
            racks = {one.id: one.rack for one in staying or image.brokers.values()}
            load = Load.of(state.replicas for topic in image.topics.values() for state in topic.partitions)
            assignments = place(count, replication_factor or self.default_replication_factor, racks, load, start)
        return tuple(self._new_partition(replicas) for replicas in assignments)

    def _new_partition(self, replicas: Replicas) -> PartitionState:
        lives = tuple(self.image.brokers[one].epoch for one in replicas)
        minimum = 2 if len(replicas) >= REPLICATION_FACTOR else 1
        return PartitionState(replicas[0], self.image.revision, replicas, replicas, lives=lives, min_in_sync=minimum)

    def replication_factor_of(self, asked: int | None) -> int:
        """How many replicas a new topic gets."""
        return min(asked or self.default_replication_factor, len(self.placeable))

    @property
    def placeable(self) -> frozenset[int]:
        """The brokers on which replicas may be placed."""
        return frozenset((self._node_id,) if self._following is None else self.image.brokers)

    # The broker itself

    async def begin_term(self, in_log: LatestEpoch, marked: int | None) -> None:
        """Raise the epoch of every partition that this broker leads above all that it has had.

        The store says which it had, and so does the log: the store may be an older copy of itself, and an epoch that
        went back would look like damage to the next recovery. `marked`: the broker epoch of a life that ended with a
        clean stop; a store that knows it is no older copy, and ten thousand logs need not be asked.
        """
        known = await self._store.get(BROKER_EPOCH)
        last_life = int(known.value) if known else NO_EPOCH
        if marked is not None:
            in_log = _everywhere(marked if marked > last_life else NO_EPOCH)
        raised = [
            (partition_key(topic.id, index), self._next_term(topic, index, in_log(topic, index), last_life))
            for topic in self.image.topics.values()
            for index in topic.led_by(self._node_id)
        ]
        highest = max((state.leader_epoch - 1 for _, state in raised), default=NO_EPOCH)
        latest = max(highest, NO_EPOCH if marked is None else marked)
        self.broker_epoch = await next_broker_epoch(self._store, latest, f"broker {self._node_id}")
        await self._change([Put(key, write_partition(state)) for key, state in raised])

    def _next_term(self, topic: Topic, index: int, in_log: int, last_life: int) -> PartitionState:
        """Of what nothing is said, older versions led all with the epoch of the broker's life."""
        state, here = topic.partitions[index], (self._node_id,)
        said = last_life if state is UNSAID else state.leader_epoch
        return state._replace(
            leader=self._node_id,
            leader_epoch=max(said, in_log) + 1,
            replicas=state.replicas or here,
            in_sync=state.in_sync or here,
            partition_epoch=state.partition_epoch + 1,
        )

    def announce(self, endpoints: Sequence[Endpoint], rack: str | None = None) -> None:
        """Where this broker can be reached: its own clients, who are here already, hear it at once."""
        ours = BrokerRegistration(self._node_id, self.broker_epoch, tuple(endpoints), rack)
        self._follow([Put(broker_key(self._node_id), write_broker(ours))], self.image.revision)

    async def register(self) -> None:
        """All others hear what was announced."""
        operation = Put(broker_key(self._node_id), write_broker(self.image.brokers[self._node_id]))
        known = await self._store.get(operation.key)
        compare = unchanged(known) if known else absent(operation.key)
        await change(self._store, [compare], [operation], lambda revision: self._follow([operation], revision))

    # The store and the image

    async def _make_cluster_id(self) -> None:
        while await self._store.get(CLUSTER_ID) is None:
            fresh = Put(CLUSTER_ID, _base64_id(self._new_id()).encode())
            await change(self._store, [absent(CLUSTER_ID)], [fresh], lambda _: None)

    async def _read_all(self) -> None:
        self.image = ClusterImage.of(await self._store.range(""))

    def known(self, name: str) -> Topic:
        topic = self.image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    async def _change(
        self, operations: Iterable[Operation], seen: Mapping[str, Revision] | None = None, *, is_once: bool = False
    ) -> None:
        """In the store and then in the image; neither if somebody else has changed the same meanwhile.

        What has no room in one transaction is done in several, in this order. `seen`: keys that have to be as they were
        at these revisions, whatever the image shows by now.
        """
        for part in in_transactions(operations):
            compares = [Compare(one.key, (seen or {}).get(one.key, self._revision_of(one.key))) for one in part]
            if not await change(self._store, compares, part, partial(self._follow, part), is_once=is_once):
                await self._catch_up()
                raise ConflictError
            await self._seen()

    def _follow(self, done: Sequence[Operation], revision: Revision) -> None:
        if self._following is None:
            self.image = self.image.after(Change(revision, tuple(_event(one, revision) for one in done)))
        else:
            self._written = max(self._written, revision)

    async def _seen(self) -> None:
        """What was done here is in the image."""
        if self._following is not None:
            try:
                await self._following.reach(self._written)
            except TimeoutError:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "it is done, and not seen here yet") from None

    async def _catch_up(self) -> None:
        if self._following is None:
            await self._read_all()
        else:
            await self._following.refresh()

    def _revision_of(self, key: str) -> Revision:
        image = self.image
        if key.startswith(PARTITIONS):
            return image.revision_of_partition(*split_partition_key(key))
        if key.startswith(DELETING):
            return image.deleting.get(UUID(key.removeprefix(DELETING)), ABSENT)
        if key == TOPIC_CHANGES:
            return image.topic_changes
        topic = image.topic(key.removeprefix(TOPICS))
        return ABSENT if topic is None else topic.revision


def _without_eligible(state: PartitionState) -> PartitionState:
    return state._replace(eligible=(), partition_epoch=state.partition_epoch + 1)


def _everywhere(epoch: int) -> LatestEpoch:
    return lambda _topic, _index: epoch


def _event(operation: Operation, revision: Revision) -> KeyEvent:
    if isinstance(operation, Delete):
        return KeyEvent(operation.key, None)
    return KeyEvent(operation.key, Entry(operation.key, operation.value, revision, revision))


def _base64_id(uuid: UUID) -> str:
    """Kafka writes ids as URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
