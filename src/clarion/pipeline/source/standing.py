"""Where a stream stands among the topics as they are now: which partitions it goes on with, and what it has lost. Pure.

A topic that no broker knows of keeps its place: one empty answer (a broker that has just started) must not have a
stream begin anew, nor end it. Only if it stays away is it told as deleted; and it is another topic only if its id is.
A partition that is new begins at its first offset, which is 0 and not what happens to be left of it: whoever reads
there finds out what was deleted before anybody saw it. Nothing ever goes backwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.ids import TopicPartition
from clarion.pipeline.source.offsets import StreamOffsets

# Longer than a broker takes to learn from its cluster what topics there are.
MISSING_PATIENCE_S: Final = 10.0


class Found(NamedTuple):
    """A topic as the brokers know it."""

    topic_id: UUID
    partitions: frozenset[int]


class Standing(NamedTuple):
    offsets: StreamOffsets  # all that the stream knows of, whether it is there now or not
    present: frozenset[TopicPartition]  # what can be asked about
    losses: tuple[str, ...]


class Missing:
    """Topics that are away, and since when."""

    def __init__(self, patience_s: float = MISSING_PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self, start: StreamOffsets, found: Mapping[str, Found], now: float) -> Standing:
        away = start.topics - found.keys()
        self._since = {topic: self._since.get(topic, now) for topic in away}
        self._told &= away
        overdue = {topic for topic in away if now - self._since[topic] >= self._patience_s} - self._told
        self._told |= overdue
        standing = stand(start, found)
        deleted = tuple(f"topic {topic} is deleted" for topic in sorted(overdue))
        return standing._replace(losses=standing.losses + deleted)


def stand(start: StreamOffsets, found: Mapping[str, Found]) -> Standing:
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
