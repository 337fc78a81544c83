"""Fetch's replies: what was found in each partition, and all of it as bytes and slices of files, topic by topic."""

from __future__ import annotations

from clarion.broker.fetch_sessions import NO_SESSION, SessionPartition
from clarion.log.slices import FileSlice
from clarion.model.errors import KafkaError
from clarion.net import Reply
from clarion.replication import Partition
from clarion.wire.apis import FETCH
from clarion.wire.fetch_response import PartitionFetched, TopicFetched, encode_response
from clarion.wire.frames import RequestHeader, reply_head


class Found:
    """One partition of the reply."""

    __slots__ = ("asked", "fetched", "slices")

    def __init__(self, asked: SessionPartition, fetched: PartitionFetched, slices: list[FileSlice]) -> None:
        self.asked = asked
        self.fetched = fetched
        self.slices = slices


class Collected:
    """What was found so far."""

    __slots__ = ("found", "must_tell", "quiet", "total")

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.quiet: list[SessionPartition] = []  # nothing new in these
        self.total = 0  # bytes
        self.must_tell = False  # an error, say: reason enough to answer at once


def fetched_from(
    index: int, partition: Partition, records_length: int, diverging: tuple[int, int] | None = None
) -> PartitionFetched:
    watermark = partition.high_watermark.offset
    return PartitionFetched(index, 0, watermark, watermark, partition.start_offset, records_length, diverging)


def encode_found(header: RequestHeader, session_id: int, found: list[Found]) -> Reply:
    topics, in_order = _by_topic(found)
    pieces = encode_response(header.api_version, throttle_ms=0, error_code=0, session_id=session_id, topics=topics)
    records = [one for one in in_order if one.fetched.records_length]
    total = sum(map(len, pieces)) + sum([one.fetched.records_length for one in records])
    parts: list[bytes | FileSlice] = [reply_head(FETCH, header.api_version, header.correlation_id, total) + pieces[0]]
    for one, piece in zip(records, pieces[1:], strict=True):
        parts.extend(one.slices)
        parts.append(piece)
    return parts


def _by_topic(found: list[Found]) -> tuple[list[TopicFetched], list[Found]]:
    """Each topic once, as the reply wants it, and the partitions in the order in which they come then."""
    if len(found) == 1:
        return [(found[0].asked.name, found[0].asked.topic_id, [found[0].fetched])], found
    topics: dict[object, list[Found]] = {}
    for one in found:
        topics.setdefault(one.asked.key[0], []).append(one)
    named: list[TopicFetched] = [
        (ones[0].asked.name, ones[0].asked.topic_id, [one.fetched for one in ones]) for ones in topics.values()
    ]
    return named, [one for ones in topics.values() for one in ones]


def refusal(header: RequestHeader, error: KafkaError) -> bytes:
    pieces = encode_response(header.api_version, throttle_ms=0, error_code=error.code, session_id=NO_SESSION, topics=[])
    return reply_head(FETCH, header.api_version, header.correlation_id, sum(map(len, pieces))) + b"".join(pieces)
