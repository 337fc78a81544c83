"""The registry of topics: names, ids, partitions, settings. One place decides whether a topic exists.

Topics that are being deleted leave the registry first; their folders follow. A topic made again under an old name gets
a new id, by which the old one's files can be told apart after a crash in between.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from clarion.cluster.store import EmbeddedStore
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.model.names import check_topic_name

_PREFIX: Final = "topics/"
_DELETING: Final = "deleting/"
_PRODUCER_IDS: Final = "next-producer-id"
_CLUSTER_ID: Final = "cluster-id"
_PRODUCER_ID_BLOCK: Final = 1_000  # ids taken from the store at once, as in Kafka: a restart skips the rest of a block


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: TopicId
    partition_count: int
    overrides: Mapping[str, str] = field(default_factory=dict)


class TopicRegistry:
    def __init__(self, store: EmbeddedStore, new_id: Callable[[], UUID], *, partitions_max: int) -> None:
        self._store = store
        self._new_id = new_id
        self._partitions_max = partitions_max
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._collisions: dict[str, str] = {}  # Kafka's metrics names take '.' and '_' for the same
        self._producer_ids = iter(range(0))
        self._partition_total = 0
        self.cluster_id = self._known_or_new_cluster_id()
        for key, value in store.items(_PREFIX):
            self._remember(_read_topic(key.removeprefix(_PREFIX), value))

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def partition_total(self) -> int:
        return self._partition_total

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_by_id(self, topic_id: TopicId) -> Topic | None:
        return self._by_id.get(topic_id)

    def check_new(self, name: str, partition_count: int) -> None:
        """Raise what `create` would raise."""
        self.check_new_name(name)
        if partition_count < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        self._check_room(partition_count)

    def check_new_name(self, name: str) -> None:
        """Whether a topic may be called like this: the first question, before how it shall be."""
        check_topic_name(name)
        if name in self._by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        twin = self._collisions.get(_collision_key(name))
        if twin is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} collides with existing topic {twin!r}: '.' and '_' count as the same",
            )

    def create(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        topic = self.draft(name, partition_count, overrides)
        self.add(topic)
        return topic

    def draft(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic that may be added: nobody knows of it yet."""
        self.check_new(name, partition_count)
        return Topic(name, self._new_id(), partition_count, dict(overrides))

    def add(self, topic: Topic) -> None:
        """From here on it exists."""
        self._save(topic)

    def delete(self, name: str) -> Topic:
        """From here on it does not exist; `forget_deleted` follows when its files are gone."""
        topic = self._known(name)
        self._store.put(_DELETING + str(topic.id), name)
        self._store.delete(_PREFIX + name)
        self._forget(topic)
        return topic

    @property
    def being_deleted(self) -> frozenset[TopicId]:
        """Topics that no longer exist and of which files may be left."""
        noted = {UUID(key.removeprefix(_DELETING)) for key, _ in self._store.items(_DELETING)}
        return frozenset(noted - self._by_id.keys())

    def forget_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        for topic_id in topic_ids:
            self._store.delete(_DELETING + str(topic_id))

    def grow(self, name: str, partition_count: int) -> Topic:
        topic = self._known(name)
        self.check_growth(topic, partition_count)
        grown = replace(topic, partition_count=partition_count)
        self._save(grown)
        return grown

    def check_growth(self, topic: Topic, partition_count: int) -> None:
        if partition_count == topic.partition_count:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {topic.partition_count} partition(s).")
        if partition_count < topic.partition_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {topic.partition_count} partition(s); "
                f"{partition_count} would not be an increase.",
            )
        self._check_room(partition_count - topic.partition_count)

    def configure(self, name: str, overrides: Mapping[str, str]) -> Topic:
        changed = replace(self._known(name), overrides=dict(overrides))
        self._save(changed)
        return changed

    def producer_id_at_hand(self) -> int | None:
        """One of the block that was taken last; None if it is used up."""
        return next(self._producer_ids, None)

    def next_producer_id(self) -> int:
        fresh = self.producer_id_at_hand()
        if fresh is None:
            first = int(self._store.get(_PRODUCER_IDS) or 0)
            self._store.put(_PRODUCER_IDS, first + _PRODUCER_ID_BLOCK)
            self._producer_ids = iter(range(first, first + _PRODUCER_ID_BLOCK))
            fresh = next(self._producer_ids)
        return fresh

    def _known_or_new_cluster_id(self) -> str:
        known = self._store.get(_CLUSTER_ID)
        if known is None:
            known = _base64_id(self._new_id())
            self._store.put(_CLUSTER_ID, known)
        return str(known)

    def _known(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def _check_room(self, more: int) -> None:
        if self._partition_total + more > self._partitions_max:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{self._partition_total} partitions exist, at most {self._partitions_max} may; {more} more do not fit",
            )

    def _save(self, topic: Topic) -> None:
        self._store.put(_PREFIX + topic.name, _write_topic(topic))
        self._remember(topic)

    def _remember(self, topic: Topic) -> None:
        known = self._by_name.get(topic.name)
        self._partition_total -= known.partition_count if known else 0
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self._collisions[_collision_key(topic.name)] = topic.name
        self._partition_total += topic.partition_count

    def _forget(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        del self._collisions[_collision_key(topic.name)]
        self._partition_total -= topic.partition_count


def _collision_key(name: str) -> str:
    return name.replace(".", "_")


def _write_topic(topic: Topic) -> dict[str, Any]:
    return {"id": str(topic.id), "partitions": topic.partition_count, "settings": dict(topic.overrides)}


def _read_topic(name: str, value: Any) -> Topic:
    return Topic(name, UUID(value["id"]), int(value["partitions"]), dict(value["settings"]))


def _base64_id(uuid: UUID) -> str:
    """Kafka writes ids as URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
