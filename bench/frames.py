"""The few Kafka frames a load generator sends, built once and sent many times, and the few bytes it reads back.

Written from the protocol's definition and independent of the broker's own codecs: a bench that shared them would not
notice a shared mistake, and would import what it measures.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 18, 19, 20
BATCH_HEADER_BYTES = 61
_BATCH_AFTER_CRC = struct.Struct(">hiqqqhii")
_PAYLOAD_ALPHABET = b"abcdefghijklmnopqrstuvwxyz012345"  # no payload may look like a NATS control line


class Batch(NamedTuple):
    """One record batch, ready to be sent as often as wanted."""

    data: bytes
    messages: int
    value_bytes: int


def value(size: int) -> bytes:
    """A message body of this size; the same for every peer."""
    return (_PAYLOAD_ALPHABET * (size // len(_PAYLOAD_ALPHABET) + 1))[:size]


def batch_of(value_bytes: int, batch_bytes: int, timestamp_ms: int) -> Batch:
    """As many messages of this size as fit in a batch of this size, at least one."""
    record = _record(0, value(value_bytes))
    messages = max(1, (batch_bytes - BATCH_HEADER_BYTES) // (len(record) + 1))
    return Batch(record_batch([value(value_bytes)] * messages, timestamp_ms), messages, value_bytes)


def record_batch(values: Sequence[bytes], timestamp_ms: int) -> bytes:
    """A record batch of format v2, uncompressed, without keys, headers or producer id."""
    records = b"".join(_record(delta, one) for delta, one in enumerate(values))
    last = len(values) - 1
    after_crc = _BATCH_AFTER_CRC.pack(0, last, timestamp_ms, timestamp_ms, -1, -1, -1, len(values)) + records
    length = 4 + 1 + 4 + len(after_crc)
    return struct.pack(">qiibI", 0, length, 0, 2, crc32c(after_crc)) + after_crc


def produce(topic: str, partition: int, batch: bytes, acks: int, *, timeout_ms: int = 30_000) -> bytes:
    """Produce v9 with one batch for one partition."""
    body = b"".join((
        b"\x00", struct.pack(">hi", acks, timeout_ms),
        b"\x02", compact_string(topic), b"\x02", struct.pack(">i", partition),
        uvarint(len(batch) + 1), batch, b"\x00\x00\x00",
    ))  # fmt: skip
    return request(PRODUCE, 9, body, flexible=True)


def fetch(
    topic: str, partition: int, offset: int, *, bytes_max: int, bytes_min: int = 1, wait_ms: int = 500
) -> bytearray:
    """Fetch v12, outside any session, of one partition; `set_fetch_offset` moves it on."""
    body = b"".join((
        struct.pack(">iiiibii", -1, wait_ms, bytes_min, 0x7FFFFFFF, 0, 0, -1),
        b"\x02", compact_string(topic), b"\x02", struct.pack(">iiqiqi", partition, -1, offset, -1, -1, bytes_max),
        b"\x00\x00\x01\x01\x00",
    ))  # fmt: skip
    return bytearray(request(FETCH, 12, body, flexible=True))


def set_fetch_offset(frame: bytearray, offset: int) -> None:
    struct.pack_into(">q", frame, len(frame) - _FETCH_OFFSET_FROM_END, offset)


# fetch offset, last fetched epoch, log start offset, partition max bytes, and the five closing bytes
_FETCH_OFFSET_FROM_END = 8 + 4 + 8 + 4 + 5


class FetchHead(NamedTuple):
    """What the first bytes of a Fetch v12 response say about the one partition asked for."""

    error: int
    high_watermark: int
    records_bytes: int


def fetch_head_bytes(topic: str) -> int:
    """How many bytes from the start of the frame hold the whole FetchHead."""
    return _fetch_partition_at(topic) + 4 + 2 + 8 + 8 + 8 + 1 + 4 + 5


def read_fetch_head(frame: memoryview, topic: str) -> FetchHead:
    (top_error,) = struct.unpack_from(">h", frame, 13)
    if top_error:
        return FetchHead(top_error, -1, 0)
    at = _fetch_partition_at(topic) + 4
    error, high_watermark = struct.unpack_from(">hq", frame, at)
    records, _ = read_uvarint(frame, at + 2 + 8 + 8 + 8 + 1 + 4)
    return FetchHead(error, high_watermark, max(0, records - 1))


def _fetch_partition_at(topic: str) -> int:
    # length, correlation, tags, throttle, error, session; topic array, name, partition array
    return 4 + 4 + 1 + 4 + 2 + 4 + 1 + len(compact_string(topic)) + 1


def api_versions() -> bytes:
    return request(API_VERSIONS, 0, b"")


def create_topic(topic: str, partitions: int, settings: Mapping[str, str], timeout_ms: int = 60_000) -> bytes:
    """CreateTopics v4, one topic, replication factor 1."""
    return _create_topic(topic, struct.pack(">ihi", partitions, 1, 0), settings, timeout_ms)


def create_placed_topic(
    topic: str, replicas: Sequence[Sequence[int]], settings: Mapping[str, str], timeout_ms: int = 60_000
) -> bytes:
    """CreateTopics v4, one topic, its replicas on the brokers named for each partition; the first one is to lead."""
    placed = b"".join(struct.pack(">i", partition) + _ints(brokers) for partition, brokers in enumerate(replicas))
    return _create_topic(topic, struct.pack(">ihi", -1, -1, len(replicas)) + placed, settings, timeout_ms)


def _create_topic(topic: str, shape: bytes, settings: Mapping[str, str], timeout_ms: int) -> bytes:
    pairs = b"".join(_string(name) + _string(text) for name, text in settings.items())
    body = b"".join((
        struct.pack(">i", 1), _string(topic), shape,
        struct.pack(">i", len(settings)), pairs, struct.pack(">ib", timeout_ms, 0),
    ))  # fmt: skip
    return request(CREATE_TOPICS, 4, body)


def create_topic_error(response: bytes) -> int:
    """The error code in a CreateTopics v4 response for one topic."""
    (name_bytes,) = struct.unpack_from(">h", response, 12)
    return int(struct.unpack_from(">h", response, 14 + name_bytes)[0])


def delete_topic(topic: str, timeout_ms: int = 30_000) -> bytes:
    """DeleteTopics v1."""
    return request(DELETE_TOPICS, 1, struct.pack(">i", 1) + _string(topic) + struct.pack(">i", timeout_ms))


def metadata(topics: Sequence[str]) -> bytes:
    """Metadata v1 of these topics; of none: who the brokers are."""
    return request(METADATA, 1, struct.pack(">i", len(topics)) + b"".join(map(_string, topics)))


class PartitionState(NamedTuple):
    """One partition as Metadata tells it: who leads it (-1: nobody), and which replicas are in sync."""

    error: int
    leader: int
    in_sync: tuple[int, ...]


class ClusterState(NamedTuple):
    """What a broker says about its cluster: the port of each broker by its id, and the one topic asked for."""

    ports: dict[int, int]
    topic_error: int
    partitions: dict[int, PartitionState]


def read_metadata(response: bytes) -> ClusterState:
    """From a Metadata v1 response (without its length prefix) for at most one topic."""
    (count,) = struct.unpack_from(">i", response, 4)
    at, ports = 8, {}
    for _ in range(count):
        (broker,) = struct.unpack_from(">i", response, at)
        at = _after_string(response, at + 4)
        (ports[broker],) = struct.unpack_from(">i", response, at)
        at = _after_string(response, at + 4)  # its rack, which may be null
    (topics,) = struct.unpack_from(">i", response, at + 4)  # after the controller's id
    if not topics:
        return ClusterState(ports, 0, {})
    (error,) = struct.unpack_from(">h", response, at + 8)
    at = _after_string(response, at + 10) + 1  # whether it is internal
    return ClusterState(ports, error, _read_partitions(response, at))


def _read_partitions(response: bytes, at: int) -> dict[int, PartitionState]:
    (count,) = struct.unpack_from(">i", response, at)
    at, partitions = at + 4, {}
    for _ in range(count):
        error, index, leader, replicas = struct.unpack_from(">hiii", response, at)
        at += 14 + 4 * replicas
        (in_sync,) = struct.unpack_from(">i", response, at)
        partitions[index] = PartitionState(error, leader, struct.unpack_from(f">{in_sync}i", response, at + 4))
        at += 4 + 4 * in_sync
    return partitions


def latest_offsets(topic: str, partitions: Sequence[int]) -> bytes:
    """ListOffsets v1: the ends of these partitions of one topic."""
    wanted = b"".join(struct.pack(">iq", partition, -1) for partition in partitions)
    body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">i", len(partitions)) + wanted
    return request(LIST_OFFSETS, 1, body)


def read_latest_offsets(response: bytes) -> list[tuple[int, int]]:
    """(error, offset) per partition from a ListOffsets v1 response (without its length prefix)."""
    (name_bytes,) = struct.unpack_from(">h", response, 8)
    at = 10 + name_bytes
    (count,) = struct.unpack_from(">i", response, at)
    rows = struct.iter_unpack(">ihqq", response[at + 4 : at + 4 + 22 * count])
    return [(error, offset) for _, error, _, offset in rows]


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """The number, and where the next field begins."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _record(offset_delta: int, body: bytes) -> bytes:
    inside = b"\x00\x00" + _varint(offset_delta) + _varint(-1) + _varint(len(body)) + body + b"\x00"
    return _varint(len(inside)) + inside


def _varint(number: int) -> bytes:
    return uvarint((number << 1) ^ (number >> 63))


def request(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    header = struct.pack(">hhi", api_key, version, 1) + _string("bench") + (b"\x00" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _ints(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


def _after_string(data: bytes, at: int) -> int:
    """Where the field after this string begins; one of length -1 is null."""
    (size,) = struct.unpack_from(">h", data, at)
    return at + 2 + max(0, int(size))


def compact_string(text: str) -> bytes:
    return uvarint(len(text) + 1) + text.encode()
