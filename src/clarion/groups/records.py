"""The records of `__consumer_offsets`, byte for byte as Kafka writes them, so that its tools can read ours.

A key starts with its type. Types 0 and 1 are committed offsets, 2 is a classic group, 3–8 and 16 are KIP-848 groups
(4, partition metadata, is deprecated and ignored), 10–15 share groups (`share_records`); streams groups are ignored. A
null value is a tombstone. We read versions 0–4 of offsets and classic groups. Classic groups we write in version 3, as
Kafka does; offsets in version 4, since its tagged field says which topic of that name was read: one that is deleted and
made again inherits nothing. Version 4 cannot say when an offset expires: where a client has, version 1 can.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from clarion.groups.partitions import NOTHING, Partitions, collect
from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID, TopicId
from clarion.wire.cursor import FieldReader, FieldWriter

OFFSET_TYPES = (0, 1)
CLASSIC_GROUP_TYPE = 2
CONSUMER_GROUP_TYPE = 3
MEMBER_TYPE = 5
TARGET_EPOCH_TYPE = 6
TARGET_MEMBER_TYPE = 7
CURRENT_TYPE = 8
REGEX_TYPE = 16
_NAMED_TYPES = frozenset([*OFFSET_TYPES, MEMBER_TYPE, TARGET_MEMBER_TYPE, CURRENT_TYPE, REGEX_TYPE, 10, 13, 14])

_INT64 = Struct(">q")


class Key(NamedTuple):
    """`name` is the topic, the member's id or the regular expression, as the type wants."""

    type: int
    group_id: str
    name: str = ""
    partition: int = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1  # only from clients that set a retention time (OffsetCommit up to v4)
    topic_id: TopicId = NO_TOPIC_ID  # unknown in what earlier versions of this broker, and Kafka, have written


class ClassicMemberSnapshot(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class ClassicSnapshot(NamedTuple):
    """A classic group as it was when its leader's assignment was stored, or when it became empty."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[ClassicMemberSnapshot, ...]


class GroupEpoch(NamedTuple):
    epoch: int
    metadata_hash: int  # over the subscribed topics and their partition counts


class ClassicTerms(NamedTuple):
    """How a classic member takes part in a KIP-848 group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # (name, subscription), its favourite first


class MemberMetadata(NamedTuple):
    """What a member of a KIP-848 group has told about itself."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicTerms | None = None  # None: it speaks KIP-848 itself


class TargetEpoch(NamedTuple):
    epoch: int
    timestamp_ms: int


class CurrentAssignment(NamedTuple):
    """Where a KIP-848 member is on its way to its target; see `reconciliation`."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned: Partitions
    pending_revocation: Partitions


class ResolvedRegex(NamedTuple):
    topics: tuple[str, ...]
    version: int  # of the topics it was resolved against; for Kafka's eyes only
    timestamp_ms: int


def encode_key(key: Key) -> bytes:
    writer = FieldWriter().int16(key.type).string(key.group_id)
    if key.type in _NAMED_TYPES:
        writer.string(key.name)
    if key.type in OFFSET_TYPES:
        writer.int32(key.partition)
    return writer.done()


def decode_key(data: bytes) -> Key | None:
    """None for a type that is not ours to read."""
    reader = FieldReader(data).with_version()
    match reader.version:
        case 0 | 1:
            return Key(1, reader.string(), reader.string(), reader.int32())
        case 2 | 3 | 6 | 11 | 12 | 15:
            return Key(reader.version, reader.string())
        case 5 | 7 | 8 | 10 | 13 | 14 | 16:
            return Key(reader.version, reader.string(), reader.string())
        case _:
            return None


def encode_offset(offset: CommittedOffset) -> bytes:
    if offset.expire_timestamp_ms != -1:
        writer = FieldWriter().int16(1).int64(offset.offset).string(offset.metadata)
        return writer.int64(offset.commit_timestamp_ms).int64(offset.expire_timestamp_ms).done()
    writer = FieldWriter(flexible=True).int16(4).int64(offset.offset).int32(offset.leader_epoch)
    writer.string(offset.metadata).int64(offset.commit_timestamp_ms)
    return writer.tags({} if offset.topic_id == NO_TOPIC_ID else {0: offset.topic_id.bytes}).done()


def decode_offset(data: bytes) -> CommittedOffset:
    reader = open_record(data, newest=4, flexible_from=4)
    offset = reader.int64()
    leader_epoch = reader.int32() if reader.version >= 3 else -1
    metadata, committed = reader.string(), reader.int64()
    expires = reader.int64() if reader.version == 1 else -1
    topic_id = reader.tags().get(0, b"") if reader.version >= 4 else b""
    return CommittedOffset(offset, leader_epoch, metadata, committed, expires, _topic_id(topic_id))


def encode_classic(group: ClassicSnapshot) -> bytes:
    writer = FieldWriter().int16(3).string(group.protocol_type).int32(group.generation).string(group.protocol_name)
    writer.string(group.leader).int64(group.state_timestamp_ms).count(len(group.members))
    for member in group.members:
        writer.string(member.member_id).string(member.instance_id).string(member.client_id).string(member.client_host)
        writer.int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        writer.bytes_(member.subscription).bytes_(member.assignment)
    return writer.done()


def decode_classic(data: bytes) -> ClassicSnapshot:
    reader = open_record(data, newest=4, flexible_from=4)
    protocol_type, generation = reader.string(), reader.int32()
    protocol_name, leader = reader.nullable_string(), reader.nullable_string()
    timestamp = reader.int64() if reader.version >= 2 else -1
    members = tuple(_classic_member(reader) for _ in range(reader.count()))
    return ClassicSnapshot(protocol_type, generation, protocol_name, leader, timestamp, members)


def encode_group_epoch(group: GroupEpoch) -> bytes:
    tags = {0: _INT64.pack(group.metadata_hash)} if group.metadata_hash else {}
    return flexible_writer().int32(group.epoch).tags(tags).done()


def decode_group_epoch(data: bytes) -> GroupEpoch:
    reader = open_record(data)
    return GroupEpoch(reader.int32(), _tagged_int64(reader))


def encode_member(member: MemberMetadata) -> bytes:
    writer = flexible_writer().string(member.instance_id).string(member.rack_id).string(member.client_id)
    writer.string(member.client_host).count(len(member.subscribed_topic_names))
    for name in member.subscribed_topic_names:
        writer.string(name)
    writer.string(member.subscribed_topic_regex).int32(member.rebalance_timeout_ms).string(member.server_assignor)
    return writer.tags({0: _encode_terms(member.classic)} if member.classic else {}).done()


def decode_member(data: bytes) -> MemberMetadata:
    reader = open_record(data)
    return MemberMetadata(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        subscribed_topic_names=tuple(reader.string() for _ in range(reader.count())),
        subscribed_topic_regex=reader.nullable_string(),
        rebalance_timeout_ms=reader.int32(),
        server_assignor=reader.nullable_string(),
        classic=_decode_terms(reader.tags().get(0)),
    )


def _encode_terms(terms: ClassicTerms) -> bytes:
    writer = FieldWriter(flexible=True).int8(1)  # "not null"
    writer.int32(terms.session_timeout_ms).count(len(terms.protocols))
    for name, subscription in terms.protocols:
        writer.string(name).bytes_(subscription).tags()
    return writer.tags().done()


def _decode_terms(content: bytes | None) -> ClassicTerms | None:
    if content is None:
        return None
    reader = FieldReader(content, flexible=True)
    if reader.int8() < 0:
        return None
    terms = ClassicTerms(reader.int32(), tuple(_protocol(reader) for _ in range(reader.count())))
    if not terms.protocols:
        raise MalformedError("a classic member without any protocol")
    return terms


def _protocol(reader: FieldReader) -> tuple[str, bytes]:
    name, subscription = reader.string(), reader.bytes_()
    reader.tags()
    return name, subscription


def encode_target_epoch(target: TargetEpoch) -> bytes:
    return flexible_writer().int32(target.epoch).tags({0: _INT64.pack(target.timestamp_ms)}).done()


def decode_target_epoch(data: bytes) -> TargetEpoch:
    reader = open_record(data)
    return TargetEpoch(reader.int32(), _tagged_int64(reader))


def encode_target(partitions: Partitions) -> bytes:
    writer = flexible_writer()
    write_partitions(writer, partitions)
    return writer.tags().done()


def decode_target(data: bytes) -> Partitions:
    return read_partitions(open_record(data))


def encode_current(current: CurrentAssignment) -> bytes:
    writer = flexible_writer().int32(current.member_epoch).int32(current.previous_member_epoch).int8(current.state)
    write_partitions(writer, current.assigned)
    write_partitions(writer, current.pending_revocation)
    return writer.tags().done()


def decode_current(data: bytes) -> CurrentAssignment:
    reader = open_record(data)
    epoch, previous, state = reader.int32(), reader.int32(), reader.int8()
    return CurrentAssignment(epoch, previous, state, read_partitions(reader), read_partitions(reader))


def encode_regex(regex: ResolvedRegex) -> bytes:
    writer = flexible_writer().count(len(regex.topics))
    for topic in regex.topics:
        writer.string(topic)
    return writer.int64(regex.version).int64(regex.timestamp_ms).tags().done()


def decode_regex(data: bytes) -> ResolvedRegex:
    reader = open_record(data)
    return ResolvedRegex(tuple(reader.string() for _ in range(reader.count())), reader.int64(), reader.int64())


def flexible_writer() -> FieldWriter:
    return FieldWriter(flexible=True).int16(0)


def open_record(data: bytes, *, newest: int = 0, flexible_from: int = 0) -> FieldReader:
    reader = FieldReader(data).with_version()
    if not 0 <= reader.version <= newest:
        raise MalformedError(f"a group record of version {reader.version}, newest known is {newest}")
    reader.flexible = reader.version >= flexible_from
    return reader


@lru_cache(maxsize=1024)  # thousands of offsets share the ids of a few topics
def _topic_id(content: bytes) -> TopicId:
    return UUID(bytes=content) if len(content) == 16 else NO_TOPIC_ID


def _tagged_int64(reader: FieldReader) -> int:
    """The one tagged field of some records; 0 where it is not there."""
    content = reader.tags().get(0, b"")
    value: int = _INT64.unpack(content)[0] if len(content) == _INT64.size else 0
    return value


def _classic_member(reader: FieldReader) -> ClassicMemberSnapshot:
    member_id = reader.string()
    instance_id = reader.nullable_string() if reader.version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout = reader.int32() if reader.version >= 1 else -1
    session_timeout = reader.int32()
    subscription, assignment = reader.bytes_(), reader.bytes_()
    reader.tags()
    return ClassicMemberSnapshot(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout if rebalance_timeout == -1 else rebalance_timeout,
        session_timeout,
        subscription,
        assignment,
    )


def write_partitions(writer: FieldWriter, partitions: Partitions) -> None:
    writer.count(len(partitions))
    for topic_id, numbers in sorted(partitions.items()):
        writer.uuid(topic_id).count(len(numbers))
        for number in sorted(numbers):
            writer.int32(number)
        writer.tags()


def read_partitions(reader: FieldReader) -> Partitions:
    pairs = []
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        pairs.append((topic_id, [reader.int32() for _ in range(reader.count())]))
        reader.tags()
    return collect(pairs) if pairs else NOTHING
