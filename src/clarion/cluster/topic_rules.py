"""Whether a topic may be made, or grow, beside those that the cluster has."""

from __future__ import annotations

from typing import NamedTuple

from clarion.cluster.image import ClusterImage, Topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import check_topic_name


class TopicLimits(NamedTuple):
    partitions_max: int  # of all topics together
    topic_partitions_max: int  # of one


def check_new_topic(image: ClusterImage, limits: TopicLimits, name: str, partition_count: int) -> None:
    check_new_name(image, name)
    if partition_count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    _check_room(image, limits, partition_count, partition_count)


def check_new_name(image: ClusterImage, name: str) -> None:
    """Whether a topic may be called like this: the first question, before how it shall be."""
    check_topic_name(name)
    if image.topic(name) is not None:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    twin = image.twin_of(name)
    if twin is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name!r} collides with existing topic {twin!r}: '.' and '_' count as the same",
        )


def check_growth(image: ClusterImage, limits: TopicLimits, topic: Topic, partition_count: int) -> None:
    """`partition_count`: how many it shall have then."""
    if partition_count == topic.partition_count:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {topic.partition_count} partition(s).")
    if partition_count < topic.partition_count:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partition_count} partition(s); "
            f"{partition_count} would not be an increase.",
        )
    _check_room(image, limits, partition_count, partition_count - topic.partition_count)


def _check_room(image: ClusterImage, limits: TopicLimits, of_topic: int, more: int) -> None:
    if of_topic > limits.topic_partitions_max:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic has at most {limits.topic_partitions_max} partitions, not {of_topic}",
        )
    total = image.partition_total
    if total + more > limits.partitions_max:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{total} partitions exist, at most {limits.partitions_max} may; {more} more do not fit",
        )
