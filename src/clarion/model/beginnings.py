"""Where a subscription begins, where that was decided before its first reader came.

"The latest" is where a topic ends when the subscription is made, or moved there, and not when somebody first reads:
what is written in between is for it. Partitions and topics that were not there then are read from their start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from clarion.model.ids import TopicId


@dataclass(frozen=True, slots=True)
class Beginnings:
    offsets: Mapping[TopicId, Mapping[int, int]]

    def of(self, topic_id: TopicId, partition: int) -> int | None:
        """None: the partition was not there yet."""
        return self.offsets.get(topic_id, {}).get(partition)

    def at(self, topic_id: TopicId, partition: int) -> int:
        """The same for who is to read: an offset before the log's start is its start."""
        return self.of(topic_id, partition) or 0

    def moved(self, offsets: Mapping[TopicId, Mapping[int, int]]) -> Beginnings:
        """With these offsets in place of those that it has for the same partitions."""
        both = {**self.offsets, **offsets}
        return Beginnings({topic: {**self.offsets.get(topic, {}), **at} for topic, at in both.items()})

    def to_text(self) -> str:
        return json.dumps(
            {topic.hex: {str(index): offset for index, offset in at.items()} for topic, at in self.offsets.items()}
        )

    @classmethod
    def from_text(cls, text: str) -> Beginnings:
        """ValueError where it is not what `to_text` writes."""
        found = json.loads(text)
        if not isinstance(found, dict) or not all(isinstance(at, dict) for at in found.values()):
            raise ValueError("beginnings are offsets by topic and partition")
        return cls(
            {UUID(topic): {int(index): int(offset) for index, offset in at.items()} for topic, at in found.items()}
        )
