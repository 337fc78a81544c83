"""Fetch v13 (Kafka 3.1 and newer): by topic id, so that a topic deleted and made again is never read by mistake.

Without sessions: a reader asks for few partitions, and a driver's long poll wants all of them in every answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from clarion.pipeline.kafka.connection import ClientApi
from clarion.pipeline.kafka.errors import refusal
from clarion.wire.cursor import FieldReader, FieldWriter

FETCH: Final = ClientApi("Fetch", 1, 13, is_flexible=True)


class WantedPartition(NamedTuple):
    topic_id: UUID
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1  # that the leader must still be in; -1: whichever


class Fetched(NamedTuple):
    """One partition's part of an answer. The records stay where they are in the frame."""

    topic_id: UUID
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    aborted: tuple[tuple[int, int], ...]
    at: int
    length: int


def fetch_request(
    wanted: Sequence[WantedPartition], *, isolation: int, wait_ms: int, bytes_max: int, bytes_min: int = 1
) -> bytearray:
    by_topic: dict[UUID, list[WantedPartition]] = defaultdict(list)
    for one in wanted:
        by_topic[one.topic_id].append(one)
    to = FieldWriter(flexible=True).int32(-1).int32(wait_ms).int32(bytes_min).int32(bytes_max).int8(isolation)
    to.int32(0).int32(-1)  # no session
    to.array(
        list(by_topic.items()),
        lambda to, topic: to.uuid(topic[0]).array(topic[1], _put_partition).tags(),
    )
    to.array((), lambda to, _: to)  # nothing to forget
    return to.string("").tags().out


def _put_partition(to: FieldWriter, one: WantedPartition) -> None:
    to.int32(one.partition).int32(one.leader_epoch).int64(one.offset).int32(-1).int64(-1).int32(one.bytes_max).tags()


def read_fetched(answer: FieldReader) -> list[Fetched]:
    answer.int32()  # throttle time
    error_code = answer.int16()
    answer.int32()  # session
    if error_code:
        raise refusal(error_code, "fetch")
    topics = answer.array(_read_topic)
    return [each for partitions in topics for each in partitions]


def _read_topic(answer: FieldReader) -> list[Fetched]:
    topic_id = answer.uuid()
    partitions = answer.array(lambda each: _read_partition(each, topic_id))
    answer.skip_tags()
    return partitions


def _read_partition(answer: FieldReader, topic_id: UUID) -> Fetched:
    partition, error_code, high_watermark = answer.int32(), answer.int16(), answer.int64()
    last_stable_offset, start_offset = answer.int64(), answer.int64()
    aborted = tuple(answer.array(_read_aborted))
    answer.int32()  # preferred replica
    at, length = answer.bytes_place()
    answer.skip_tags()
    return Fetched(
        topic_id, partition, error_code, high_watermark, last_stable_offset, start_offset, aborted, at, length
    )


def _read_aborted(answer: FieldReader) -> tuple[int, int]:
    producer_id, first_offset = answer.int64(), answer.int64()
    answer.skip_tags()
    return producer_id, first_offset
