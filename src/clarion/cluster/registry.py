"""Changes of what the cluster agrees on about topics, and the image of it in memory. One place decides whether a topic
exists.

Decisions are made on the event loop, from the image; writing is the store's, off the loop; the image follows what the
store has done. Topics that are being deleted leave the registry first; their folders follow. A topic made again under
an old name gets a new id, by which the old one's files can be told apart after a crash in between.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from clarion.cluster.broker_epoch import BROKER_EPOCH, next_broker_epoch
from clarion.cluster.changes import change
from clarion.cluster.coordination import (
    ABSENT,
    Change,
    Compare,
    CoordinationStore,
    Delete,
    Entry,
    Event,
    Operation,
    Put,
    Revision,
    absent,
    in_transactions,
    unchanged,
)
from clarion.cluster.image import EMPTY, ClusterImage, Topic
from clarion.cluster.schema import (
    CLUSTER_ID,
    DELETING,
    NO_EPOCH,
    PARTITIONS,
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
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.model.names import check_topic_name

LatestEpoch = Callable[[Topic, int], int]  # in which somebody has written into a partition's log; -1: nobody has


class TopicRegistry:
    """Made by `load`. A change is in the store before anybody can read it here."""

    def __init__(
        self,
        store: CoordinationStore,
        new_id: Callable[[], UUID],
        *,
        partitions_max: int,
        topic_partitions_max: int | None = None,
        node_id: int = 1,
    ) -> None:
        self._store = store
        self._new_id = new_id
        self._partitions_max = partitions_max
        self._topic_partitions_max = partitions_max if topic_partitions_max is None else topic_partitions_max
        self._node_id = node_id
        self.image: ClusterImage = EMPTY
        self.broker_epoch = 0  # of this life, once `begin_term` has taken it

    @classmethod
    async def load(
        cls,
        store: CoordinationStore,
        new_id: Callable[[], UUID],
        *,
        partitions_max: int,
        topic_partitions_max: int | None = None,
        node_id: int = 1,
    ) -> TopicRegistry:
        registry = cls(
            store,
            new_id,
            partitions_max=partitions_max,
            topic_partitions_max=topic_partitions_max,
            node_id=node_id,
        )
        await registry._make_cluster_id()
        await registry._read_all()
        return registry

    async def revision(self) -> Revision:
        """Of everything that the cluster agrees on: it grows with every change."""
        return (await self._store.range(CLUSTER_ID)).revision

    # May it be?

    def check_new(self, name: str, partition_count: int) -> None:
        """Raise what `draft` would raise."""
        self.check_new_name(name)
        if partition_count < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        self._check_room(partition_count, partition_count)

    def check_new_name(self, name: str) -> None:
        """Whether a topic may be called like this: the first question, before how it shall be."""
        check_topic_name(name)
        if self.image.topic(name) is not None:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        twin = self.image.twin_of(name)
        if twin is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} collides with existing topic {twin!r}: '.' and '_' count as the same",
            )

    def check_growth(self, topic: Topic, partition_count: int) -> None:
        if partition_count == topic.partition_count:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {topic.partition_count} partition(s).")
        if partition_count < topic.partition_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {topic.partition_count} partition(s); "
                f"{partition_count} would not be an increase.",
            )
        self._check_room(partition_count, partition_count - topic.partition_count)

    def _check_room(self, of_topic: int, more: int) -> None:
        if of_topic > self._topic_partitions_max:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"a topic has at most {self._topic_partitions_max} partitions, not {of_topic}",
            )
        total = self.image.partition_total
        if total + more > self._partitions_max:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{total} partitions exist, at most {self._partitions_max} may; {more} more do not fit",
            )

    # Topics

    async def create(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        return await self.add(self.draft(name, partition_count, overrides))

    def draft(
        self, name: str, partition_count: int, overrides: Mapping[str, str], replication_factor: int | None = None
    ) -> Topic:
        """A topic that may be added: nobody knows of it yet. `replication_factor`: None if nobody asked for one."""
        self.check_new(name, partition_count)
        partitions = self._new_partitions(partition_count)
        topic = Topic(name, self._new_id(), partitions, dict(overrides), replication_factor)
        write_topic(topic.entry)
        return topic

    async def add(self, topic: Topic) -> Topic:
        """From here on it exists."""
        return await self._put(topic, range(topic.partition_count))

    def draft_grown(self, name: str, partition_count: int) -> Topic:
        """A topic with so many partitions: nobody knows of the new ones yet."""
        topic = self.known(name)
        self.check_growth(topic, partition_count)
        more = self._new_partitions(partition_count - topic.partition_count)
        return replace(topic, partitions=topic.partitions + more)

    async def grow(self, grown: Topic) -> Topic:
        """From here on it has all the partitions of the draft."""
        return await self._put(grown, range(self.known(grown.name).partition_count, grown.partition_count))

    async def configure(self, name: str, overrides: Mapping[str, str]) -> Topic:
        return await self._put(replace(self.known(name), overrides=dict(overrides)), range(0))

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

    async def _put(self, topic: Topic, new: range) -> Topic:
        """Its new partitions first: with the topic, in the last transaction, all of it is there at once."""
        puts = [Put(partition_key(topic.id, index), write_partition(topic.partitions[index])) for index in new]
        await self._change([*puts, Put(topic_key(topic.name), write_topic(topic.entry))])
        return self.image.topics[topic.name]

    def _new_partitions(self, count: int) -> tuple[PartitionState, ...]:
        """Led by the one broker that there is.

        They begin with its epoch: a topic of the same name, deleted since, had none above. Clients that know topics
        by name alone would take a lower one for news from the past, and pass over it.
        """
        here = (self._node_id,)
        return (PartitionState(self._node_id, self.broker_epoch, here, here),) * count

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
        self.broker_epoch = await next_broker_epoch(self._store, max(highest, NO_EPOCH if marked is None else marked))
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

    async def _change(self, operations: Iterable[Operation]) -> None:
        """In the store and then in the image; neither if somebody else has changed the same meanwhile.

        What has no room in one transaction is done in several, in this order.
        """
        for part in in_transactions(operations):
            compares = [Compare(one.key, self._revision_of(one.key)) for one in part]
            if not await change(self._store, compares, part, partial(self._follow, part)):
                await self._read_all()
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "somebody else changed the same topic; try again")

    def _follow(self, done: Sequence[Operation], revision: Revision) -> None:
        self.image = self.image.after(Change(revision, tuple(_event(one, revision) for one in done)))

    def _revision_of(self, key: str) -> Revision:
        image = self.image
        if key.startswith(PARTITIONS):
            return image.revision_of_partition(*split_partition_key(key))
        if key.startswith(DELETING):
            return image.deleting.get(UUID(key.removeprefix(DELETING)), ABSENT)
        topic = image.topic(key.removeprefix(TOPICS))
        return ABSENT if topic is None else topic.revision


def _everywhere(epoch: int) -> LatestEpoch:
    return lambda _topic, _index: epoch


def _event(operation: Operation, revision: Revision) -> Event:
    if isinstance(operation, Delete):
        return Event(operation.key, None)
    return Event(operation.key, Entry(operation.key, operation.value, revision, revision))


def _base64_id(uuid: UUID) -> str:
    """Kafka writes ids as URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
