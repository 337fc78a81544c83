"""The records inside a batch: written, read one by one, and checked.

The hot path never comes here: batches are opaque to it. Whoever does look inside (compaction, retention, search by
time, the group coordinator, deep validation) gets either records that are consistent with the batch's header or one
KafkaError, in bounded time and memory, whatever the bytes are.

A record, every number a varint:
    length · attributes (one byte) · timestamp delta · offset delta · key length, key · value length, value ·
    header count, and for each header: key length, key, value length, value          (length -1 stands for null)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import LONG_MAX
from clarion.wire.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    has_good_crc,
    read_header,
)
from clarion.wire.checksum import crc32c
from clarion.wire.compression import compress, decompress
from clarion.wire.limits import UNPACKED_BYTES_MAX, WorkBudget
from clarion.wire.varints import ZIGZAG, length_of, put, read_long
from clarion.world.disk import Buffer

DECOMPRESSED_BYTES_MAX: Final = UNPACKED_BYTES_MAX
RECORDS_NAMED_MAX: Final = 1_000  # in one refusal of some 60 KB; who has more bad ones hears of them next time

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


# A record as it lies in the decompressed data: enough to keep it, drop it or decode the rest of it. A plain tuple,
# because a named one would take as long to make as all the rest:
#     start, after_timestamp, end, timestamp_delta, offset_delta, key, value_at, headers_at
# `data[start:end]` is the whole record, `data[after_timestamp:end]` what follows its timestamp delta,
# `data[value_at:headers_at]` its value; `value_at` is -1 where the value is null.
RecordSpan = tuple[int, int, int, int, int, bytes | None, int, int]


def decode_batch(batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Every record of one whole batch."""
    return list(iter_records(batch, decompressed_bytes_max=decompressed_bytes_max))


def iter_records(batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records one by one, so that a batch of millions of empty records costs no more memory than its bytes."""
    header = read_whole_header(batch)
    return _records(records_data(batch, header, decompressed_bytes_max), header)


def read_whole_header(batch: Buffer) -> BatchHeader:
    """The header of exactly one batch, whose length, format and CRC are as it says."""
    size = len(batch)
    if size < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record batch is cut off before its header ends")
    header = read_header(batch)
    if header.batch_length + LENGTH_PREFIX_BYTES != size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record batch says another length than it has")
    if header.magic != MAGIC:
        raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format v{header.magic} is not supported")
    if not has_good_crc(batch, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record batch does not match its CRC")
    return header


def records_data(batch: Buffer, header: BatchHeader, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The bytes of the records, decompressed."""
    return decompress(header.compression, memoryview(batch)[HEADER_BYTES:], decompressed_bytes_max)


def unpack_records(batch: Buffer, header: BatchHeader, budget: WorkBudget) -> bytes:
    """The same within a budget, which pays for it."""
    if not budget.unpacked_bytes_left:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "the batches of this request unpack to too many bytes in all")
    try:
        data = records_data(batch, header, budget.batch_bytes_max)
    except KafkaError:
        budget.note_failed_unpacking()
        raise
    budget.spend_bytes(len(data))
    return data


# ------------------------------------------------------------------------------------------------ reading


def _records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    for _, _, _, timestamp_delta, offset_delta, key, value_at, headers_at in scan_spans(data, header):
        yield Record(
            base_offset + offset_delta,
            base_timestamp + timestamp_delta if append_time is None else append_time,
            key,
            None if value_at < 0 else data[value_at:headers_at],
            read_headers(data, headers_at) if data[headers_at] else (),
        )


def scan_spans(data: bytes, header: BatchHeader, budget: WorkBudget | None = None) -> Iterator[RecordSpan]:
    """Where each record is. What this yields is consistent with the header, down to the last byte.

    Written in one piece because it runs once per record: numbers of one byte, nearly all of them, are read in line.
    Without a budget a batch costs whatever it contains: sixty-four megabytes may be thirty-three million headers.
    """
    _check_claims(header)
    if budget is not None:
        budget.spend_steps(header.record_count, "records")
    last_delta, last_allowed, size, at = -1, header.last_offset_delta, len(data), 0
    zigzag = ZIGZAG
    try:
        for _ in range(header.record_count):
            start = at
            length, at = (zigzag[byte], at + 1) if (byte := data[at]) < 128 else read_long(data, at)
            end = at + length
            if length < _RECORD_BODY_BYTES_MIN or end > size:
                raise _lie(f"a record of {length} bytes at {at} of {size}")
            at += 1  # a record's attributes are unused
            shift, at = (zigzag[byte], at + 1) if (byte := data[at]) < 128 else _read_shift(data, at)
            after_timestamp = at
            delta, at = (zigzag[byte], at + 1) if (byte := data[at]) < 128 else read_long(data, at)
            if not last_delta < delta <= last_allowed:
                raise _lie(f"offset delta {delta} after {last_delta}, in a batch that ends at {last_allowed}")
            last_delta = delta
            length, at = (zigzag[byte], at + 1) if (byte := data[at]) < 128 else read_long(data, at)
            if length >= 0:
                key: bytes | None = data[at : at + length]
                at += length
            elif length == -1:
                key = None
            else:
                raise _lie(f"a key of {length} bytes")
            length, at = (zigzag[byte], at + 1) if (byte := data[at]) < 128 else read_long(data, at)
            value_at = at if length >= 0 else -1
            if length > 0:
                at += length
            elif length < -1:
                raise _lie(f"a value of {length} bytes")
            if (at + 1 if data[at] == 0 else _skip_headers(data, at, end, budget)) != end:
                raise _lie(f"a record does not end where it says, at {end}")
            yield start, after_timestamp, end, shift, delta, key, value_at, at
            at = end
    except IndexError:
        raise _lie("a record is cut off") from None
    if at != size:
        raise _lie(f"{size - at} bytes after the last record")


def scan_times(data: bytes, header: BatchHeader, *, records_max: int) -> Iterator[tuple[int, int]]:
    """(timestamp, offset) of every record. Keys, values and headers are passed over, however many there are."""
    if header.record_count > records_max:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{header.record_count} records are too many to look at")
    _check_claims(header)
    base_timestamp, base_offset, size, at = header.base_timestamp, header.base_offset, len(data), 0
    try:
        for _ in range(header.record_count):
            length, at = read_long(data, at)
            end = at + length
            if length < _RECORD_BODY_BYTES_MIN or end > size:
                raise _lie(f"a record of {length} bytes at {at} of {size}")
            shift, at = _read_shift(data, at + 1)
            delta, at = read_long(data, at)
            if not 0 <= delta <= header.last_offset_delta:
                raise _lie(f"offset delta {delta}, in a batch that ends at {header.last_offset_delta}")
            yield base_timestamp + shift, base_offset + delta
            at = end
    except IndexError:
        raise _lie("a record is cut off") from None


_RECORD_BODY_BYTES_MIN: Final = 6  # attributes, timestamp delta, offset delta, key, value, header count: a byte each


def read_headers(data: bytes, at: int) -> Headers:
    """The headers of a record that `scan_spans` has been through: nothing is checked twice."""
    count, at = read_long(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, at = read_long(data, at)
        name = data[at : at + length]
        length, at = read_long(data, at + length)
        # Kafka never looks at the name; whatever bytes it has come out as they went in.
        headers.append((name.decode("utf-8", "surrogateescape"), data[at : at + length] if length >= 0 else None))
        at += max(length, 0)
    return tuple(headers)


def _skip_headers(data: bytes, at: int, end: int, budget: WorkBudget | None) -> int:
    count, at = read_long(data, at)
    if not 0 <= count <= (end - at) // 2:  # a header has at least two lengths
        raise _lie(f"{count} headers in {end - at} bytes")
    if budget is not None:
        budget.spend_steps(count, "headers")
    for _ in range(count):
        length, at = read_long(data, at)
        if length < 0 or at + length > end:
            raise _lie(f"a header's name of {length} bytes")
        length, at = read_long(data, at + length)
        if length < -1 or at + length > end:
            raise _lie(f"a header's value of {length} bytes")
        at += max(length, 0)
    return at


def _read_shift(data: bytes, at: int) -> tuple[int, int]:
    """A timestamp delta, not so great that the sum with the base would no longer fit into 64 bits."""
    shift, at = read_long(data, at)
    if not -_TIMESTAMP_MAX <= shift <= _TIMESTAMP_MAX:
        raise _lie(f"a timestamp delta of {shift}")
    return shift, at


_TIMESTAMP_MAX: Final = 2**61  # milliseconds: seventy million years


def _check_claims(header: BatchHeader) -> None:
    """What would make reading senseless is refused first."""
    if header.record_count < 0 or header.last_offset_delta < header.record_count - 1:
        raise _lie(f"{header.record_count} records up to offset delta {header.last_offset_delta}")
    if not -_TIMESTAMP_MAX <= header.base_timestamp <= _TIMESTAMP_MAX:
        raise _lie(f"base timestamp {header.base_timestamp}")


def _lie(what: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"a batch is not what its header says: {what}")


# ------------------------------------------------------------------------------------------------ deep validation


def check_deep(batch: Buffer, header: BatchHeader, *, keys_required: bool, budget: WorkBudget | None = None) -> None:
    """What `check_produced_batch` cannot see: that the records are there, dense, in time, and keyed where they must be.

    `header` has passed `check_produced_batch`; the CRC is not computed again. The budget bounds time and memory.
    """
    budget = budget or WorkBudget.for_bytes(len(batch))
    if header.last_offset_delta != header.record_count - 1:
        raise _lie(f"{header.record_count} records up to offset delta {header.last_offset_delta}")
    # With as many rising deltas as there are places for them, they can only be 0, 1, 2, …: `scan_spans` sees to it.
    base, latest = header.base_timestamp, LONG_MAX if header.is_log_append_time else header.max_timestamp
    data = unpack_records(batch, header, budget)
    keyless: list[int] = []
    mistimed: list[int] = []
    for number, (_, _, _, shift, _, key, _, _) in enumerate(scan_spans(data, header, budget)):
        if keys_required and key is None:
            keyless.append(number)
        elif not NO_TIMESTAMP <= base + shift <= latest:
            mistimed.append(number)
        else:
            continue
        if len(keyless) + len(mistimed) == RECORDS_NAMED_MAX:
            break
    if keyless or mistimed:
        raise _refused_records(keyless, mistimed)


def _refused_records(keyless: list[int], mistimed: list[int]) -> KafkaError:
    """All of them are named, as in Kafka: a client fails these for good and sends the others again."""
    named = sorted(keyless + mistimed)
    if mistimed:
        return KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a record's timestamp is past its batch's greatest", records=named
        )
    return KafkaError(ErrorCode.INVALID_RECORD, "a compacted topic accepts no record without a key", records=named)


# ------------------------------------------------------------------------------------------------ writing

NewRecord = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]  # key, value, headers, timestamp

_AFTER_LENGTH = Struct(">iBIhiqqqhii")  # leader epoch, magic, CRC, and the rest of the header as in `batch`
_PREFIX = Struct(">qi")
_CRC = Struct(">I")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """One batch with these records at consecutive offsets."""
    base_timestamp = records[0][3] if records else NO_TIMESTAMP
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=compression
        | (LOG_APPEND_TIME if log_append_time else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max((record[3] for record in records), default=NO_TIMESTAMP),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    data = bytearray()
    for delta, (key, value, headers, timestamp) in enumerate(records):
        _put_record(data, timestamp - base_timestamp, delta, key, value, headers)
    return assemble_batch(header, data)


def assemble_batch(header: BatchHeader, data: Buffer, level: int | None = None) -> bytearray:
    """A batch of the records in `data`, not yet compressed. Length and CRC are computed, the rest is the header's."""
    body = compress(header.attributes & COMPRESSION_MASK, data, level)
    batch = bytearray(HEADER_BYTES)
    _PREFIX.pack_into(batch, 0, header.base_offset, HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body))
    _AFTER_LENGTH.pack_into(batch, LENGTH_PREFIX_BYTES, *header[2:])
    batch += body
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
    return batch


def _put_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    body = bytearray(1)
    put(body, timestamp_delta)
    put(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    put(body, len(headers))
    for name, content in headers:
        _put_bytes(body, name.encode("utf-8", "surrogateescape"))
        _put_bytes(body, content)
    put(out, len(body))
    out += body


def put_shifted(out: bytearray, data: bytes, span: RecordSpan, shift_ms: int) -> None:
    """Append a record of `data` unchanged but for its timestamp delta, for a batch whose base timestamp moved."""
    _, after_timestamp, end, timestamp_delta, _, _, _, _ = span
    delta = timestamp_delta - shift_ms
    rest = data[after_timestamp:end]
    put(out, 1 + length_of(delta) + len(rest))
    out.append(0)
    put(out, delta)
    out += rest


def _put_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out.append(1)
    else:
        put(out, len(content))
        out += content
