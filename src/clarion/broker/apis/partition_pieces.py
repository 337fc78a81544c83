"""What a request says of thousands of partitions, cut into requests of hundreds.

A group's coordinator takes and answers a request in one step, and others wait meanwhile. So the driver asks it several
times, and joins the answers. Each answer is about single partitions, and nobody is promised that they change together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, TypeVar

PARTITIONS_PER_PIECE: Final = 300  # a committed offset takes some ten microseconds to write

Topic = TypeVar("Topic", bound=Any)


def pieces(topics: Sequence[Topic], field: str) -> Iterator[tuple[Topic, ...]]:
    """The topics in portions; `field` holds a topic's partitions. One empty portion if there are none."""
    portion: list[Topic] = []
    room = PARTITIONS_PER_PIECE
    for topic in topics:
        partitions = getattr(topic, field)
        at = 0
        while len(partitions) - at > room:
            portion.append(replace(topic, **{field: partitions[at : at + room]}))
            yield tuple(portion)
            at += room
            portion, room = [], PARTITIONS_PER_PIECE
        portion.append(replace(topic, **{field: partitions[at:]}) if at else topic)
        room -= max(1, len(partitions) - at)  # a topic without partitions is work, too
        if room <= 0:
            yield tuple(portion)
            portion, room = [], PARTITIONS_PER_PIECE
    if portion or not topics:
        yield tuple(portion)


def joined(answers: Iterable[Topic]) -> tuple[Topic, ...]:
    """The topics of all answers, each in one piece again."""
    whole = []
    for _, same in groupby(answers, key=attrgetter("name", "topic_id")):
        first, *others = same
        if others:
            partitions = chain.from_iterable(one.partitions for one in (first, *others))
            first = replace(first, partitions=tuple(partitions))
        whole.append(first)
    return tuple(whole)
