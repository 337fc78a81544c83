"""Metadata replies, with the bytes of every topic encoded once per version.

A client with ten thousand topics asks for all of them every few minutes; encoding them anew would block everybody.
"""

from __future__ import annotations

from collections.abc import Mapping

from clarion.cluster import BrokerRegistration, Topic
from clarion.cluster.schema import NO_LEADER, PartitionState
from clarion.model.errors import ErrorCode
from clarion.model.ids import TopicId
from clarion.model.names import is_internal
from clarion.wire.metadata import PartitionMetadata, TopicMetadata, encode_topic

Alive = Mapping[int, BrokerRegistration]


class MetadataCache:
    def __init__(self) -> None:
        self._encoded: dict[str, tuple[Topic, dict[int, bytes]]] = {}
        self._brokers: Alive = {}  # those that were there when it was encoded

    def forget(self, name: str) -> None:
        self._encoded.pop(name, None)

    def topic(self, topic: Topic, version: int, alive: Alive) -> bytes:
        """For a reply that lists these brokers: no other one is named as a leader."""
        if self._brokers is not alive:
            self._brokers = alive
            self._encoded.clear()  # a leader may have come or gone
        known, by_version = self._encoded.get(topic.name, (None, {}))
        if known is not topic:  # changed, or another one of that name
            by_version = {}
            self._encoded[topic.name] = (topic, by_version)
        encoded = by_version.get(version)
        if encoded is None:
            encoded = by_version[version] = encode_topic(version, self._describe(topic))
        return encoded

    @staticmethod
    def missing(code: ErrorCode, version: int, name: str | None, topic_id: TopicId) -> bytes:
        return encode_topic(version, TopicMetadata(int(code), name, topic_id, is_internal(name or ""), []))

    def _describe(self, topic: Topic) -> TopicMetadata:
        partitions = [self._partition(index, state) for index, state in enumerate(topic.partitions)]
        return TopicMetadata(0, topic.name, topic.id, is_internal(topic.name), partitions)

    def _partition(self, index: int, state: PartitionState) -> PartitionMetadata:
        has_leader = state.leader in self._brokers
        return PartitionMetadata(
            int(ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE),
            index,
            state.leader if has_leader else NO_LEADER,
            state.leader_epoch,
            list(state.replicas),
            list(state.in_sync),
            [one for one in state.replicas if one not in self._brokers],
        )
