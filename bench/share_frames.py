"""The frames of a share consumer (KIP-932): it joins, fetches, and acknowledges every record by itself.

As in `frames`, written from the protocol's definition: nothing of the broker is used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bench.frames import compact_string, read_uvarint, request, uvarint

SHARE_GROUP_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 78, 79
RECORD_LIMIT = 1  # of the acquire modes: never more records than asked for
_ONE = struct.Struct(">qqBbB")  # first and last offset, an array of one type, accept, no tagged fields
_ACQUIRED = struct.Struct(">qqhB")


class Member(NamedTuple):
    group: str
    id: str
    topic_id: bytes


class ShareFetched(NamedTuple):
    """What a ShareFetch response says of its one partition: the offsets that are ours now."""

    error: int
    acknowledge_error: int
    acquired: list[tuple[int, int]]


def heartbeat(group: str, member: str, epoch: int, topic: str) -> bytes:
    """ShareGroupHeartbeat v1."""
    body = b"".join((
        compact_string(group), compact_string(member), struct.pack(">i", epoch), b"\x00",
        b"\x02" + compact_string(topic) if epoch == 0 else b"\x00", b"\x00",
    ))  # fmt: skip
    return request(SHARE_GROUP_HEARTBEAT, 1, body, flexible=True)


def read_heartbeat(response: bytes) -> tuple[int, int, bytes | None]:
    """Error, epoch, and the id of the topic that the member is given a partition of; None while it is given none."""
    data = memoryview(response)
    (error,) = struct.unpack_from(">h", data, 9)
    at = _after_text(data, _after_text(data, 11))
    (epoch,) = struct.unpack_from(">i", data, at)
    at += 8
    if data[at] != 1 or data[at + 1] < 2:  # no assignment, or an empty one
        return error, epoch, None
    return error, epoch, bytes(data[at + 2 : at + 18])


def fetch(member: Member, epoch: int, acknowledged: Sequence[int], *, records_max: int, wait_ms: int = 500) -> bytes:
    """ShareFetch v2 of one partition, with an acknowledgement of its own for each of these offsets."""
    body = b"".join((
        compact_string(member.group), compact_string(member.id),
        struct.pack(">iiiiiibb", epoch, wait_ms, 1, 1 << 20, records_max, records_max, RECORD_LIMIT, 0),
        _partition(member, acknowledged), b"\x01\x00",
    ))  # fmt: skip
    return request(SHARE_FETCH, 2, body, flexible=True)


def acknowledge(member: Member, epoch: int, acknowledged: Sequence[int]) -> bytes:
    """ShareAcknowledge v2, likewise."""
    body = b"".join((
        compact_string(member.group), compact_string(member.id), struct.pack(">ib", epoch, 0),
        _partition(member, acknowledged), b"\x00",
    ))  # fmt: skip
    return request(SHARE_ACKNOWLEDGE, 2, body, flexible=True)


def _partition(member: Member, acknowledged: Sequence[int]) -> bytes:
    each = b"".join([_ONE.pack(offset, offset, 2, 1, 0) for offset in acknowledged])
    return b"\x02" + member.topic_id + b"\x02\x00\x00\x00\x00" + uvarint(len(acknowledged) + 1) + each + b"\x00\x00"


def read_fetched(response: bytes) -> ShareFetched:
    """From a ShareFetch v2 response (without its length prefix) about at most one partition."""
    data = memoryview(response)
    (error,) = struct.unpack_from(">h", data, 9)
    at = _after_text(data, 11) + 4  # for how long records are ours
    if error or data[at] < 2:
        return ShareFetched(error, 0, [])
    at += 1 + 16 + 1 + 4  # topics, the first one's id, partitions, the first one's number
    (error,) = struct.unpack_from(">h", data, at)
    at = _after_text(data, at + 2)
    (acknowledge_error,) = struct.unpack_from(">h", data, at)
    at = _after_text(data, at + 2) + 4 + 4 + 1  # the leader and its epoch
    size, at = read_uvarint(data, at)
    at += max(size - 1, 0)
    count, at = read_uvarint(data, at)
    runs = _ACQUIRED.iter_unpack(data[at : at + _ACQUIRED.size * (count - 1)])
    return ShareFetched(error, acknowledge_error, [(first, last) for first, last, _, _ in runs])


def read_acknowledged(response: bytes) -> int:
    """The first error code of a ShareAcknowledge v2 response about one partition."""
    data = memoryview(response)
    (error,) = struct.unpack_from(">h", data, 9)
    at = _after_text(data, 11) + 4
    if error or data[at] < 2:
        return int(error)
    return int(struct.unpack_from(">h", data, at + 1 + 16 + 1 + 4)[0])


def _after_text(data: memoryview, at: int) -> int:
    size, at = read_uvarint(data, at)
    return at + max(size - 1, 0)
