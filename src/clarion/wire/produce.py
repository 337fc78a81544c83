"""Produce v3-13 by hand: record batches stay where the kernel put them.

v5 log start offset · v8 error message and record errors · v9 flexible · v10 the current leader and where it listens,
after NOT_LEADER_OR_FOLLOWER · v13 topic ids instead of names. v4, v6, v7, v11 and v12 changed meaning, not form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.current_leader import CurrentLeader, endpoint_tags, leader_tag
from clarion.wire.fields import (
    INT32,
    NO_TAGS,
    UNREADABLE,
    check_elements,
    compact_count,
    compact_nullable_string,
    compact_string,
    known_uuid,
    nullable_string,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_nullable_string,
    read_string,
    read_uuid,
    read_uvarint,
    skip_tags,
    string,
)
from clarion.wire.limits import PRODUCE_ELEMENTS_MAX

FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_LEADERS: Final = 10
FIRST_WITH_IDS: Final = 13

_ACKS_AND_TIMEOUT = Struct(">hi")
_INDEX_AND_LENGTH = Struct(">ii")
_PARTITION_BYTES_MIN: Final = 8
_TOPIC_BYTES_MIN: Final = 6
_COMPACT_PARTITION_BYTES_MIN: Final = 6
_COMPACT_TOPIC_BYTES_MIN: Final = 3


class ProducePartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    records: memoryview | None


class ProduceTopic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    records_at: int = 0
    """Where in the body the length of the only records stands; 0 unless the request is `single`, see below."""


class PartitionProduced(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    current_leader: CurrentLeader | None = None
    """From v10 on."""
    bad_records: Sequence[int] = ()
    """The records of the batch that the error is about (KIP-467), from v8 on."""


TopicProduced = tuple[str, UUID, list[PartitionProduced]]


def decode_request(body: memoryview, version: int) -> ProduceRequest:
    """The records are views into `body`: nothing is copied, and they are writable if the frame is."""
    single = _decode_single(body, version)
    if single is not None:
        return single
    try:
        request, end = _decode_flexible(body, version) if version >= FIRST_FLEXIBLE else _decode_plain(body)
    except UNREADABLE as unreadable:
        raise MalformedError(f"Produce v{version} cannot be read: {unreadable}") from unreadable
    if end != len(body):
        raise MalformedError(f"{len(body) - end} bytes follow Produce v{version}")
    return request


def encode_response(version: int, topics: Iterable[TopicProduced], throttle_ms: int = 0) -> bytes:
    if version >= FIRST_FLEXIBLE:
        return _encode_flexible(version, list(topics), throttle_ms)
    return _encode_plain(version, list(topics), throttle_ms)


# The request that nearly every producer sends nearly always: no transaction, one topic, one partition, no tagged field.
# It is recognised byte for byte, which halves the cost of a tiny request; any other shape takes the general road.

_make = tuple.__new__
_PLAIN_START = Struct(">hhiih")  # no transactional id, acks, timeout, one topic, the length of its name
_PLAIN_RECORDS = Struct(">iii")  # one partition, its index, the length of its records
_FLEXIBLE_START = Struct(">BhiBB")
_START_WITH_ID = Struct(">BhiB16s")
_FLEXIBLE_PARTITION = Struct(">Bi")
_NO_TAGS_THRICE: Final = b"\0\0\0"  # of the partition, its topic and the request


def _decode_single(body: memoryview, version: int) -> ProduceRequest | None:
    """None if the request has another shape, or cannot be read; the general road finds out which."""
    try:
        return _decode_single_flexible(body, version) if version >= FIRST_FLEXIBLE else _decode_single_plain(body)
    except UNREADABLE:
        return None


def _decode_single_plain(body: memoryview) -> ProduceRequest | None:
    transactional, acks, timeout_ms, topics, length = _PLAIN_START.unpack_from(body)
    if transactional != -1 or topics != 1 or length < 0:
        return None
    at = _PLAIN_START.size + length
    partitions, index, records_length = _PLAIN_RECORDS.unpack_from(body, at)
    start = at + _PLAIN_RECORDS.size
    if partitions != 1 or records_length < 0 or start + records_length != len(body):
        return None
    name = str(body[_PLAIN_START.size : at], "utf-8")
    return _single(acks, timeout_ms, name, NO_TOPIC_ID, index, body[start:], start - 4)


def _decode_single_flexible(body: memoryview, version: int) -> ProduceRequest | None:
    if version >= FIRST_WITH_IDS:
        transactional, acks, timeout_ms, topics, content = _START_WITH_ID.unpack_from(body)
        at = _START_WITH_ID.size
    else:
        transactional, acks, timeout_ms, topics, length = _FLEXIBLE_START.unpack_from(body)
        if not 0 < length < 0x80:
            return None
        at = _FLEXIBLE_START.size + length - 1
    partitions, index = _FLEXIBLE_PARTITION.unpack_from(body, at)
    if transactional != 0 or topics != 2 or partitions != 2:
        return None
    records_at = at + _FLEXIBLE_PARTITION.size
    records = last_records(body, records_at, version)
    if records is None:
        return None
    if version >= FIRST_WITH_IDS:
        return _single(acks, timeout_ms, "", known_uuid(content), index, records, records_at)
    name = str(body[_FLEXIBLE_START.size : at], "utf-8")
    return _single(acks, timeout_ms, name, NO_TOPIC_ID, index, records, records_at)


def _single(
    acks: int, timeout_ms: int, name: str, topic_id: UUID, index: int, records: memoryview, records_at: int
) -> ProduceRequest:
    topic = _make(ProduceTopic, (name, topic_id, [_make(ProducePartition, (index, records))]))
    return _make(ProduceRequest, (None, acks, timeout_ms, [topic], records_at))


def last_records(data: memoryview, at: int, version: int) -> memoryview | None:
    """The records whose length stands at `at`, if nothing but them follows in the request."""
    if version >= FIRST_FLEXIBLE:
        size, start = read_uvarint(data, at)
        end = start + size - 1
        if size == 0 or end + 3 != len(data) or bytes(data[end:]) != _NO_TAGS_THRICE:
            return None
        return data[start:end]
    (length,) = INT32.unpack_from(data, at)
    return data[at + 4 :] if length >= 0 and at + 4 + length == len(data) else None


class SingleReply:
    """The whole reply to a single batch that was taken, ready but for what changes from one to the next. From v5 on."""

    __slots__ = ("_after", "_before", "_pack", "_size")

    def __init__(self, version: int, name: str, topic_id: UUID, index: int) -> None:
        body = encode_response(version, [(name, topic_id, [PartitionProduced(index, 0, *_MARKS)])])
        before, _, self._after = body.partition(_CHANGING.pack(*_MARKS))
        self._before = NO_TAGS + before if version >= FIRST_FLEXIBLE else before
        form = Struct(f">ii{len(self._before)}sqqq{len(self._after)}s")
        self._size = form.size - 4
        self._pack = form.pack

    def fill(self, correlation_id: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> bytes:
        return self._pack(
            self._size, correlation_id, self._before, base_offset, log_append_time_ms, log_start_offset, self._after
        )


_CHANGING = Struct(">qqq")
_MARKS: Final = (-0x123456789ABCDEF0, -0x123456789ABCDEF1, -0x123456789ABCDEF2)  # not to be found in a name


def _decode_flexible(body: memoryview, version: int) -> tuple[ProduceRequest, int]:
    transactional_id, at = read_compact_nullable_string(body, 0)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, at)
    count, at = read_compact_count(body, at + 6, _COMPACT_TOPIC_BYTES_MIN, PRODUCE_ELEMENTS_MAX)
    topics = []
    elements = count
    for _ in range(count):
        name, topic_id = "", NO_TOPIC_ID
        if version >= FIRST_WITH_IDS:
            topic_id, at = read_uuid(body, at)
        else:
            name, at = read_compact_string(body, at)
        partitions, at = _decode_flexible_partitions(body, at)
        elements += len(partitions)
        check_elements(elements, PRODUCE_ELEMENTS_MAX)
        topics.append(ProduceTopic(name, topic_id, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), skip_tags(body, at)


def _decode_flexible_partitions(body: memoryview, at: int) -> tuple[list[ProducePartition], int]:
    count, at = read_compact_count(body, at, _COMPACT_PARTITION_BYTES_MIN, PRODUCE_ELEMENTS_MAX)
    partitions = []
    for _ in range(count):
        (index,) = INT32.unpack_from(body, at)
        size, at = read_uvarint(body, at + 4)
        records = None
        if size:
            end = at + size - 1
            if end > len(body):
                raise MalformedError(f"{size - 1} bytes of records announced, {len(body) - at} left")
            records = body[at:end]
            at = end
        at = at + 1 if body[at] == 0 else skip_tags(body, at)
        partitions.append(ProducePartition(index, records))
    return partitions, skip_tags(body, at)


def _decode_plain(body: memoryview) -> tuple[ProduceRequest, int]:
    transactional_id, at = read_nullable_string(body, 0)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, at)
    count, at = read_count(body, at + 6, _TOPIC_BYTES_MIN, PRODUCE_ELEMENTS_MAX)
    topics = []
    elements = count
    for _ in range(count):
        name, at = read_string(body, at)
        partitions, at = _decode_plain_partitions(body, at)
        elements += len(partitions)
        check_elements(elements, PRODUCE_ELEMENTS_MAX)
        topics.append(ProduceTopic(name, NO_TOPIC_ID, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), at


def _decode_plain_partitions(body: memoryview, at: int) -> tuple[list[ProducePartition], int]:
    count, at = read_count(body, at, _PARTITION_BYTES_MIN, PRODUCE_ELEMENTS_MAX)
    partitions = []
    for _ in range(count):
        index, length = _INDEX_AND_LENGTH.unpack_from(body, at)
        at += 8
        records = None
        if length >= 0:
            end = at + length
            if end > len(body):
                raise MalformedError(f"{length} bytes of records announced, {len(body) - at} left")
            records = body[at:end]
            at = end
        elif length != -1:
            raise MalformedError(f"records of length {length}")
        partitions.append(ProducePartition(index, records))
    return partitions, at


# index, error code, base offset, append time, log start; then no record errors and no message
_PLACE = Struct(">ihqqq")
_FLEXIBLE_PLACE = Struct(">ihqqqBBB")


def _encode_flexible(version: int, topics: list[TopicProduced], throttle_ms: int) -> bytes:
    parts = [compact_count(len(topics))]
    leaders: list[CurrentLeader] = []
    for name, topic_id, partitions in topics:
        parts.append(topic_id.bytes if version >= FIRST_WITH_IDS else compact_string(name))
        parts.append(compact_count(len(partitions)))
        for produced in partitions:
            index, code, base_offset, append_time, log_start, message, leader, _ = produced
            if message is None and leader is None:
                parts.append(_FLEXIBLE_PLACE.pack(index, code, base_offset, append_time, log_start, 1, 0, 0))
            else:
                parts.append(_flexible_partition(version, produced))
                if leader is not None and version >= _FIRST_WITH_LEADERS:
                    leaders.append(leader)
        parts.append(NO_TAGS)
    parts.append(INT32.pack(throttle_ms))
    parts.append(endpoint_tags(leaders))
    return b"".join(parts)


def _flexible_partition(version: int, produced: PartitionProduced) -> bytes:
    place = _PLACE.pack(*produced[:5])
    leader = produced.current_leader
    tags = NO_TAGS if leader is None or version < _FIRST_WITH_LEADERS else b"\x01" + leader_tag(0, leader)
    message = compact_nullable_string(produced.error_message)
    end = message + NO_TAGS
    record_errors = b"".join([INT32.pack(number) + end for number in produced.bad_records])
    return place + compact_count(len(produced.bad_records)) + record_errors + message + tags


def _encode_plain(version: int, topics: list[TopicProduced], throttle_ms: int) -> bytes:
    parts = [INT32.pack(len(topics))]
    for name, _, partitions in topics:
        parts.append(string(name))
        parts.append(INT32.pack(len(partitions)))
        parts.extend([_plain_partition(version, produced) for produced in partitions])
    parts.append(INT32.pack(throttle_ms))
    return b"".join(parts)


_LOG_START_BYTES: Final = 8


def _plain_partition(version: int, produced: PartitionProduced) -> bytes:
    place = _PLACE.pack(*produced[:5])
    if version >= 8:
        message = nullable_string(produced.error_message)
        record_errors = b"".join([INT32.pack(number) + message for number in produced.bad_records])
        return place + INT32.pack(len(produced.bad_records)) + record_errors + message
    return place if version >= 5 else place[:-_LOG_START_BYTES]
