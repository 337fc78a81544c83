"""The committed offsets of all groups of a shard: the key-value store over the log."""

from __future__ import annotations

from collections.abc import Mapping

from clarion.groups.records import CommittedOffset
from clarion.model.ids import TopicPartition

_NONE: Mapping[TopicPartition, CommittedOffset] = {}


class OffsetStore:
    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def put(self, group_id: str, partition: TopicPartition, offset: CommittedOffset) -> None:
        self._groups.setdefault(group_id, {})[partition] = offset

    def drop(self, group_id: str, partition: TopicPartition) -> None:
        offsets = self._groups.get(group_id)
        if offsets is None:
            return
        offsets.pop(partition, None)
        if not offsets:
            del self._groups[group_id]

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._groups.get(group_id, _NONE)

    def groups(self) -> Mapping[str, Mapping[TopicPartition, CommittedOffset]]:
        return self._groups
