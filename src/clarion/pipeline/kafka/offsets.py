"""Offsets: where partitions begin and end (ListOffsets v5), what a group has read (OffsetFetch v5, OffsetCommit v7).

The group is a simple one: offsets under a name, no members, no rebalances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.connection import ClientApi
from clarion.pipeline.kafka.errors import ConnectionLostError, refusal
from clarion.wire.cursor import FieldReader, FieldWriter

T = TypeVar("T")
V = TypeVar("V")

LIST_OFFSETS: Final = ClientApi("ListOffsets", 2, 5, is_flexible=False)
OFFSET_FOR_LEADER_EPOCH: Final = ClientApi("OffsetForLeaderEpoch", 23, 3, is_flexible=False)
OFFSET_COMMIT: Final = ClientApi("OffsetCommit", 8, 7, is_flexible=False)
OFFSET_FETCH: Final = ClientApi("OffsetFetch", 9, 5, is_flexible=False)
FIND_COORDINATOR: Final = ClientApi("FindCoordinator", 10, 2, is_flexible=False)

LATEST: Final = -1
EARLIEST: Final = -2

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


def list_offsets(
    client: Client, times: Mapping[TopicPartition, int], *, isolation: int = READ_COMMITTED
) -> dict[TopicPartition, int]:
    """The first offset at or after each time (milliseconds, LATEST or EARLIEST); -1 where there is none."""
    found: dict[TopicPartition, int] = {}
    client.keep_trying(lambda: _list_missing(client, times, found, isolation))
    return found


def _list_missing(
    client: Client, times: Mapping[TopicPartition, int], found: dict[TopicPartition, int], isolation: int
) -> None:
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for tp, timestamp in times.items():
        if tp not in found:
            by_leader[client.leader(tp.topic, tp.partition)][tp] = timestamp
    for leader, asked in by_leader.items():
        for tp, error_code, offset in _ask_leader(client, leader, asked, isolation):
            if error_code:
                client.forget_leaders([tp.topic])
                raise refusal(_unless_missing(error_code), f"offsets of {tp}")
            found[tp] = offset


def _unless_missing(error_code: int) -> int:
    """A leader may not know yet of a topic or partition that was just made: whether it is there the metadata say, which
    are asked for again before the next try."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error_code


def _ask_leader(
    client: Client, leader: int, asked: Mapping[TopicPartition, int], isolation: int
) -> list[tuple[TopicPartition, int, int]]:
    def one(to: FieldWriter, partition: int, epoch_and_time: tuple[int, int]) -> None:
        to.int32(partition).int32(epoch_and_time[0]).int64(epoch_and_time[1])

    with_epochs = {tp: (client.leader_epoch(*tp), timestamp) for tp, timestamp in asked.items()}
    request = _put_topics(FieldWriter().int32(-1).int8(isolation), with_epochs, one)
    try:
        return _read_listed(client.ask(leader, LIST_OFFSETS, request.out))
    except ConnectionLostError:
        client.forget_leaders(tp.topic for tp in asked)
        raise


def _read_listed(answer: FieldReader) -> list[tuple[TopicPartition, int, int]]:
    def one(answer: FieldReader) -> tuple[int, int, int]:
        partition, error_code, _ = answer.int32(), answer.int16(), answer.int64()
        offset, _ = answer.int64(), answer.int32()
        return partition, error_code, offset

    answer.int32()  # throttle time
    return [(TopicPartition(topic, each[0]), each[1], each[2]) for topic, each in _read_topics(answer, one)]


def ends_of_epochs(client: Client, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Where a leader's term ended in each log as it is now: an offset that was read in this term and lies behind it was
    cut off since. Partitions of which the leader knows no such term are missing."""
    found: dict[TopicPartition, int] = {}

    def one(to: FieldWriter, partition: int, epoch: int) -> None:
        to.int32(partition).int32(-1).int32(epoch)

    def read(answer: FieldReader) -> tuple[int, int, int]:
        error_code, partition = answer.int16(), answer.int32()
        answer.int32()  # the greatest term up to the one asked for
        return error_code, partition, answer.int64()

    def ask() -> None:
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, epoch in epochs.items():
            by_leader[client.leader(*tp)][tp] = epoch
        for leader, asked in by_leader.items():
            answer = client.ask(leader, OFFSET_FOR_LEADER_EPOCH, _put_topics(FieldWriter().int32(-1), asked, one).out)
            answer.int32()  # throttle time
            for topic, (error_code, partition, end_offset) in _read_topics(answer, read):
                if error_code:
                    client.forget_leaders([topic])
                    raise refusal(_unless_missing(error_code), f"epochs of {topic}-{partition}")
                if end_offset >= 0:
                    found[TopicPartition(topic, partition)] = end_offset

    client.keep_trying(ask)
    return found


# ------------------------------------------------------------------------------------------------ groups


class Committed(NamedTuple):
    offset: int
    metadata: str


def fetch_committed(client: Client, group: str, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
    """What the group has stored for these partitions; those it knows nothing of are missing."""
    partitions = sorted(wanted)

    def ask() -> dict[TopicPartition, Committed]:
        def one(to: FieldWriter, partition: int, _: int) -> None:
            to.int32(partition)

        request = _put_topics(FieldWriter().string(group), dict.fromkeys(partitions, 0), one)
        answer = client.ask(coordinator(client, group), OFFSET_FETCH, request.out)
        answer.int32()  # throttle time
        stored = _read_topics(answer, _read_committed)
        if error_code := answer.int16():
            raise refusal(error_code, f"offsets of group {group}")
        return {
            TopicPartition(topic, partition): Committed(offset, metadata)
            for topic, (partition, offset, metadata) in stored
            if offset >= 0
        }

    return client.keep_trying(ask)


def _read_committed(answer: FieldReader) -> tuple[int, int, str]:
    partition, offset = answer.int32(), answer.int64()
    answer.int32()  # leader epoch
    metadata = answer.text()
    if error_code := answer.int16():
        raise refusal(error_code, "a committed offset")
    return partition, offset, metadata


def commit_offsets(
    client: Client, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str = "", timeout_ms: int
) -> None:
    """Store these offsets under the group's name; those of topics that do not exist are left out."""

    def one(to: FieldWriter, partition: int, offset: int) -> None:
        to.int32(partition).int64(offset).int32(-1).string(metadata)

    request = _put_topics(FieldWriter().string(group).int32(-1).string("").string(None), offsets, one)

    def ask() -> None:
        answer = client.ask(coordinator(client, group), OFFSET_COMMIT, request.out)
        answer.int32()  # throttle time
        for topic, (partition, error_code) in _read_topics(answer, lambda each: (each.int32(), each.int16())):
            # How far somebody has read a topic that is gone is of no interest; all others are stored.
            if error_code and error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise refusal(error_code, f"commit of {topic}-{partition} for group {group}")

    client.keep_trying(ask, timeout_ms=timeout_ms)


def coordinator(client: Client, group: str) -> int:
    """Asked for every time: commits are rare, and a remembered coordinator is one more thing to go stale."""
    answer = client.ask_any(FIND_COORDINATOR, FieldWriter().string(group).int8(0).out)
    answer.int32()  # throttle time
    error_code, message, broker = answer.int16(), answer.nullable_string(), answer.int32()
    if error_code:
        raise refusal(error_code, f"coordinator of group {group}", message)
    try:
        client.connection(broker)
    except ConnectionLostError:
        client.topics([])  # brokers that came after the last answer
        raise
    return broker


# ------------------------------------------------------------------------------------------------ arrays of topics


def _put_topics(
    to: FieldWriter, values: Mapping[TopicPartition, V], one: Callable[[FieldWriter, int, V], None]
) -> FieldWriter:
    by_topic: dict[str, list[tuple[int, V]]] = defaultdict(list)
    for tp, value in values.items():
        by_topic[tp.topic].append((tp.partition, value))
    return to.array(
        list(by_topic.items()),
        lambda to, topic: to.string(topic[0]).array(topic[1], lambda to, each: one(to, *each)),
    )


def _read_topics(answer: FieldReader, one: Callable[[FieldReader], T]) -> list[tuple[str, T]]:
    topics = answer.array(lambda each: (each.text(), each.array(one)))
    return [(topic, each) for topic, partitions in topics for each in partitions]


def is_missing(error: Exception) -> bool:
    """Whether a topic or partition is not there at all."""
    return isinstance(error, KafkaError) and error.code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
