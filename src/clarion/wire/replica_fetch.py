"""Fetch as a follower says it to its leader (v15-18, which differ in nothing that it uses): requests out, replies in.

Two tagged fields are Clarion's own, with numbers far from Kafka's, which other brokers pass over: what the follower has
on its disk, of each partition, and the secret of its session, without which anybody could call himself a replica
(CVE-2018-1288). Records come as views of the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.wire.fetch import FLUSHED_TAG, SECRET_TAG
from clarion.wire.fields import (
    INT32,
    NO_TAGS,
    UNREADABLE,
    Body,
    compact_count,
    read_compact_count,
    read_uuid,
    read_uvarint,
    skip_tags,
    uvarint,
)
from clarion.wire.limits import FETCH_ELEMENTS_MAX

LAST_VERSION: Final = 18

_HEAD = Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
_PARTITION = Struct(">iiqiqi")  # index, leader's epoch, offset, last epoch, log start, max bytes
_FLUSHED = uvarint(1) + uvarint(FLUSHED_TAG) + uvarint(8)
_INT64 = Struct(">q")
_REPLICA_STATE = Struct(">BBiqB")  # number 1, thirteen bytes: id, broker epoch, no tags
_NO_RACK: Final = b"\x01"


class AskedPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    leader_epoch: int
    next_offset: int
    last_epoch: int
    start_offset: int
    max_bytes: int
    flushed_offset: int


class ReplicaRequest(NamedTuple):
    replica_id: int
    broker_epoch: int
    secret: bytes
    session_id: int
    session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    asked: Mapping[UUID, Iterable[AskedPartition]]
    forgotten: Mapping[UUID, Iterable[int]]


class FetchedPartition:
    """No NamedTuple: compiled, one cannot be loaded that has a field of the type memoryview."""

    __slots__ = ("diverging_epoch", "error_code", "high_watermark", "index", "log_start_offset", "records", "topic_id")

    def __init__(
        self,
        topic_id: UUID,
        index: int,
        error_code: int,
        high_watermark: int,
        log_start_offset: int,
        records: memoryview,
        diverging_epoch: tuple[int, int] | None,
    ) -> None:
        self.topic_id = topic_id
        self.index = index
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        self.records = records
        self.diverging_epoch = diverging_epoch


class ReplicaReply(NamedTuple):
    error_code: int
    session_id: int
    partitions: Iterator[FetchedPartition]


def encode_request(request: ReplicaRequest) -> bytes:
    head = _HEAD.pack(
        request.max_wait_ms, request.min_bytes, request.max_bytes, 0, request.session_id, request.session_epoch
    )
    parts = [head, compact_count(len(request.asked))]
    for topic_id, asked in request.asked.items():
        rows = [_PARTITION.pack(*one[:6]) + _FLUSHED + _INT64.pack(one.flushed_offset) for one in asked]
        parts += [topic_id.bytes, compact_count(len(rows)), *rows, NO_TAGS]
    parts.append(compact_count(len(request.forgotten)))
    for topic_id, indexes in request.forgotten.items():
        numbers = [INT32.pack(index) for index in indexes]
        parts += [topic_id.bytes, compact_count(len(numbers)), *numbers, NO_TAGS]
    replica = _REPLICA_STATE.pack(1, 13, request.replica_id, request.broker_epoch, 0)
    secret = uvarint(SECRET_TAG) + uvarint(len(request.secret)) + request.secret
    parts += [_NO_RACK, uvarint(2), replica, secret]
    return b"".join(parts)


_TOP = Struct(">ihi")  # throttle time, error code, session id
_STATE = Struct(">ihqqq")  # index, error code, high watermark, last stable offset, log start offset
_ABORTED_BYTES: Final = 17
_DIVERGING = Struct(">iq")


def decode_reply(body: Body) -> ReplicaReply:
    """The partitions are read while one goes through them; MalformedError may come then."""
    try:
        _, error_code, session_id = _TOP.unpack_from(body)
    except UNREADABLE as unreadable:
        raise MalformedError(f"a reply to Fetch cannot be read: {unreadable}") from unreadable
    return ReplicaReply(error_code, session_id, _partitions(body))


def _partitions(body: Body) -> Iterator[FetchedPartition]:
    view = memoryview(body)
    try:
        topics, at = read_compact_count(body, _TOP.size, 3, FETCH_ELEMENTS_MAX)
        for _ in range(topics):
            topic_id, at = read_uuid(body, at)
            count, at = read_compact_count(body, at, _STATE.size, FETCH_ELEMENTS_MAX)
            for _ in range(count):
                fetched, at = _read_partition(body, view, at, topic_id)
                yield fetched
            at = skip_tags(body, at)
        at = skip_tags(body, at)
    except UNREADABLE as unreadable:
        raise MalformedError(f"a reply to Fetch cannot be read: {unreadable}") from unreadable
    if at != len(body):
        raise MalformedError(f"{len(body) - at} bytes follow a reply to Fetch")


def _read_partition(body: Body, view: memoryview, at: int, topic_id: UUID) -> tuple[FetchedPartition, int]:
    index, code, watermark, _, start = _STATE.unpack_from(body, at)
    aborted, at = read_uvarint(body, at + _STATE.size)
    at += max(0, aborted - 1) * _ABORTED_BYTES + INT32.size  # … and the preferred replica
    size, at = read_uvarint(body, at)
    end = at + max(0, size - 1)
    if end > len(body):
        raise MalformedError(f"{size - 1} bytes of records announced, {len(body) - at} left")
    records = view[at:end]
    diverging, at = _read_tags(body, end)
    return FetchedPartition(topic_id, index, code, watermark, start, records, diverging), at


def _read_tags(body: Body, at: int) -> tuple[tuple[int, int] | None, int]:
    diverging = None
    count, at = read_uvarint(body, at)
    for _ in range(count):
        tag, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        if at + size > len(body):
            raise MalformedError("a tagged field is cut off")
        if tag == 0:
            epoch, end_offset = _DIVERGING.unpack_from(body, at)
            diverging = (epoch, end_offset)
        at += size
    return diverging, at
