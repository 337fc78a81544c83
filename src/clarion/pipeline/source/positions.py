"""Names, times and patterns turned into topics, partitions and offsets, by asking the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.metadata import KnownTopic
from clarion.pipeline.kafka.offsets import EARLIEST, LATEST, list_offsets
from clarion.pipeline.source.bounds import AtOffsets, AtTimes, Bound, Earliest, Latest
from clarion.pipeline.source.options import TopicSubscription

Offsets = dict[TopicPartition, int]


class MissingTopicError(Exception):
    """A topic or partition that was asked for by name and is not there."""


def find_topics(client: Client, subscription: TopicSubscription, *, surely: bool = False) -> dict[str, KnownTopic]:
    """The subscribed topics that exist."""
    if subscription.names is not None:
        return client.topics_surely(subscription.names) if surely else client.topics(subscription.names)
    there = client.topics(None).items()
    return {name: topic for name, topic in there if subscription.covers(name) and not topic.is_internal}


def partitions_of(topics: Mapping[str, KnownTopic], subscription: TopicSubscription) -> list[TopicPartition]:
    found = [TopicPartition(topic.name, one.number) for topic in topics.values() for one in topic.partitions]
    return [tp for tp in found if not subscription.assigned or tp in subscription.assigned]


def check_all_there(client: Client, topics: Mapping[str, KnownTopic], subscription: TopicSubscription) -> None:
    """Refuse what was named and does not exist."""
    missing = [name for name in subscription.names or () if name not in topics]
    found = set(partitions_of(topics, subscription))
    missing_partitions = [str(tp) for tp in subscription.assigned if tp.topic in topics and tp not in found]
    if missing or missing_partitions:
        what = f"topic {', '.join(missing)}" if missing else f"partition {', '.join(missing_partitions)}"
        where = ", ".join(client.settings.bootstrap_servers)
        raise MissingTopicError(f"{what} does not exist at {where}")


def resolve(
    client: Client,
    bound: Bound,
    partitions: Iterable[TopicPartition],
    *,
    isolation: int,
    option: str,
    takes_latest: bool = True,
) -> Offsets:
    """The offsets that a bound stands for. `option` names it in errors."""
    partitions = list(partitions)
    match bound:
        case Earliest():
            times = dict.fromkeys(partitions, EARLIEST)
        case Latest():
            times = dict.fromkeys(partitions, LATEST)
        case AtOffsets(offsets):
            return _at_offsets(client, dict(offsets), partitions, isolation, option)
        case AtTimes(named, every):
            return _at_times(client, dict(named), every, partitions, isolation, option, takes_latest)
        case _:
            assert_never(bound)
    return list_offsets(client, times, isolation=isolation)


def _at_offsets(
    client: Client, named: Offsets, partitions: list[TopicPartition], isolation: int, option: str
) -> Offsets:
    _check_complete(named, partitions, option)
    asked = {tp: offset for tp, offset in named.items() if offset < 0}
    return {**named, **list_offsets(client, asked, isolation=isolation)}


def _at_times(
    client: Client,
    named: Offsets,
    every_ms: int | None,
    partitions: list[TopicPartition],
    isolation: int,
    option: str,
    takes_latest: bool,
) -> Offsets:
    times = named if every_ms is None else dict.fromkeys(partitions, every_ms)
    _check_complete(times, partitions, option)
    found = list_offsets(client, times, isolation=isolation)
    late = {tp: LATEST for tp, offset in found.items() if offset < 0}
    if late and not takes_latest:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"option {option}: {', '.join(map(str, sorted(late)))} has no message as late as that (set "
            "startingOffsetsByTimestampStrategy to latest to begin at the end there)",
        )
    return {**found, **list_offsets(client, late, isolation=isolation)}


def _check_complete(named: Iterable[TopicPartition], partitions: list[TopicPartition], option: str) -> None:
    """Every partition has its offset, and none is named that is not read."""
    missing = sorted(set(partitions) - set(named))
    unknown = sorted(set(named) - set(partitions))
    if missing:
        raise MissingTopicError(f"option {option} says nothing about {', '.join(map(str, missing))}")
    if unknown:
        raise MissingTopicError(f"option {option}: {', '.join(map(str, unknown))} is not subscribed or does not exist")
