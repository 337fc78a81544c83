"""How far a stream has come, as Spark stores it in a checkpoint:

    {"logs": {"id": "5e0f…", "epochs": {"0": 3, "1": 3}, "0": 120, "1": 97}}

that is Spark's Kafka connector's form and the topic's id, by which a topic that was deleted and made again is noticed,
and per partition the term of the leader from which the last messages came, by which a log that was cut and written anew
is (KIP-320). A checkpoint of that connector has neither; it is read all the same.
Spark takes two offsets for different if their texts differ, so there is exactly one text for each: topics by name,
partitions by number, the id first.

And where a stream stands among the topics as they are now: which partitions it goes on with, and what it has lost. A
topic that no broker knows of keeps its place: one empty answer (a broker that has just started) must not have a stream
begin anew, nor end it. Only if it stays away is it told as deleted; and it is another topic only if its id is. One that
the query has read and that is not among its topics any more is told at once. A partition that is new begins at its
first offset, which is 0 and not what happens to be left of it: whoever reads there finds out what was deleted before
anybody saw it. Nothing ever goes backwards. All of it is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
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


# ------------------------------------------------------------------------------------------------ standing

# Longer than a broker takes to learn from its cluster what topics there are.
MISSING_PATIENCE_S: Final = 10.0


class FoundTopic(NamedTuple):
    """A topic as the brokers know it."""

    topic_id: UUID
    partitions: frozenset[int]


class Standing(NamedTuple):
    offsets: StreamOffsets  # all that the stream knows of, whether it is there now or not
    present: frozenset[TopicPartition]  # what can be asked about
    losses: tuple[str, ...]


class Missing:
    """Topics that are away, and since when; and what is there and not to be read any more."""

    def __init__(self, patience_s: float = MISSING_PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}
        self._losses: set[str] = set()
        self._told: set[str] = set()

    def look(
        self,
        start: StreamOffsets,
        found: Mapping[str, FoundTopic],
        now: float,
        is_subscribed: Callable[[str, int | None], bool] = lambda *_: True,
    ) -> Standing:
        away = start.topics - found.keys()
        self._since = {topic: self._since.get(topic, now) for topic in away}
        given_up = {topic for topic in away if not is_subscribed(topic, None)}
        overdue = {topic for topic in away if now - self._since[topic] >= self._patience_s}
        left_out = {tp for tp in start.offsets if tp.topic in found and not is_subscribed(*tp)}
        losses = (
            *(f"topic {topic} is deleted" for topic in sorted(overdue - given_up)),
            *(_given_up("topic", topic) for topic in sorted(given_up)),
            *(_given_up("partition", tp) for tp in sorted(left_out)),
        )
        untold = tuple(each for each in losses if each not in self._told)
        self._losses = set(losses)
        self._told &= self._losses
        standing = stand(start, found)
        return standing._replace(losses=(*standing.losses, *untold))

    def note_told(self) -> None:
        """What the last look found was heard by somebody, and is not told again."""
        self._told = self._losses


def _given_up(kind: str, what: object) -> str:
    return f"{kind} {what} was read by this query and is not among its {kind}s any more: nothing more of it is read"


def stand(start: StreamOffsets, found: Mapping[str, FoundTopic]) -> Standing:
    """Go on where `start` ended. A topic without an id there (another connector's checkpoint) is the one there is."""
    ids, offsets = dict(start.ids), dict(start.offsets)
    losses = []
    for topic, (topic_id, partitions) in sorted(found.items()):
        known = ids.get(topic, topic_id)
        if known != topic_id:
            losses.append(f"topic {topic} was deleted and made again (its id was {known}, it is {topic_id})")
            offsets = {tp: offset for tp, offset in offsets.items() if tp.topic != topic}
        ids[topic] = topic_id
        for partition in partitions:
            offsets.setdefault(TopicPartition(topic, partition), 0)
    present = frozenset(tp for tp in offsets if tp.topic in found and tp.partition in found[tp.topic].partitions)
    return Standing(StreamOffsets(ids, offsets), present, tuple(losses))


def forward(standing: StreamOffsets, ends: Mapping[TopicPartition, int]) -> StreamOffsets:
    """The ends of all partitions. A leader that knows less than was read already (it was elected a moment ago) is not
    followed backwards: the same rows would come again, in another batch."""
    return StreamOffsets(
        standing.ids, {tp: max(offset, ends.get(tp, offset)) for tp, offset in standing.offsets.items()}
    )
