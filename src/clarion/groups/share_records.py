"""The records of share groups (KIP-932) in `__consumer_offsets`, byte for byte as Kafka writes them: types 10–15.

They are those of KIP-848 groups without what share groups do not have (instances, regular expressions, revocation), and
15: the partitions whose share state has begun, which are the only ones that members are given.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from clarion.groups.partitions import NOTHING
from clarion.groups.records import (
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    flexible_writer,
    open_record,
    read_partitions,
    write_partitions,
)
from clarion.wire.cursor import FieldReader, FieldWriter

SHARE_MEMBER_TYPE = 10
SHARE_GROUP_TYPE = 11
SHARE_TARGET_EPOCH_TYPE = 12  # its value is that of KIP-848 groups
SHARE_TARGET_MEMBER_TYPE = 13  # so is this
SHARE_CURRENT_TYPE = 14
SHARE_STATE_TYPE = 15
SHARE_TYPES = range(SHARE_MEMBER_TYPE, SHARE_STATE_TYPE + 1)


class InitializedTopic(NamedTuple):
    name: str
    partitions: frozenset[int]


Initialized = dict[UUID, InitializedTopic]


def encode_share_epoch(group: GroupEpoch) -> bytes:
    return flexible_writer().int32(group.epoch).int64(group.metadata_hash).tags().done()


def decode_share_epoch(data: bytes) -> GroupEpoch:
    reader = open_record(data)
    return GroupEpoch(reader.int32(), reader.int64())


def encode_share_member(member: MemberMetadata) -> bytes:
    writer = flexible_writer().string(member.rack_id).string(member.client_id).string(member.client_host)
    return writer.array(member.subscribed_topic_names, FieldWriter.string).tags().done()


def decode_share_member(data: bytes) -> MemberMetadata:
    reader = open_record(data)
    rack_id, client_id, client_host = reader.nullable_string(), reader.string(), reader.string()
    return share_member(rack_id, client_id, client_host, tuple(reader.array(FieldReader.string)))


def share_member(rack_id: str | None, client_id: str, client_host: str, topics: tuple[str, ...]) -> MemberMetadata:
    return MemberMetadata(None, rack_id, client_id, client_host, topics, None, -1, None)


def encode_share_current(current: CurrentAssignment) -> bytes:
    writer = flexible_writer().int32(current.member_epoch).int32(current.previous_member_epoch).int8(current.state)
    write_partitions(writer, current.assigned)
    return writer.tags().done()


def decode_share_current(data: bytes) -> CurrentAssignment:
    reader = open_record(data)
    epoch, previous, state = reader.int32(), reader.int32(), reader.int8()
    return CurrentAssignment(epoch, previous, state, read_partitions(reader), NOTHING)


def encode_initialized(topics: Initialized) -> bytes:
    """Kafka notes there too which topics are about to be deleted; here that is one step, and there are none."""
    writer = flexible_writer().count(len(topics))
    for topic_id, topic in sorted(topics.items()):
        writer.uuid(topic_id).string(topic.name).array(sorted(topic.partitions), FieldWriter.int32).tags()
    return writer.count(0).tags().done()


def decode_initialized(data: bytes) -> Initialized:
    reader = open_record(data)
    topics: Initialized = {}
    for _ in range(reader.count()):
        topic_id, name = reader.uuid(), reader.string()
        topics[topic_id] = InitializedTopic(name, frozenset(reader.array(FieldReader.int32)))
        reader.tags()
    return topics
