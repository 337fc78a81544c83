"""How far a stream has come, as Spark stores it in a checkpoint:

    {"logs": {"id": "5e0f…", "epochs": {"0": 3, "1": 3}, "0": 120, "1": 97}}

that is Spark's Kafka connector's form and the topic's id, by which a topic that was deleted and made again is noticed,
and per partition the term of the leader from which the last messages came, by which a log that was cut and written anew
is (KIP-320). A checkpoint of that connector has neither; it is read all the same.
Spark takes two offsets for different if their texts differ, so there is exactly one text for each: topics by name,
partitions by number, the id first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from clarion.model.ids import TopicPartition

Json = dict[str, dict[str, Any]]
NO_PARTITIONS = frozenset({"id", "epochs"})  # what stands among a topic's offsets and is none


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset of every partition, and the ids of the topics."""

    ids: Mapping[str, UUID] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict, compare=False)  # as known when they were read

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self.ids) | {tp.topic for tp in self.offsets}

    def to_json(self) -> Json:
        ids = {topic: {"id": str(self.ids[topic])} if topic in self.ids else {} for topic in sorted(self.topics)}
        out: Json = dict(ids)
        for tp in sorted(tp for tp in self.epochs if tp in self.offsets):
            out[tp.topic].setdefault("epochs", {})[str(tp.partition)] = self.epochs[tp]
        for tp in sorted(self.offsets):
            out[tp.topic][str(tp.partition)] = self.offsets[tp]
        return out

    @classmethod
    def from_json(cls, document: Json) -> StreamOffsets:
        return cls(
            {topic: UUID(partitions["id"]) for topic, partitions in document.items() if "id" in partitions},
            {
                TopicPartition(topic, int(partition)): offset
                for topic, partitions in document.items()
                for partition, offset in partitions.items()
                if partition not in NO_PARTITIONS
            },
            {
                TopicPartition(topic, int(partition)): epoch
                for topic, partitions in document.items()
                for partition, epoch in partitions.get("epochs", {}).items()
            },
        )
