"""Metadata's replies v0-13 by hand, in two steps, so that a topic's bytes can be kept and used again.

v1 null for all topics, racks, controller, internal topics · v2 cluster id · v3 throttle time · v4 auto-creation · v5
offline replicas · v7 leader epoch · v8 authorized operations · v9 flexible · v10 topic ids · v12 topics by id without
a name · v13 error code of the whole answer.

Left out: authorized operations are never told (Kafka's "not asked for").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct, pack
from typing import Final, NamedTuple
from uuid import UUID

from clarion.wire.fields import (
    INT32,
    NO_TAGS,
    compact_count,
    compact_nullable_string,
    compact_string,
    nullable_string,
    string,
)

FIRST_FLEXIBLE: Final = 9


class BrokerMetadata(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    error_code: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]


class TopicMetadata(NamedTuple):
    error_code: int
    name: str | None
    """None for an unknown id; versions that know no null get an empty name."""
    topic_id: UUID
    is_internal: bool
    partitions: Sequence[PartitionMetadata]


def encode_topic(version: int, topic: TopicMetadata) -> bytes:
    """One topic of a response; the bytes stay good until the topic changes."""
    return _flexible_topic(version, topic) if version >= FIRST_FLEXIBLE else _plain_topic(version, topic)


def encode_response(
    version: int,
    *,
    throttle_ms: int,
    brokers: Iterable[BrokerMetadata],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[bytes],
    error_code: int = 0,
) -> bytes:
    """`topics` come from `encode_topic` of the same version. `error_code` is told from v13 on."""
    nodes = list(brokers)
    if version >= FIRST_FLEXIBLE:
        return _flexible_response(version, throttle_ms, nodes, cluster_id, controller_id, topics, error_code)
    return _plain_response(version, throttle_ms, nodes, cluster_id, controller_id, topics)


_ERROR = Struct(">h")
_LED = Struct(">hiii")  # error code, index, leader, leader epoch
_LED_V0 = Struct(">hii")
_NOT_ASKED_FOR: Final = b"\x80\x00\x00\x00"  # authorized operations


def _flexible_topic(version: int, topic: TopicMetadata) -> bytes:
    name = topic.name if version >= 12 else topic.name or ""
    parts = [
        _ERROR.pack(topic.error_code),
        compact_nullable_string(name),
        topic.topic_id.bytes if version >= 10 else b"",
        b"\1" if topic.is_internal else b"\0",
        compact_count(len(topic.partitions)),
    ]
    for error_code, index, leader, leader_epoch, replicas, isr, offline in topic.partitions:
        parts.append(_LED.pack(error_code, index, leader, leader_epoch))
        parts.extend([_compact_ids(replicas), _compact_ids(isr), _compact_ids(offline), NO_TAGS])
    parts.append(_NOT_ASKED_FOR + NO_TAGS)
    return b"".join(parts)


def _compact_ids(ids: Sequence[int]) -> bytes:
    return compact_count(len(ids)) + pack(f">{len(ids)}i", *ids)


def _plain_topic(version: int, topic: TopicMetadata) -> bytes:
    parts = [_ERROR.pack(topic.error_code), string(topic.name or "")]
    if version >= 1:
        parts.append(b"\1" if topic.is_internal else b"\0")
    parts.append(INT32.pack(len(topic.partitions)))
    parts.extend([_plain_partition(version, partition) for partition in topic.partitions])
    if version >= 8:
        parts.append(_NOT_ASKED_FOR)
    return b"".join(parts)


def _plain_partition(version: int, partition: PartitionMetadata) -> bytes:
    error_code, index, leader, leader_epoch, replicas, isr, offline = partition
    if version >= 7:
        led = _LED.pack(error_code, index, leader, leader_epoch)
    else:
        led = _LED_V0.pack(error_code, index, leader)
    ids = _ids(replicas) + _ids(isr)
    return led + ids + _ids(offline) if version >= 5 else led + ids


def _ids(ids: Sequence[int]) -> bytes:
    return pack(f">i{len(ids)}i", len(ids), *ids)


def _flexible_response(
    version: int,
    throttle_ms: int,
    brokers: list[BrokerMetadata],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[bytes],
    error_code: int,
) -> bytes:
    head = [INT32.pack(throttle_ms), compact_count(len(brokers))]
    for node_id, host, port, rack in brokers:
        head.append(INT32.pack(node_id) + compact_string(host) + INT32.pack(port))
        head.append(compact_nullable_string(rack) + NO_TAGS)
    head.append(compact_nullable_string(cluster_id))
    head.append(INT32.pack(controller_id))
    head.append(compact_count(len(topics)))
    tail = _NOT_ASKED_FOR if version <= 10 else _ERROR.pack(error_code) if version >= 13 else b""
    return b"".join([*head, *topics, tail, NO_TAGS])


def _plain_response(
    version: int,
    throttle_ms: int,
    brokers: list[BrokerMetadata],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[bytes],
) -> bytes:
    head = [INT32.pack(throttle_ms)] if version >= 3 else []
    head.append(INT32.pack(len(brokers)))
    for node_id, host, port, rack in brokers:
        head.append(INT32.pack(node_id) + string(host) + INT32.pack(port))
        if version >= 1:
            head.append(nullable_string(rack))
    if version >= 2:
        head.append(nullable_string(cluster_id))
    if version >= 1:
        head.append(INT32.pack(controller_id))
    head.append(INT32.pack(len(topics)))
    return b"".join([*head, *topics, _NOT_ASKED_FOR if version >= 8 else b""])
