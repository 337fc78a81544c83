"""Fetch's replies v4-18 by hand: the pieces around the records, which go from the disk to the socket.

v5 log start offset · v7 error and session · v11 preferred replica · v12 flexible, diverging epoch and current leader ·
v13 topic ids instead of names · v16 endpoints of other nodes.

Left out: snapshots. The current leader is told from v16 on, as in Kafka: before there is no room for where it listens.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from clarion.wire.current_leader import CurrentLeader, endpoint_tags, leader_tag
from clarion.wire.fetch import FIRST_FLEXIBLE, FIRST_WITH_IDS
from clarion.wire.fields import (
    INT32,
    NO_TAGS,
    compact_count,
    compact_string,
    string,
    uvarint,
)

_FIRST_WITH_ENDPOINTS: Final = 16


class PartitionFetched(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records_length: int
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, end offset), from v12 on."""
    current_leader: CurrentLeader | None = None
    """From v16 on."""
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of each aborted transaction."""
    preferred_replica: int = -1
    """The broker from which to read instead, from v11 on."""


TopicFetched = tuple[str, UUID, Sequence[PartitionFetched]]


def encode_response(
    version: int,
    *,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[TopicFetched],
) -> list[bytes]:
    """Piece 0, then come the records of the first partition that has some, piece 1, …; the last piece ends the body."""
    if version >= FIRST_FLEXIBLE:
        return _encode_flexible(version, throttle_ms, error_code, session_id, topics)
    return _encode_plain(version, throttle_ms, error_code, session_id, topics)


_TOP = Struct(">ihi")  # throttle time, error code, session id
_STATE = Struct(">ihqqq")  # index, error code, high watermark, last stable offset, log start offset
_FLEXIBLE_STATE = Struct(">ihqqqBi")  # … no aborted transactions, the preferred replica
_STATE_V4 = Struct(">ihqq")
_ABORTED = Struct(">qq")
_NULL_ARRAY: Final = b"\xff\xff\xff\xff"
_DIVERGING_TAG = Struct(">BBiqB")  # number 0, thirteen bytes: epoch, end offset, no tags
_LEADER_TAG_NUMBER: Final = 1


def _encode_flexible(
    version: int, throttle_ms: int, error_code: int, session_id: int, topics: Sequence[TopicFetched]
) -> list[bytes]:
    pieces = []
    leaders: list[CurrentLeader] = []
    parts = [_TOP.pack(throttle_ms, error_code, session_id), compact_count(len(topics))]
    for name, topic_id, partitions in topics:
        parts.append(topic_id.bytes if version >= FIRST_WITH_IDS else compact_string(name))
        parts.append(compact_count(len(partitions)))
        for fetched in partitions:
            parts.append(_flexible_state(fetched))
            length = fetched[5]
            parts.append(uvarint(length + 1))
            if length > 0:
                pieces.append(b"".join(parts))
                parts = []
            leader = fetched[7] if version >= _FIRST_WITH_ENDPOINTS else None
            if leader is not None:
                leaders.append(leader)
            parts.append(NO_TAGS if fetched[6] is None and leader is None else _partition_tags(fetched[6], leader))
        parts.append(NO_TAGS)
    parts.append(endpoint_tags(leaders))
    pieces.append(b"".join(parts))
    return pieces


def _flexible_state(fetched: PartitionFetched) -> bytes:
    if fetched[8] is None:
        return _FLEXIBLE_STATE.pack(*fetched[:5], 0, fetched[9])
    aborted = b"".join([_ABORTED.pack(*transaction) + NO_TAGS for transaction in fetched[8]])
    return _STATE.pack(*fetched[:5]) + compact_count(len(fetched[8])) + aborted + INT32.pack(fetched[9])


def _partition_tags(diverging: tuple[int, int] | None, leader: CurrentLeader | None) -> bytes:
    tags = []
    if diverging is not None:
        tags.append(_DIVERGING_TAG.pack(0, 13, *diverging, 0))
    if leader is not None:
        tags.append(leader_tag(_LEADER_TAG_NUMBER, leader))
    return uvarint(len(tags)) + b"".join(tags)


def _encode_plain(
    version: int, throttle_ms: int, error_code: int, session_id: int, topics: Sequence[TopicFetched]
) -> list[bytes]:
    pieces = []
    top = _TOP.pack(throttle_ms, error_code, session_id) if version >= 7 else INT32.pack(throttle_ms)
    parts = [top, INT32.pack(len(topics))]
    for name, _, partitions in topics:
        parts.append(string(name))
        parts.append(INT32.pack(len(partitions)))
        for fetched in partitions:
            parts.append(_plain_state(version, fetched))
            parts.append(INT32.pack(fetched[5]))
            if fetched[5] > 0:
                pieces.append(b"".join(parts))
                parts = []
    pieces.append(b"".join(parts))
    return pieces


def _plain_state(version: int, fetched: PartitionFetched) -> bytes:
    state = _STATE.pack(*fetched[:5]) if version >= 5 else _STATE_V4.pack(*fetched[:4])
    aborted = _NULL_ARRAY
    if fetched[8] is not None:
        rows = [_ABORTED.pack(*transaction) for transaction in fetched[8]]
        aborted = INT32.pack(len(rows)) + b"".join(rows)
    return state + aborted + INT32.pack(fetched[9]) if version >= 11 else state + aborted
