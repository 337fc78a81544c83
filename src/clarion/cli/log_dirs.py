"""How much disk partitions take, and who needs it: DescribeLogDirs, asked of every broker.

(The client library lacks that API.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from clarion.cli.link import Link, result_of
from clarion.cli.offsets import Place

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from clarion.wire.cursor import FieldReader

_KEY: Final = 35
_VERSION: Final = 2  # flexible; Kafka from 2.6 on
_EVERYTHING: Final = b"\0\0"  # no list of topics, no tagged fields
_SECONDS_MAX: Final = 10
_HOLDERS_TAG: Final = 10_000


class Replica(NamedTuple):
    """A partition's log on one broker."""

    place: Place
    size_bytes: int
    holders: list[NeededBy]


class NeededBy(NamedTuple):
    """A subscription or a group that needs something of a partition; tagged fields of Clarion's own."""

    place: Place
    name: str
    is_group: bool
    until_acknowledged: bool
    from_offset: int
    held_bytes: int
    since_ms: int


def disk_sizes(admin: AdminClient, link: Link) -> dict[int, dict[Place, int]] | None:
    """Bytes of each partition, by broker; None where they cannot be known (SASL, an old broker, one that is away)."""
    told = _ask_all(admin, link, _EVERYTHING)
    return None if told is None else {broker: {one.place: one.size_bytes for one in found} for broker, found in told}


def holders(admin: AdminClient, link: Link, topic: str, partitions: Sequence[int]) -> list[NeededBy] | None:
    """Who needs messages of a topic; None where that cannot be known."""
    from clarion.wire.cursor import FieldWriter

    asked = FieldWriter(flexible=True)
    asked.count(1).string(topic).array(partitions, lambda writer, index: writer.int32(index)).tags().tags()
    told = _ask_all(admin, link, bytes(asked.out))
    return None if told is None else [holder for _, found in told for one in found for holder in one.holders]


def _ask_all(admin: AdminClient, link: Link, question: bytes) -> list[tuple[int, list[Replica]]] | None:
    from clarion.pipeline.kafka.connection import BrokerConnection, ClientApi
    from clarion.pipeline.kafka.errors import ConnectionLostError, CorruptDataError, TlsError

    settings = link.own_client(_SECONDS_MAX)
    if settings is None:
        return None
    found: list[tuple[int, list[Replica]]] = []
    for node in result_of(admin.describe_cluster(), link, "the brokers").nodes:
        try:
            connection = BrokerConnection(node.host, node.port, settings)
            try:
                answer = connection.ask(ClientApi("DescribeLogDirs", _KEY, _VERSION, is_flexible=True), question)
            finally:
                connection.close()
            found.append((node.id, _replicas(answer)))
        except (ConnectionLostError, CorruptDataError, TlsError):
            return None
    return found


def _replicas(answer: FieldReader) -> list[Replica]:
    answer.int32()  # throttle time
    found = [replica for each in answer.array(_folder) for replica in each]
    answer.skip_tags()
    return found


def _folder(reader: FieldReader) -> list[Replica]:
    reader.int16()  # an error leaves the folder's topics out
    reader.string()
    found = [replica for each in reader.array(_topic) for replica in each]
    reader.skip_tags()
    return found


def _topic(reader: FieldReader) -> list[Replica]:
    name = reader.string()
    found = [one for one in reader.array(lambda each: _partition(each, name)) if one is not None]
    reader.skip_tags()
    return found


def _partition(reader: FieldReader, topic: str) -> Replica | None:
    from clarion.wire.cursor import FieldReader as Reader

    place = (topic, reader.int32())
    size, _lag, is_future = reader.int64(), reader.int64(), reader.boolean()
    told = reader.tags().get(_HOLDERS_TAG)
    holders = [] if told is None else Reader(told, flexible=True).array(lambda each: _holder(each, place))
    return None if is_future else Replica(place, size, holders)


def _holder(reader: FieldReader, place: Place) -> NeededBy:
    name, is_group, until_acknowledged = reader.string(), reader.boolean(), reader.boolean()
    found = NeededBy(place, name, is_group, until_acknowledged, reader.int64(), reader.int64(), reader.int64())
    reader.skip_tags()
    return found
