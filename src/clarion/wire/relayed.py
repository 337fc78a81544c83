"""Produce and Fetch as a broker says them to another one, for a client that came to the wrong one over HTTP.

Produce v13 and Fetch v15-18, both with topic ids: one partition at a time, with nobody's session. A reply to Fetch is
read by `replica_fetch.decode_reply`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.wire.fields import (
    INT32,
    NO_TAGS,
    UNREADABLE,
    Body,
    compact_count,
    read_compact_count,
    read_compact_nullable_string,
    read_uuid,
    skip_tags,
    uvarint,
)
from clarion.wire.limits import PRODUCE_ELEMENTS_MAX

PRODUCE_VERSION: Final = 13
FETCH_VERSION: Final = 18

_NO_TRANSACTION: Final = b"\0"
_ACKS_ALL: Final = -1
_ACKS_AND_TIMEOUT = Struct(">hi")
_FETCH_HEAD = Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
_FETCH_PARTITION = Struct(">iiqiqi")  # index, leader's epoch, offset, last epoch, log start, max bytes
_NO_SESSION: Final = (0, -1)
_NO_RACK: Final = b"\x01"
_NOTHING_FORGOTTEN: Final = b"\x01"
_PRODUCED = Struct(">ihqqq")  # index, error code, base offset, append time, log start
_RECORD_ERROR_BYTES_MIN: Final = 6


class RelayedProduce(NamedTuple):
    error_code: int
    base_offset: int
    error_message: str | None


def produce_request(topic_id: UUID, index: int, batch: Body, timeout_ms: int) -> bytes:
    return b"".join(
        (
            _NO_TRANSACTION,
            _ACKS_AND_TIMEOUT.pack(_ACKS_ALL, timeout_ms),
            compact_count(1),
            topic_id.bytes,
            compact_count(1),
            INT32.pack(index),
            uvarint(len(batch) + 1),
            batch,
            NO_TAGS * 3,
        )
    )


def read_produced(body: Body) -> RelayedProduce:
    """Of the one partition that was asked for."""
    try:
        _, at = read_compact_count(body, 0, 1, PRODUCE_ELEMENTS_MAX)
        _, at = read_uuid(body, at)
        _, at = read_compact_count(body, at, _PRODUCED.size, PRODUCE_ELEMENTS_MAX)
        _, code, base_offset, _, _ = _PRODUCED.unpack_from(body, at)
        count, at = read_compact_count(body, at + _PRODUCED.size, _RECORD_ERROR_BYTES_MIN, PRODUCE_ELEMENTS_MAX)
        for _ in range(count):
            _, at = read_compact_nullable_string(body, at + INT32.size)
            at = skip_tags(body, at)
        message, at = read_compact_nullable_string(body, at)
    except UNREADABLE as unreadable:
        raise MalformedError(f"a reply to Produce cannot be read: {unreadable}") from unreadable
    return RelayedProduce(code, base_offset, message)


def fetch_request(topic_id: UUID, index: int, offset: int, max_bytes: int, max_wait_ms: int) -> bytes:
    return b"".join(
        (
            _FETCH_HEAD.pack(max_wait_ms, 1, max_bytes, 0, *_NO_SESSION),
            compact_count(1),
            topic_id.bytes,
            compact_count(1),
            _FETCH_PARTITION.pack(index, -1, offset, -1, -1, max_bytes),
            NO_TAGS * 2,
            _NOTHING_FORGOTTEN,
            _NO_RACK,
            NO_TAGS,
        )
    )
