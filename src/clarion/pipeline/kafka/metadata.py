"""Who leads what: Metadata v12 (Kafka 3.1 and newer), with topic ids.

Left out: authorized operations, racks, the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.pipeline.kafka.connection import ClientApi
from clarion.wire.cursor import FieldReader, FieldWriter

METADATA: Final = ClientApi("Metadata", 3, 12, is_flexible=True)
NO_LEADER: Final = -1
NO_EPOCH: Final = -1


class PartitionInfo(NamedTuple):
    number: int
    error_code: int
    leader: int
    leader_epoch: int


class KnownTopic(NamedTuple):
    error_code: int
    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]  # in order

    def leader(self, partition: int) -> int:
        return next((one.leader for one in self.partitions if one.number == partition), NO_LEADER)

    def leader_epoch(self, partition: int) -> int:
        return next((one.leader_epoch for one in self.partitions if one.number == partition), NO_EPOCH)


@dataclass(frozen=True, slots=True)
class Cluster:
    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, KnownTopic] = field(default_factory=dict)


def metadata_request(topics: Sequence[str] | None, *, may_create: bool = False) -> bytearray:
    """None asks for every topic."""

    def one_topic(to: FieldWriter, name: str) -> None:
        to.uuid(NO_TOPIC_ID).string(name).tags()

    return FieldWriter(flexible=True).array(topics, one_topic).boolean(may_create).boolean(False).tags().out


def read_metadata(answer: FieldReader) -> Cluster:
    answer.int32()  # throttle time
    brokers = {node: (host, port) for node, host, port in answer.array(_read_broker)}
    answer.nullable_string()  # cluster id
    answer.int32()  # controller
    topics = answer.array(_read_topic)
    return Cluster(brokers, {topic.name: topic for topic in topics})


def _read_broker(answer: FieldReader) -> tuple[int, str, int]:
    node, host, port = answer.int32(), answer.text(), answer.int32()
    answer.nullable_string()  # rack
    answer.skip_tags()
    return node, host, port


def _read_topic(answer: FieldReader) -> KnownTopic:
    error_code, name, topic_id, is_internal = answer.int16(), answer.text(), answer.uuid(), answer.boolean()
    partitions = sorted(answer.array(_read_partition))
    answer.int32()  # authorized operations
    answer.skip_tags()
    return KnownTopic(error_code, name, topic_id, is_internal, tuple(partitions))


def _read_partition(answer: FieldReader) -> PartitionInfo:
    error_code, number, leader, leader_epoch = answer.int16(), answer.int32(), answer.int32(), answer.int32()
    for _ in range(3):  # replicas, in-sync replicas, offline replicas
        answer.array(FieldReader.int32)
    answer.skip_tags()
    return PartitionInfo(number, error_code, leader, leader_epoch)
