"""How much disk partitions take: DescribeLogDirs, asked of every broker. (The client library lacks that API.)"""

from __future__ import annotations

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


class Replica(NamedTuple):
    """A partition's log on one broker."""

    place: Place
    size_bytes: int


def disk_sizes(admin: AdminClient, link: Link) -> dict[int, dict[Place, int]] | None:
    """Bytes of each partition, by broker; None where they cannot be known (SASL, an old broker, one that is away)."""
    from clarion.pipeline.kafka.connection import BrokerConnection, ClientApi
    from clarion.pipeline.kafka.errors import ConnectionLostError, CorruptDataError, TlsError

    settings = link.own_client(_SECONDS_MAX)
    if settings is None:
        return None
    found: dict[int, dict[Place, int]] = {}
    for node in result_of(admin.describe_cluster(), link, "the brokers").nodes:
        try:
            connection = BrokerConnection(node.host, node.port, settings)
            try:
                answer = connection.ask(ClientApi("DescribeLogDirs", _KEY, _VERSION, is_flexible=True), _EVERYTHING)
            finally:
                connection.close()
            found[node.id] = dict(_replicas(answer))
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
    found = [Replica((name, index), size) for index, size, is_future in reader.array(_partition) if not is_future]
    reader.skip_tags()
    return found


def _partition(reader: FieldReader) -> tuple[int, int, bool]:
    index, size, _lag, is_future = reader.int32(), reader.int64(), reader.int64(), reader.boolean()
    reader.skip_tags()
    return index, size, is_future
