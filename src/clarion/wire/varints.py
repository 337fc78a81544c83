"""Kafka's variable-length integers inside records: little groups of seven bits, signs folded in (zigzag).

Most of them are one byte long, so readers look that case up in `ZIGZAG` in line and call `read_long` for the rest.
"""

from __future__ import annotations

from typing import Final

from clarion.model.errors import ErrorCode, KafkaError

ZIGZAG: Final[tuple[int, ...]] = tuple((n >> 1) ^ -(n & 1) for n in range(128))
_VARINT_BYTES_MAX: Final = 10


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where the next thing begins. IndexError when the data ends in the middle."""
    byte = data[at]
    if byte < 0x80:
        return ZIGZAG[byte], at + 1
    result = byte & 0x7F | data[at + 1] << 7
    if result < 0x4000:
        return (result >> 1) ^ -(result & 1), at + 2
    return _read_longer(data, at)


def _read_longer(data: bytes, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >> 64:
                break
            return (result >> 1) ^ -(result & 1), at
    raise KafkaError(ErrorCode.INVALID_RECORD, "a number in a record has more than 64 bits")


def put(out: bytearray, number: int) -> None:
    """Append a number."""
    folded = (number << 1) ^ (number >> 63)
    while folded > 0x7F:
        out.append((folded & 0x7F) | 0x80)
        folded >>= 7
    out.append(folded)


def length_of(number: int) -> int:
    """How many bytes `put` would append."""
    folded = (number << 1) ^ (number >> 63)
    return (folded.bit_length() + 6) // 7 or 1
