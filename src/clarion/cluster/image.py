"""The cluster at one revision of the coordination store: brokers, topics, who leads which partition. Never changed.

A change of the store makes a new image (`after`), which shares with the one before it every topic that stayed as it
was; copying the two dictionaries of ten thousand topics takes a fifth of a millisecond. So whoever holds an image sees
one moment, for as long as it likes, and two that are the same object are the same cluster.

    image = ClusterImage.of(await store.range(""))
    image = image.after(change)

A partition whose topic does not count it is nobody's yet, or no longer (`schema`): it waits in `unclaimed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from clarion.cluster.coordination import ABSENT, Change, KeyEvent, Range, Revision
from clarion.cluster.schema import (
    BROKERS,
    CLUSTER_ID,
    CONTROLLER,
    DELETING,
    FIRST_LEVEL,
    LEVEL,
    NO_LEADER,
    PARTITIONS,
    REMOVED,
    TOPIC_CHANGES,
    TOPICS,
    UNSAID,
    BrokerRegistration,
    PartitionState,
    TopicEntry,
    read_broker,
    read_partition,
    read_topic,
    split_partition_key,
    split_removed_key,
)
from clarion.model.ids import TopicId

Unclaimed = Mapping[int, PartitionState]


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: TopicId
    partitions: tuple[PartitionState, ...]
    overrides: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int | None = None  # None: nobody asked for one
    revision: Revision = ABSENT  # of its last change in the store, other than those of its partitions

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def led_by(self, broker_id: int) -> Iterator[int]:
        """Its partitions that this broker leads; also those of which older versions have not said who leads them."""
        for index, state in enumerate(self.partitions):
            if state.leader == broker_id or state is UNSAID:
                yield index

    def held_by(self, broker_id: int) -> Iterator[int]:
        """Its partitions of which this broker is to have a replica."""
        for index, state in enumerate(self.partitions):
            if broker_id in state.replicas:
                yield index

    @property
    def entry(self) -> TopicEntry:
        return TopicEntry(self.id, len(self.partitions), self.overrides, self.replication_factor)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    revision: Revision
    cluster_id: str
    brokers: Mapping[int, BrokerRegistration]
    topics: Mapping[str, Topic]
    topics_by_id: Mapping[TopicId, Topic]
    collisions: Mapping[str, str]  # Kafka's metrics names take '.' and '_' for the same; to names that have one
    unclaimed: Mapping[TopicId, Unclaimed]
    deleting: Mapping[TopicId, Revision]  # topics that are gone, and of which files may be left
    partition_total: int
    controller: int = NO_LEADER  # the broker that decides for all
    removed: Mapping[TopicId, frozenset[int]] = field(default_factory=dict)  # brokers without files of deleted topics
    topic_changes: Revision = ABSENT  # when the last topic was made
    feature_level: int = FIRST_LEVEL  # what everybody has to understand

    @classmethod
    def of(cls, content: Range) -> ClusterImage:
        """What a store holds."""
        return EMPTY.after(Change(content.revision, tuple(KeyEvent(entry.key, entry) for entry in content.entries)))

    def after(self, change: Change) -> ClusterImage:
        edit = _Edit(self)
        for event in change.events:
            edit.take(event)
        return edit.image(change.revision)

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self.topics_by_id.get(topic_id)

    def twin_of(self, name: str) -> str | None:
        """A topic that metrics could not tell from one of this name."""
        return self.collisions.get(_as_in_metrics(name))

    def revision_of_partition(self, topic_id: TopicId, index: int) -> Revision:
        topic = self.topics_by_id.get(topic_id)
        if topic is not None and index < len(topic.partitions):
            return topic.partitions[index].revision
        return self.unclaimed.get(topic_id, {}).get(index, UNSAID).revision


EMPTY: Final = ClusterImage(Revision(0), "", {}, {}, {}, {}, {}, {}, 0)


class _Edit:
    """The next image in the making.

    Brokers and what is being deleted stay the very same objects unless they change; then they are copied once, however
    many events there are of them: of a broker that stays away, ten thousand deleted topics may wait.
    """

    def __init__(self, before: ClusterImage) -> None:
        self._before = before
        self._cluster_id = before.cluster_id
        self._brokers: dict[int, BrokerRegistration] | None = None
        self._topics = dict(before.topics)
        self._by_id = dict(before.topics_by_id)
        self._collisions = dict(before.collisions)
        self._unclaimed: dict[TopicId, dict[int, PartitionState]] = {
            topic_id: dict(states) for topic_id, states in before.unclaimed.items()
        }
        self._deleting: dict[TopicId, Revision] | None = None
        self._total = before.partition_total
        self._controller = before.controller
        self._removed: dict[TopicId, frozenset[int]] | None = None
        self._topic_changes = before.topic_changes
        self._feature_level = before.feature_level
        self._states: dict[TopicId, list[PartitionState]] = {}  # of topics whose partitions change

    def take(self, event: KeyEvent) -> None:
        key = event.key
        if key.startswith(PARTITIONS):
            self._take_partition(event)
        elif key.startswith(TOPICS):
            self._take_topic(event)
        elif key.startswith(DELETING):
            self._take_deleting(event)
        elif key.startswith(BROKERS):
            self._take_broker(event)
        elif key.startswith(REMOVED):
            self._take_removed(event)
        elif key == CONTROLLER:
            self._controller = NO_LEADER if event.entry is None else int(event.entry.value)
        elif key == TOPIC_CHANGES and event.entry is not None:
            self._topic_changes = event.entry.mod_revision
        elif key == LEVEL and event.entry is not None:
            self._feature_level = int(event.entry.value)
        elif key == CLUSTER_ID and event.entry is not None:
            self._cluster_id = event.entry.value.decode()

    def image(self, revision: Revision) -> ClusterImage:
        for topic_id in list(self._states):
            self._settle(topic_id)
        before = self._before
        return ClusterImage(
            revision,
            self._cluster_id,
            before.brokers if self._brokers is None else self._brokers,
            self._topics,
            self._by_id,
            self._collisions,
            self._unclaimed,
            before.deleting if self._deleting is None else self._deleting,
            self._total,
            self._controller,
            before.removed if self._removed is None else self._removed,
            self._topic_changes,
            self._feature_level,
        )

    def _take_partition(self, event: KeyEvent) -> None:
        topic_id, index = split_partition_key(event.key)
        state = read_partition(event.entry.value, event.entry.mod_revision) if event.entry else UNSAID
        topic = self._by_id.get(topic_id)
        if topic is not None and index < len(topic.partitions):
            self._states.setdefault(topic_id, list(topic.partitions))[index] = state
        elif event.entry is not None:
            self._unclaimed.setdefault(topic_id, {})[index] = state
        elif topic_id in self._unclaimed:
            self._unclaimed[topic_id].pop(index, None)
            if not self._unclaimed[topic_id]:
                del self._unclaimed[topic_id]

    def _take_topic(self, event: KeyEvent) -> None:
        name = event.key.removeprefix(TOPICS)
        known = self._topics.get(name)
        said = read_topic(event.entry.value) if event.entry else None
        if known is not None and (said is None or said.id != known.id):
            self._forget(known)
        if said is not None and event.entry is not None:
            self._remember(name, said, event.entry.mod_revision)

    def _remember(self, name: str, said: TopicEntry, revision: Revision) -> None:
        before = self._settle(said.id)
        waiting = self._unclaimed.pop(said.id, {})
        states = list(before.partitions) if before is not None else []
        assert len(states) <= said.partition_count, "a topic never has fewer partitions than before"
        states += [waiting.pop(index, UNSAID) for index in range(len(states), said.partition_count)]
        if waiting:
            self._unclaimed[said.id] = waiting
        self._put(Topic(name, said.id, tuple(states), said.overrides, said.replication_factor, revision))
        if "." in name or "_" in name:
            self._collisions[_as_in_metrics(name)] = name

    def _forget(self, topic: Topic) -> None:
        """Its partitions' keys are still there."""
        known = self._settle(topic.id) or topic
        del self._topics[known.name], self._by_id[known.id]
        if self._collisions.get(_as_in_metrics(known.name)) == known.name:
            del self._collisions[_as_in_metrics(known.name)]
        self._total -= len(known.partitions)
        left = {index: state for index, state in enumerate(known.partitions) if state.revision != ABSENT}
        if left:
            self._unclaimed[known.id] = left | self._unclaimed.get(known.id, {})

    def _settle(self, topic_id: TopicId) -> Topic | None:
        """The topic with what has been said of its partitions so far."""
        topic = self._by_id.get(topic_id)
        states = self._states.pop(topic_id, None)
        if topic is not None and states is not None:
            topic = Topic(
                topic.name, topic.id, tuple(states), topic.overrides, topic.replication_factor, topic.revision
            )
            self._put(topic)
        return topic

    def _put(self, topic: Topic) -> None:
        before = self._by_id.get(topic.id)
        self._total += len(topic.partitions) - (len(before.partitions) if before is not None else 0)
        self._topics[topic.name] = self._by_id[topic.id] = topic

    def _take_deleting(self, event: KeyEvent) -> None:
        topic_id = UUID(event.key.removeprefix(DELETING))
        if self._deleting is None:
            self._deleting = dict(self._before.deleting)
        self._deleting.pop(topic_id, None)
        if event.entry is not None:
            self._deleting[topic_id] = event.entry.mod_revision

    def _take_broker(self, event: KeyEvent) -> None:
        broker_id = int(event.key.removeprefix(BROKERS))
        if self._brokers is None:
            self._brokers = dict(self._before.brokers)
        self._brokers.pop(broker_id, None)
        if event.entry is not None:
            self._brokers[broker_id] = read_broker(broker_id, event.entry.value, event.entry.mod_revision)

    def _take_removed(self, event: KeyEvent) -> None:
        topic_id, broker_id = split_removed_key(event.key)
        if self._removed is None:
            self._removed = dict(self._before.removed)
        others = self._removed.pop(topic_id, frozenset()) - {broker_id}
        now = others if event.entry is None else others | {broker_id}
        if now:
            self._removed[topic_id] = now


def _as_in_metrics(name: str) -> str:
    return name.replace(".", "_")
