"""The registry of topics: names, ids, partitions, settings. One place decides whether a topic exists.

Topics that are being deleted leave the registry first; their folders follow. A topic made again under an old name gets
a new id, by which the old one's files can be told apart after a crash in between.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from clarion.cluster.changes import change
from clarion.cluster.coordination import (
    OPERATIONS_MAX,
    Compare,
    CoordinationStore,
    Delete,
    Entry,
    Operation,
    Put,
    Revision,
    absent,
)
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.model.names import check_topic_name

TOPICS: Final = "topics/"
DELETING: Final = "deleting/"
CLUSTER_ID: Final = "cluster-id"
_TOPIC_BYTES_MAX: Final = 64 * 1024  # of a topic with its settings: far more than all that Kafka has


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: TopicId
    partition_count: int
    overrides: Mapping[str, str] = field(default_factory=dict)


class TopicRegistry:
    """Made by `load`. Reading is from memory; a change is in the store before anybody can read it here."""

    def __init__(
        self,
        store: CoordinationStore,
        new_id: Callable[[], UUID],
        *,
        partitions_max: int,
        topic_partitions_max: int | None = None,
    ) -> None:
        self._store = store
        self._new_id = new_id
        self._partitions_max = partitions_max
        self._topic_partitions_max = partitions_max if topic_partitions_max is None else topic_partitions_max
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._collisions: dict[str, str] = {}  # Kafka's metrics names take '.' and '_' for the same
        self._revisions: dict[str, Revision] = {}  # by key, of topics and of what is being deleted
        self._partition_total = 0
        self.cluster_id = ""

    @classmethod
    async def load(
        cls,
        store: CoordinationStore,
        new_id: Callable[[], UUID],
        *,
        partitions_max: int,
        topic_partitions_max: int | None = None,
    ) -> TopicRegistry:
        registry = cls(store, new_id, partitions_max=partitions_max, topic_partitions_max=topic_partitions_max)
        registry.cluster_id = await registry._known_or_new_cluster_id()
        await registry._read_all()
        return registry

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def partition_total(self) -> int:
        return self._partition_total

    async def revision(self) -> Revision:
        """Of everything that the cluster agrees on: it grows with every change."""
        return (await self._store.range(CLUSTER_ID)).revision

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
        self._check_room(partition_count, partition_count)

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

    async def create(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        topic = self.draft(name, partition_count, overrides)
        await self.add(topic)
        return topic

    def draft(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic that may be added: nobody knows of it yet."""
        self.check_new(name, partition_count)
        topic = Topic(name, self._new_id(), partition_count, dict(overrides))
        _write_topic(topic)
        return topic

    async def add(self, topic: Topic) -> None:
        """From here on it exists."""
        await self._save(topic)

    async def delete(self, name: str) -> Topic:
        """From here on it does not exist; `forget_deleted` follows when its files are gone."""
        topic = self._known(name)
        key, note = TOPICS + name, DELETING + str(topic.id)

        def follow(revision: Revision) -> None:
            self._forget(topic)
            self._revisions[note] = revision

        compares = [self._compare(key), self._compare(note)]
        await self._change(compares, [Delete(key), Put(note, name.encode())], follow)
        return topic

    @property
    def being_deleted(self) -> frozenset[TopicId]:
        """Topics that no longer exist and of which files may be left."""
        noted = {UUID(key.removeprefix(DELETING)) for key in self._revisions if key.startswith(DELETING)}
        return frozenset(noted - self._by_id.keys())

    async def forget_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        keys = [key for key in sorted(DELETING + str(topic_id) for topic_id in topic_ids) if key in self._revisions]
        for at in range(0, len(keys), OPERATIONS_MAX):
            await self._forget_notes(keys[at : at + OPERATIONS_MAX])

    async def _forget_notes(self, keys: list[str]) -> None:
        def follow(_: Revision) -> None:
            for key in keys:
                del self._revisions[key]

        await self._change([self._compare(key) for key in keys], [Delete(key) for key in keys], follow)

    async def grow(self, name: str, partition_count: int) -> Topic:
        topic = self._known(name)
        self.check_growth(topic, partition_count)
        grown = replace(topic, partition_count=partition_count)
        await self._save(grown)
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
        self._check_room(partition_count, partition_count - topic.partition_count)

    async def configure(self, name: str, overrides: Mapping[str, str]) -> Topic:
        changed = replace(self._known(name), overrides=dict(overrides))
        await self._save(changed)
        return changed

    async def _known_or_new_cluster_id(self) -> str:
        while (known := await self._store.get(CLUSTER_ID)) is None:
            fresh = Put(CLUSTER_ID, _base64_id(self._new_id()).encode())
            await change(self._store, [absent(CLUSTER_ID)], [fresh], lambda _: None)
        return known.value.decode()

    async def _read_all(self) -> None:
        self._by_name.clear()
        self._by_id.clear()
        self._collisions.clear()
        self._revisions.clear()
        self._partition_total = 0
        for entry in (await self._store.range(TOPICS)).entries:
            self._remember(_read_topic(entry), entry.mod_revision)
        for entry in (await self._store.range(DELETING)).entries:
            self._revisions[entry.key] = entry.mod_revision

    def _known(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def _check_room(self, of_topic: int, more: int) -> None:
        if of_topic > self._topic_partitions_max:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"a topic has at most {self._topic_partitions_max} partitions, not {of_topic}",
            )
        if self._partition_total + more > self._partitions_max:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{self._partition_total} partitions exist, at most {self._partitions_max} may; {more} more do not fit",
            )

    async def _save(self, topic: Topic) -> None:
        operation = Put(TOPICS + topic.name, _write_topic(topic))
        await self._change(
            [self._compare(operation.key)], [operation], lambda revision: self._remember(topic, revision)
        )

    def _compare(self, key: str) -> Compare:
        return Compare(key, self._revisions[key]) if key in self._revisions else absent(key)

    async def _change(
        self, compares: Sequence[Compare], operations: Sequence[Operation], follow: Callable[[Revision], None]
    ) -> None:
        """One change, in the store and then in memory; neither if somebody else has changed the same meanwhile."""
        if not await change(self._store, compares, operations, follow):
            await self._read_all()
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "somebody else changed the same topic; try again")

    def _remember(self, topic: Topic, revision: Revision) -> None:
        known = self._by_name.get(topic.name)
        self._partition_total -= known.partition_count if known else 0
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self._collisions[_collision_key(topic.name)] = topic.name
        self._revisions[TOPICS + topic.name] = revision
        self._partition_total += topic.partition_count

    def _forget(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        del self._collisions[_collision_key(topic.name)]
        del self._revisions[TOPICS + topic.name]
        self._partition_total -= topic.partition_count


def _collision_key(name: str) -> str:
    return name.replace(".", "_")


def _write_topic(topic: Topic) -> bytes:
    content = {"id": str(topic.id), "partitions": topic.partition_count, "settings": dict(topic.overrides)}
    value = json.dumps(content, separators=(",", ":")).encode()
    if len(value) > _TOPIC_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{len(value)} bytes of settings; a topic has at most {_TOPIC_BYTES_MAX}"
        )
    return value


def _read_topic(entry: Entry) -> Topic:
    value = json.loads(entry.value)
    name = entry.key.removeprefix(TOPICS)
    return Topic(name, UUID(value["id"]), int(value["partitions"]), dict(value["settings"]))


def _base64_id(uuid: UUID) -> str:
    """Kafka writes ids as URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
