"""Sets of partitions, by topic id: a read-only mapping without empty entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

Partitions = Mapping[UUID, frozenset[int]]

NOTHING: Partitions = {}


def collect(pairs: Iterable[tuple[UUID, Iterable[int]]]) -> Partitions:
    gathered: dict[UUID, frozenset[int]] = {}
    for topic_id, partitions in pairs:
        gathered[topic_id] = gathered.get(topic_id, frozenset()).union(partitions)
    return _without_empty(gathered)


def union(one: Partitions, other: Partitions) -> Partitions:
    if not one or not other:
        return one or other
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in {**one, **other}}


def common(one: Partitions, other: Partitions) -> Partitions:
    return _without_empty({topic: partitions & other.get(topic, frozenset()) for topic, partitions in one.items()})


def without(one: Partitions, other: Partitions) -> Partitions:
    return _without_empty({topic: partitions - other.get(topic, frozenset()) for topic, partitions in one.items()})


def is_subset(one: Partitions, other: Partitions) -> bool:
    return all(partitions <= other.get(topic, frozenset()) for topic, partitions in one.items())


def each(partitions: Partitions) -> Iterable[tuple[UUID, int]]:
    return ((topic, partition) for topic, numbers in partitions.items() for partition in sorted(numbers))


def count(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def _without_empty(partitions: Partitions) -> Partitions:
    return {topic: numbers for topic, numbers in partitions.items() if numbers}
