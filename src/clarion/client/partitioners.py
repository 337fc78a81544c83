"""Which partition a message goes to, where the writer does not name one.

A partitioner is a function of the topic, the key and the number of partitions. By key it is Kafka's rule (murmur2), and
messages without a key are spread; the others do not look at the key, so that messages of one key lose their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from clarion.client.errors import InvalidRequest
from clarion.model.key_hash import partition_of_key
from clarion.world import Randomness, SystemRandomness

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, number of partitions) → partition. Called from the thread that writes."""

_RANDOM_BYTES: Final = 4_096  # drawn at a time: a system call for each message would cost more than the message


def by_key(topic: str, key: bytes | None, partitions: int) -> int:
    """Kafka's own rule; -1, for a message without a key, leaves the choice to the library, which fills batches so."""
    return -1 if key is None else partition_of_key(key, partitions)


class RoundRobin:
    """Each partition in turn, topic by topic."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:
        self._last[topic] = turn = (self._last.get(topic, -1) + 1) % partitions
        return turn


class WeightedRoundRobin:
    """Each partition as often as its weight says, evenly in between: with 5, 1, 1 it goes a a b a c a a.

    A partition without a weight has 1; with 0 it gets nothing.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        if not all(_is_number(partition) and _is_number(weight) for partition, weight in weights.items()):
            raise TypeError("weights are numbers by partition, as {0: 5, 1: 1}")
        if any(weight < 0 for weight in weights.values()) or any(partition < 0 for partition in weights):
            raise InvalidRequest("weights: partitions and weights are 0 or more")
        self._weights = dict(weights)
        self._credits: dict[str, list[float]] = {}

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:
        weights = [self._weights.get(partition, 1) for partition in range(partitions)]
        if not any(weights):
            raise InvalidRequest(f"weights: no partition of {topic!r} has a weight above 0")
        credits = self._credits.setdefault(topic, [])
        credits += [0.0] * (partitions - len(credits))
        for partition, weight in enumerate(weights):
            credits[partition] += weight
        chosen = max((one for one in range(partitions) if weights[one]), key=credits.__getitem__)
        credits[chosen] -= sum(weights)
        return chosen


class RandomPartition:
    """Any, with the same chance."""

    def __init__(self, randomness: Randomness | None = None) -> None:
        self._randomness = randomness or SystemRandomness()
        self._drawn = b""
        self._at = 0

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:
        at, drawn = self._at, self._drawn
        if at + 4 > len(drawn):
            at, drawn = 0, self._randomness.bytes(_RANDOM_BYTES)
            self._drawn = drawn
        self._at = at + 4
        return int.from_bytes(drawn[at : at + 4], "big") % partitions


class NamedPartition:
    """Always this one: everything in one order."""

    def __init__(self, partition: int) -> None:
        if partition < 0:
            raise InvalidRequest(f"partition {partition}: it is 0 or more")
        self._partition = partition

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:
        return self._partition


_BY_NAME: Final[dict[str, Callable[[], Partitioner]]] = {
    "key": lambda: by_key,
    "round-robin": RoundRobin,
    "random": RandomPartition,
}


def partitioner_of(told: str | int | Mapping[int, float] | Partitioner) -> Partitioner:
    """ "key", "round-robin" or "random"; a partition; weights by partition; or a function."""
    if isinstance(told, str):
        if told not in _BY_NAME:
            choices = ", ".join(_BY_NAME)
            raise InvalidRequest(f"partitioner {told!r}: write one of {choices}, a partition, weights, or a function")
        return _BY_NAME[told]()
    if isinstance(told, int) and not isinstance(told, bool):
        return NamedPartition(told)
    if isinstance(told, Mapping):
        return WeightedRoundRobin(told)
    if not callable(told):
        raise TypeError(f"partitioner is {type(told).__name__}; write a name, a partition, weights, or a function")
    return told


def _is_number(what: object) -> bool:
    return isinstance(what, int | float) and not isinstance(what, bool)
