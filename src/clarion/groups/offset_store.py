"""The committed offsets of all groups of a shard: the key-value store over the log."""

from __future__ import annotations

from collections.abc import Mapping

from clarion.groups.memory import weight_of_offset
from clarion.groups.records import CommittedOffset
from clarion.model.ids import TopicPartition

_NONE: Mapping[TopicPartition, CommittedOffset] = {}


class OffsetStore:
    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._weights: dict[str, int] = {}

    def put(self, group_id: str, partition: TopicPartition, offset: CommittedOffset) -> None:
        offsets = self._groups.setdefault(group_id, {})
        before = offsets.get(partition)
        offsets[partition] = offset
        self._weigh(group_id, weight_of_offset(offset) - (weight_of_offset(before) if before else 0))

    def drop(self, group_id: str, partition: TopicPartition) -> None:
        offsets = self._groups.get(group_id)
        if offsets is None:
            return
        before = offsets.pop(partition, None)
        self._weigh(group_id, -weight_of_offset(before) if before else 0)
        if not offsets:
            del self._groups[group_id]

    def weight_of(self, group_id: str) -> int:
        return self._weights.get(group_id, 0)

    def _weigh(self, group_id: str, change: int) -> None:
        weight = self._weights.get(group_id, 0) + change
        if weight:
            self._weights[group_id] = weight
        else:
            self._weights.pop(group_id, None)

    def of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._groups.get(group_id, _NONE)

    def groups(self) -> Mapping[str, Mapping[TopicPartition, CommittedOffset]]:
        return self._groups
