"""The records of `__share_group_state`, byte for byte as Kafka writes them.

A key starts with its type: 0 is a snapshot of a share-partition, 1 an update to the one before it. A null value under
a snapshot's key is the end of both. Values are of version 0, which is flexible; the number of offsets that are done
(KIP-1226) is a tagged field.
"""

from __future__ import annotations

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

_BATCH = Struct(">qqbhx")  # the last byte: no tagged fields
_COUNT = Struct(">i")


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
    return _end(writer, one.batches, one.done_count)


def decode_snapshot(data: bytes) -> ShareSnapshot:
    reader = _open(data)
    snapshot_epoch, state_epoch, leader_epoch = reader.int32(), reader.int32(), reader.int32()
    start_offset, created_ms, written_ms = reader.int64(), reader.int64(), reader.int64()
    batches, done_count = _read_end(reader)
    return ShareSnapshot(
        snapshot_epoch, state_epoch, leader_epoch, start_offset, done_count, created_ms, written_ms, batches
    )


def encode_update(one: ShareUpdate) -> bytes:
    writer = FieldWriter(flexible=True).int16(0).int32(one.snapshot_epoch).int32(one.leader_epoch)
    return _end(writer.int64(one.start_offset), one.batches, one.done_count)


def decode_update(data: bytes) -> ShareUpdate:
    reader = _open(data)
    snapshot_epoch, leader_epoch, start_offset = reader.int32(), reader.int32(), reader.int64()
    batches, done_count = _read_end(reader)
    return ShareUpdate(snapshot_epoch, leader_epoch, start_offset, done_count, batches)


def _end(writer: FieldWriter, batches: tuple[StateBatch, ...], done_count: int) -> bytes:
    writer.count(len(batches))
    for batch in batches:
        writer.out += _BATCH.pack(*batch)
    return writer.tags({} if done_count == UNINITIALIZED else {0: _COUNT.pack(done_count)}).done()


def _open(data: bytes) -> FieldReader:
    reader = FieldReader(data, flexible=True, what="a record of share state").with_version()
    if reader.version != 0:
        raise MalformedError(f"a record of share state of version {reader.version}, newest known is 0")
    return reader


def _read_end(reader: FieldReader) -> tuple[tuple[StateBatch, ...], int]:
    batches = tuple(_read_batch(reader) for _ in range(reader.count()))
    content = reader.tags().get(0, b"")
    done_count: int = _COUNT.unpack(content)[0] if len(content) == _COUNT.size else UNINITIALIZED
    return batches, done_count


def _read_batch(reader: FieldReader) -> StateBatch:
    first, last, state, deliveries = reader.int64(), reader.int64(), reader.int8(), reader.int16()
    reader.tags()
    return StateBatch(first, last, known_state(state), deliveries)


def known_state(state: int) -> int:
    """A later Kafka knows more states between acquired and archived: all of them are on their way out."""
    return state if state in (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED) else RecordState.ARCHIVED
