"""The header of a record batch (message format v2), and the few bytes of it that a broker may touch.

offset  size  field
     0     8  base offset            stamped by the leader, outside the CRC
     8     4  batch length           bytes after this field
    12     4  partition leader epoch stamped by the leader, outside the CRC
    16     1  magic                  always 2
    17     4  CRC-32C                of everything from `attributes` on
    21     2  attributes             compression, timestamp type, transactional, control, delete horizon
    23     4  last offset delta
    27     8  base timestamp
    35     8  max timestamp
    43     8  producer id
    51     2  producer epoch
    53     4  base sequence
    57     4  record count
    61     …  records
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.checksum import crc32c

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12  # base offset and batch length come before what batch length counts
MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
HAS_DELETE_HORIZON: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1

_HEADER = Struct(">qiibIhiqqqhii")
_BASE_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_LENGTH = Struct(">i")
_LENGTH_AT: Final = 8
_MAX_TIMESTAMP_AT: Final = 35
_CRC = Struct(">I")
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_ATTRIBUTES = Struct(">h")
_make = tuple.__new__  # what a named tuple's own maker does, without its detour


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_producer(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequences run from 0 to 2^31-1 and wrap."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF if self.base_sequence >= 0 else NO_SEQUENCE


def read_header(data: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """The header at `at`; the caller has made sure that HEADER_BYTES are there. Nothing is judged."""
    return _make(BatchHeader, _HEADER.unpack_from(data, at))


def has_good_crc(batch: bytes | bytearray | memoryview, header: BatchHeader) -> bool:
    """`batch` is exactly one batch."""
    return crc32c(memoryview(batch)[_CRC_FROM:]) == header.crc


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place. Both fields sit outside the checksum, so nothing is hashed again."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, 12, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Set the timestamp type and the max timestamp; both are under the checksum, which is computed anew."""
    attributes = _ATTRIBUTES.unpack_from(batch, _CRC_FROM)[0] | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(batch, _CRC_FROM, attributes)
    _BASE_OFFSET.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))


def check_produced_batch(batch: memoryview) -> BatchHeader:
    """What one partition of a Produce request carries: one whole, honest v2 batch. Constant time but for the CRC.

    The records inside are not decoded: `records.check_deep` does that where a topic asks for it.
    """
    size = len(batch)
    if size < HEADER_BYTES or batch[_MAGIC_AT] != MAGIC:
        raise _no_batch(batch)
    header = _make(BatchHeader, _HEADER.unpack_from(batch, 0))
    if header.batch_length + LENGTH_PREFIX_BYTES != size:
        raise _other_length(header.batch_length, size)
    if crc32c(batch[_CRC_FROM:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record batch does not match its CRC")
    _check_claims(header, size)
    return header


def _no_batch(data: memoryview) -> KafkaError:
    """As Kafka tells them apart: an older format or too few bytes are INVALID_RECORD, any other magic is damage."""
    if len(data) <= _MAGIC_AT:
        return KafkaError(ErrorCode.INVALID_RECORD, "a record batch is cut off before its header ends")
    magic = data[_MAGIC_AT]
    if magic < MAGIC:
        return KafkaError(
            ErrorCode.INVALID_RECORD,
            f"message format v{magic} is not supported; produce with format v2 (Kafka 0.11 or newer)",
        )
    if magic > MAGIC:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"there is no message format v{magic}")
    return _other_length(_LENGTH.unpack_from(data, _LENGTH_AT)[0], len(data))


def _other_length(batch_length: int, size: int) -> KafkaError:
    told = batch_length + LENGTH_PREFIX_BYTES
    if told > size:
        return KafkaError(ErrorCode.INVALID_RECORD, f"a record batch of {told} bytes is cut off after {size}")
    if told < HEADER_BYTES:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record batch cannot have {told} bytes")
    return KafkaError(ErrorCode.INVALID_RECORD, "a partition's data must be exactly one record batch")


_RECORD_BYTES_MIN: Final = (
    7  # length, attributes, timestamp delta, offset delta, key, value, header count: one byte each
)
_ATTRIBUTES_KNOWN: Final = COMPRESSION_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | HAS_DELETE_HORIZON


def _check_claims(header: BatchHeader, size: int) -> None:
    _, _, _, _, _, attributes, last_offset_delta, base_timestamp, max_timestamp, _, _, _, count = header
    if count <= 0 or last_offset_delta != count - 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{count} records cannot end at offset delta {last_offset_delta}")
    if attributes:
        _check_attributes(attributes)
    if not attributes & COMPRESSION_MASK and count * _RECORD_BYTES_MIN > size - HEADER_BYTES:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{count} records do not fit into {size} bytes")
    if max_timestamp < base_timestamp and max_timestamp != NO_TIMESTAMP:
        # Records may carry falling timestamps, but the greatest is never before the first.
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a batch's max timestamp is before its base timestamp")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise KafkaError(ErrorCode.INVALID_RECORD, "an idempotent batch needs a producer epoch and a sequence")


def _check_attributes(attributes: int) -> None:
    if attributes & CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients cannot write control batches")
    if attributes & ~_ATTRIBUTES_KNOWN or attributes & HAS_DELETE_HORIZON:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"attributes {attributes:#06x} are not a client's to set")
    compression = attributes & COMPRESSION_MASK
    if compression > 4:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {compression} is unknown")
