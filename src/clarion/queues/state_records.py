"""The records of `__share_group_state`, byte for byte as Kafka writes them.

A key starts with its type: 0 is a snapshot of a share-partition, 1 an update to the one before it. A null value under
a snapshot's key is the end of both. Values are of version 0, which is flexible; the number of offsets that are done
(KIP-1226) is a tagged field. Others are Clarion's own (numbers from 10000), which Kafka passes over: the version of a
snapshot, and which subscription it is of; and of a batch, when its records come again, and why they were given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from clarion.model.errors import MalformedError
from clarion.queues.runs import RecordState
from clarion.queues.state_batches import StateBatch
from clarion.wire.cursor import FieldReader, FieldWriter

SNAPSHOT_TYPE = 0
UPDATE_TYPE = 1
NOT_UPDATED = -1  # of an update's start offset
UNINITIALIZED = -1  # a start offset that nobody has chosen yet; and a count of what is done that nobody knows

_PLAIN_BATCH = Struct(">qqbhB")  # the last byte: how many tagged fields follow
_BATCH = Struct(">qqbhx")  # the last byte: no tagged fields
_AVAILABLE_AT = 10_000
_REASON = 10_001
_TIME = Struct(">q")
_COUNT = Struct(">i")
_VERSION = Struct(">q")
_VERSION_TAG = 10_000
_SUBSCRIPTION_TAG = 10_001


class ShareKey(NamedTuple):
    group_id: str
    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        """What is hashed to find the coordinator; Kafka's form, with its own writing of topic ids."""
        return f"{self.group_id}:{kafka_uuid(self.topic_id)}:{self.partition}"


class ShareSnapshot(NamedTuple):
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    done_count: int
    created_ms: int
    written_ms: int
    batches: tuple[StateBatch, ...]
    version: int = -1  # older ones say nothing of it
    subscription_ms: int = 0  # when it was made; 0: none, or an older snapshot


class ShareUpdate(NamedTuple):
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    done_count: int
    batches: tuple[StateBatch, ...]


def kafka_uuid(topic_id: UUID) -> str:
    """Base64 for URLs without padding: how Kafka writes a topic id."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def encode_key(kind: int, key: ShareKey) -> bytes:
    return FieldWriter().int16(kind).string(key.group_id).uuid(key.topic_id).int32(key.partition).done()


def decode_key(data: bytes) -> tuple[int, ShareKey] | None:
    """None for a type that is not ours to read."""
    reader = FieldReader(data, what="a key of share state").with_version()
    if reader.version not in (SNAPSHOT_TYPE, UPDATE_TYPE):
        return None
    return reader.version, ShareKey(reader.string(), reader.uuid(), reader.int32())


def encode_snapshot(one: ShareSnapshot) -> bytes:
    writer = FieldWriter(flexible=True).int16(0).int32(one.snapshot_epoch).int32(one.state_epoch)
    writer.int32(one.leader_epoch).int64(one.start_offset).int64(one.created_ms).int64(one.written_ms)
    own = {} if one.version < 0 else {_VERSION_TAG: _VERSION.pack(one.version)}
    if one.subscription_ms:
        own[_SUBSCRIPTION_TAG] = _TIME.pack(one.subscription_ms)
    return _end(writer, one.batches, one.done_count, own)


def decode_snapshot(data: bytes) -> ShareSnapshot:
    reader = _open(data)
    snapshot_epoch, state_epoch, leader_epoch = reader.int32(), reader.int32(), reader.int32()
    start_offset, created_ms, written_ms = reader.int64(), reader.int64(), reader.int64()
    batches, done_count, tags = _read_end(reader)
    content = tags.get(_VERSION_TAG, b"")
    version: int = _VERSION.unpack(content)[0] if len(content) == _VERSION.size else -1
    content = tags.get(_SUBSCRIPTION_TAG, b"")
    subscription_ms: int = _TIME.unpack(content)[0] if len(content) == _TIME.size else 0
    return ShareSnapshot(
        snapshot_epoch,
        state_epoch,
        leader_epoch,
        start_offset,
        done_count,
        created_ms,
        written_ms,
        batches,
        version,
        subscription_ms,
    )


def encode_update(one: ShareUpdate) -> bytes:
    writer = FieldWriter(flexible=True).int16(0).int32(one.snapshot_epoch).int32(one.leader_epoch)
    return _end(writer.int64(one.start_offset), one.batches, one.done_count)


def decode_update(data: bytes) -> ShareUpdate:
    reader = _open(data)
    snapshot_epoch, leader_epoch, start_offset = reader.int32(), reader.int32(), reader.int64()
    batches, done_count, _ = _read_end(reader)
    return ShareUpdate(snapshot_epoch, leader_epoch, start_offset, done_count, batches)


def _end(
    writer: FieldWriter, batches: tuple[StateBatch, ...], done_count: int, own: Mapping[int, bytes] | None = None
) -> bytes:
    writer.count(len(batches))
    for batch in batches:
        writer.out += _BATCH.pack(*batch[:4])
        if batch.available_at_ms or batch.reason:
            writer.out.pop()
            writer.tags(_own_tags(batch))
    return writer.tags({**({} if done_count == UNINITIALIZED else {0: _COUNT.pack(done_count)}), **(own or {})}).done()


def _own_tags(batch: StateBatch) -> dict[int, bytes]:
    tags = {_AVAILABLE_AT: _TIME.pack(batch.available_at_ms)} if batch.available_at_ms else {}
    return tags | ({_REASON: batch.reason.encode()} if batch.reason else {})


def _open(data: bytes) -> FieldReader:
    reader = FieldReader(data, flexible=True, what="a record of share state").with_version()
    if reader.version != 0:
        raise MalformedError(f"a record of share state of version {reader.version}, newest known is 0")
    return reader


def _read_end(reader: FieldReader) -> tuple[tuple[StateBatch, ...], int, Mapping[int, bytes]]:
    batches = _read_batches(reader, reader.count())
    tags = reader.tags()
    content = tags.get(0, b"")
    done_count: int = _COUNT.unpack(content)[0] if len(content) == _COUNT.size else UNINITIALIZED
    return batches, done_count, tags


def _read_batches(reader: FieldReader, count: int) -> tuple[StateBatch, ...]:
    """Nearly all have no tagged fields: they are of one length, and read at once."""
    end = reader.at + count * _PLAIN_BATCH.size
    if count and end <= reader.end:
        plain = list(_PLAIN_BATCH.iter_unpack(reader.data[reader.at : end]))
        if not any(tags for *_, tags in plain):
            reader.at = end
            return tuple([StateBatch(first, last, known_state(state), count) for first, last, state, count, _ in plain])
    return tuple([_read_batch(reader) for _ in range(count)])


def _read_batch(reader: FieldReader) -> StateBatch:
    first, last, state, deliveries = reader.int64(), reader.int64(), reader.int8(), reader.int16()
    tags = reader.tags()
    if not tags:
        return StateBatch(first, last, known_state(state), deliveries)
    available_at_ms = _TIME.unpack(tags[_AVAILABLE_AT])[0] if len(tags.get(_AVAILABLE_AT, b"")) == _TIME.size else 0
    reason = tags.get(_REASON, b"").decode(errors="replace")
    return StateBatch(first, last, known_state(state), deliveries, available_at_ms, reason)


def known_state(state: int) -> int:
    """Whatever a later version may know beyond these is on its way out."""
    return state if state in _STATES else RecordState.ARCHIVED


_STATES = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVING)
