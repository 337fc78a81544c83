"""Fetch's requests v4-18 by hand; its replies are in `fetch_response`.

v5 log start offset · v7 fetch sessions · v9 current leader epoch · v11 rack · v12 flexible, last fetched epoch · v13
topic ids instead of names · v15 the replica's id in a tagged field · v17 directory ids · v18 the follower's high
watermark. v6, v8, v10, v14 and v16 changed meaning, not form.

Left out: a follower's directory id and high watermark. Clarion's followers add two tagged fields of their own
(`replica_fetch`).
"""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.fields import (
    INT32,
    UNREADABLE,
    Body,
    check_count,
    check_elements,
    known_uuid,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    read_uuid,
    read_uvarint,
    skip_tags,
    uvarint,
)
from clarion.wire.limits import FETCH_ELEMENTS_MAX, TAGGED_FIELDS_MAX

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_IDS: Final = 13
FIRST_WITH_REPLICA_STATE: Final = 15


class FetchPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    flushed_offset: int = -1
    """What a follower has on its disk; -1 if it does not say."""


class FetchTopic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: list[int]


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str
    broker_epoch: int = -1
    secret: bytes = b""
    """Of the session of the broker that fetches as a replica."""


def decode_request(body: Body, version: int) -> FetchRequest:
    if version >= FIRST_WITH_REPLICA_STATE and len(body) == _SINGLE.size:
        single = _decode_single(body)
        if single is not None:
            return single
    elif version >= FIRST_WITH_REPLICA_STATE and 0 <= len(body) - _FOLLOWER.size <= _SECRET_BYTES_MAX:
        single = _decode_follower(body)
        if single is not None:
            return single
    try:
        request, end = _decode_flexible(body, version) if version >= FIRST_FLEXIBLE else _decode_plain(body, version)
    except UNREADABLE as unreadable:
        raise MalformedError(f"Fetch v{version} cannot be read: {unreadable}") from unreadable
    if end != len(body):
        raise MalformedError(f"{len(body) - end} bytes follow Fetch v{version}")
    return request


_HEAD_V4 = Struct(">iiiib")  # replica, max wait, min bytes, max bytes, isolation level
_HEAD_V7 = Struct(">iiiibii")  # … session id and epoch
_HEAD_V15 = Struct(">iiibii")  # the same without the replica
_FLEXIBLE_PARTITION = Struct(">iiqiqiB")  # the last byte is the number of tagged fields
_REPLICA_STATE_TAG: Final = 1
SECRET_TAG: Final = 10_001  # of a request; Clarion's own
FLUSHED_TAG: Final = 10_002  # of a partition of it
_SECRET_BYTES_MAX: Final = 64
_INT64 = Struct(">q")
_NO_REPLICA: Final = -1
_NO_SESSION: Final = (0, -1)


# What a consumer of one partition sends all day (v15+): every field has its place, so one look reads them all. The
# counts of arrays and tagged fields in between must be those of that shape, or the general road is taken.
_SINGLE = Struct(">iiibii B16sB iiqiqi BBBBB")
_SINGLE_COUNTS: Final = (2, 2, 0, 0, 1, 1, 0)  # topics, partitions, two tags, forgotten, rack, tags
_make = tuple.__new__


def _decode_single(body: Body) -> FetchRequest | None:
    values = _SINGLE.unpack_from(body)
    if (values[6], values[8], *values[15:]) != _SINGLE_COUNTS:
        return None
    topic = _make(FetchTopic, ("", known_uuid(values[7]), [_make(FetchPartition, (*values[9:15], -1))]))
    return _make(FetchRequest, (_NO_REPLICA, *values[:6], [topic], [], "", -1, b""))


# And what a follower sends for every message, when one partition is written to: `replica_fetch` with all of its tagged
# fields, in their order; at the end the length of the secret, which follows.
_FOLLOWER = Struct(">iiibii B16sB iiqiqi 4sqB BBB BBiqB 2sB")
_FLUSHED_HEAD: Final = b"\x01" + uvarint(FLUSHED_TAG) + b"\x08"
_FOLLOWER_COUNTS: Final = (2, 2, _FLUSHED_HEAD, 0, 1, 1, 2, _REPLICA_STATE_TAG, 13, 0, uvarint(SECRET_TAG))


def _decode_follower(body: Body) -> FetchRequest | None:
    values = _FOLLOWER.unpack_from(body)
    counts = (values[6], values[8], values[15], *values[17:23], values[25], values[26])
    if counts != _FOLLOWER_COUNTS or values[27] != len(body) - _FOLLOWER.size:
        return None
    topic = _make(FetchTopic, ("", known_uuid(values[7]), [_make(FetchPartition, (*values[9:15], values[16]))]))
    head = (values[23], *values[:6])
    return _make(FetchRequest, (*head, [topic], [], "", values[24], bytes(body[_FOLLOWER.size :])))


def _decode_flexible(body: Body, version: int) -> tuple[FetchRequest, int]:
    if version >= FIRST_WITH_REPLICA_STATE:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_V15.unpack_from(body)
        replica_id, at = _NO_REPLICA, _HEAD_V15.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_V7.unpack_from(body)
        at = _HEAD_V7.size
    topics, at = _decode_flexible_topics(body, at, version)
    forgotten, at = _decode_flexible_forgotten(body, at, version)
    rack_id, at = read_compact_string(body, at)
    broker_epoch, secret = -1, b""
    if body[at] == 0:
        at += 1
    elif version >= FIRST_WITH_REPLICA_STATE:
        replica_id, broker_epoch, secret, at = _read_replica_state(body, at)
    else:
        at = skip_tags(body, at)
    head = (replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch)
    return FetchRequest(*head, topics, forgotten, rack_id, broker_epoch, secret), at


def _decode_flexible_topics(body: Body, at: int, version: int) -> tuple[list[FetchTopic], int]:
    count, at = read_compact_count(body, at, 3, FETCH_ELEMENTS_MAX)
    topics = []
    elements = count
    for _ in range(count):
        name, topic_id, at = _read_flexible_topic(body, at, version)
        partitions, at = _decode_flexible_partitions(body, at)
        elements += len(partitions)
        check_elements(elements, FETCH_ELEMENTS_MAX)
        topics.append(FetchTopic(name, topic_id, partitions))
        at = at + 1 if body[at] == 0 else skip_tags(body, at)
    return topics, at


def _read_flexible_topic(body: Body, at: int, version: int) -> tuple[str, UUID, int]:
    if version >= FIRST_WITH_IDS:
        topic_id, at = read_uuid(body, at)
        return "", topic_id, at
    name, at = read_compact_string(body, at)
    return name, NO_TOPIC_ID, at


def _decode_flexible_partitions(body: Body, at: int) -> tuple[list[FetchPartition], int]:
    size = _FLEXIBLE_PARTITION.size
    count, at = read_compact_count(body, at, size, FETCH_ELEMENTS_MAX)
    partitions = []
    for _ in range(count):
        *partition, tags = _FLEXIBLE_PARTITION.unpack_from(body, at)
        flushed_offset, at = (-1, at + size) if tags == 0 else _read_flushed(body, at + size - 1)
        partitions.append(FetchPartition._make((*partition, flushed_offset)))
    return partitions, at


def _read_flushed(body: Body, at: int) -> tuple[int, int]:
    """What a follower has flushed, among the tagged fields of a partition."""
    flushed_offset, end = -1, skip_tags(body, at)
    count, at = read_uvarint(body, at)
    for _ in range(count):
        tag, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        if tag == FLUSHED_TAG and size == _INT64.size:
            (flushed_offset,) = _INT64.unpack_from(body, at)
        at += size
    return flushed_offset, end


def _decode_flexible_forgotten(body: Body, at: int, version: int) -> tuple[list[ForgottenTopic], int]:
    count, at = read_compact_count(body, at, 3, FETCH_ELEMENTS_MAX)
    forgotten = []
    elements = count
    for _ in range(count):
        name, topic_id, at = _read_flexible_topic(body, at, version)
        length, at = read_compact_count(body, at, 4, FETCH_ELEMENTS_MAX)
        elements += length
        check_elements(elements, FETCH_ELEMENTS_MAX)
        partitions = list(unpack_from(f">{length}i", body, at))
        forgotten.append(ForgottenTopic(name, topic_id, partitions))
        at = skip_tags(body, at + 4 * length)
    return forgotten, at


def _read_replica_state(body: Body, at: int) -> tuple[int, int, bytes, int]:
    """The replica's id, its broker epoch and its secret among the tagged fields of the request."""
    count, at = read_uvarint(body, at)
    check_count(count, len(body) - at, 2, TAGGED_FIELDS_MAX)
    replica_id, broker_epoch, secret = _NO_REPLICA, -1, b""
    for _ in range(count):
        tag, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        end = at + size
        if end > len(body):
            raise MalformedError("a tagged field is cut off")
        if tag == _REPLICA_STATE_TAG:
            (replica_id,) = INT32.unpack_from(body, at)
            (broker_epoch,) = _INT64.unpack_from(body, at + INT32.size)
            if skip_tags(body, at + 12) != end:
                raise MalformedError("a replica state does not end where it says")
        elif tag == SECRET_TAG and size <= _SECRET_BYTES_MAX:
            secret = bytes(body[at:end])
        at = end
    return replica_id, broker_epoch, secret, at


def _decode_plain(body: Body, version: int) -> tuple[FetchRequest, int]:
    if version >= 7:
        head, at = _HEAD_V7.unpack_from(body), _HEAD_V7.size
    else:
        head, at = _HEAD_V4.unpack_from(body) + _NO_SESSION, _HEAD_V4.size
    topics, at = _decode_plain_topics(body, at, version)
    forgotten: list[ForgottenTopic] = []
    rack_id = ""
    if version >= 7:
        forgotten, at = _decode_plain_forgotten(body, at)
    if version >= 11:
        rack_id, at = read_string(body, at)
    return FetchRequest._make((*head, topics, forgotten, rack_id, -1, b"")), at


def _decode_plain_topics(body: Body, at: int, version: int) -> tuple[list[FetchTopic], int]:
    count, at = read_count(body, at, 6, FETCH_ELEMENTS_MAX)
    topics = []
    elements = count
    for _ in range(count):
        name, at = read_string(body, at)
        partitions, at = _decode_plain_partitions(body, at, version)
        elements += len(partitions)
        check_elements(elements, FETCH_ELEMENTS_MAX)
        topics.append(FetchTopic(name, NO_TOPIC_ID, partitions))
    return topics, at


_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")


def _decode_plain_partitions(body: Body, at: int, version: int) -> tuple[list[FetchPartition], int]:
    """Partitions of one size each, so all of a topic are read in one sweep."""
    form = _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
    count, at = read_count(body, at, form.size, FETCH_ELEMENTS_MAX)
    end = at + count * form.size
    rows = form.iter_unpack(body[at:end])
    if version >= 9:
        return [FetchPartition(i, epoch, offset, -1, start, size) for i, epoch, offset, start, size in rows], end
    if version >= 5:
        return [FetchPartition(i, -1, offset, -1, start, size) for i, offset, start, size in rows], end
    return [FetchPartition(i, -1, offset, -1, -1, size) for i, offset, size in rows], end


def _decode_plain_forgotten(body: Body, at: int) -> tuple[list[ForgottenTopic], int]:
    count, at = read_count(body, at, 6, FETCH_ELEMENTS_MAX)
    forgotten = []
    elements = count
    for _ in range(count):
        name, at = read_string(body, at)
        length, at = read_count(body, at, 4, FETCH_ELEMENTS_MAX)
        elements += length
        check_elements(elements, FETCH_ELEMENTS_MAX)
        forgotten.append(ForgottenTopic(name, NO_TOPIC_ID, list(unpack_from(f">{length}i", body, at))))
        at += 4 * length
    return forgotten, at
