"""The classic consumers' own protocol, as far as the broker reads and writes it.

What a member subscribes to and what it is assigned are opaque bytes to a classic group. The broker looks into them to
know which topics a group needs, and to carry a group over to KIP-848 and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from clarion.model.errors import MalformedError
from clarion.wire.cursor import FieldReader, FieldWriter

CONSUMER_PROTOCOL_TYPE = "consumer"
NEWEST_VERSION = 3  # a later one is read as this one: versions only add fields at the end

NamedPartitions = Mapping[str, frozenset[int]]  # by topic name


class MemberSubscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: NamedPartitions  # what a cooperative member holds while it rejoins; eager ones hold nothing
    rack_id: str | None


class ClassicAssignment(NamedTuple):
    partitions: NamedPartitions
    user_data: bytes


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of a subscription of any version; None when it cannot be read."""
    try:
        reader = FieldReader(subscription).with_version()
        return frozenset(reader.string() for _ in range(reader.count()))
    except MalformedError:
        return None


def read_subscription(data: bytes) -> MemberSubscription:
    reader = FieldReader(data).with_version()
    version = _known(reader.version)
    topics = frozenset(reader.string() for _ in range(reader.count()))
    reader.nullable_bytes()  # user data, for the assignors among themselves
    owned = _read_partitions(reader) if version >= 1 else {}
    if version >= 2:
        reader.int32()  # the generation in which it owned them
    rack_id = reader.nullable_string() if version >= 3 else None
    return MemberSubscription(version, topics, owned, rack_id or None)


def read_assignment(data: bytes) -> ClassicAssignment:
    if not data:
        return ClassicAssignment({}, b"")  # a member that has joined and never got work
    reader = FieldReader(data).with_version()
    _known(reader.version)
    return ClassicAssignment(_read_partitions(reader), reader.nullable_bytes() or b"")


def spoken_version(subscription: bytes) -> int:
    """The version that a member's own bytes have, and that it expects of ours."""
    return max(0, min(int.from_bytes(subscription[:2], "big", signed=True), NEWEST_VERSION))


def write_assignment(partitions: NamedPartitions, version: int) -> bytes:
    writer = FieldWriter().int16(version).count(len(partitions))
    for topic, numbers in sorted(partitions.items()):
        writer.string(topic).count(len(numbers))
        for number in sorted(numbers):
            writer.int32(number)
    return writer.int32(-1).done()  # no user data


def _known(version: int) -> int:
    if version < 0:
        raise MalformedError(f"a consumer protocol of version {version}")
    return min(version, NEWEST_VERSION)


def _read_partitions(reader: FieldReader) -> NamedPartitions:
    found: dict[str, frozenset[int]] = {}
    for _ in range(reader.count()):
        topic = reader.string()
        found[topic] = found.get(topic, frozenset()).union(reader.int32() for _ in range(reader.count()))
    return found
