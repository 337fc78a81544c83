"""A segment file as a human wants to see it: every batch with its place, and whether it can be trusted.

Unlike recovery this changes nothing and goes on behind a batch with a wrong checksum, as long as its length leads to
another batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from clarion.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, has_good_crc, read_header
from clarion.world import Disk, DiskFile

if TYPE_CHECKING:
    from clarion.wire.records import Record

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class DumpedBatch(NamedTuple):
    position: int
    header: BatchHeader
    data: bytes
    damage: str  # empty if there is none

    @property
    def is_good(self) -> bool:
        return not self.damage

    @property
    def codec(self) -> str:
        kind = self.header.compression
        return CODECS[kind] if kind < len(CODECS) else f"unknown ({kind})"

    def records(self) -> list[Record]:
        """Decoded; KafkaError if they cannot be."""
        from clarion.wire.records import decode_batch

        return decode_batch(self.data)


class DamagedRest(NamedTuple):
    """From here on no batch can be made out."""

    position: int
    length: int
    damage: str


def dump_segment(disk: Disk, path: str) -> Iterator[DumpedBatch | DamagedRest]:
    """Every batch of one .log file; a DamagedRest, if there is one, comes last."""
    with closing(disk.open(path)) as file:
        size, position, expected = file.size(), 0, 0
        while position < size:
            one = _batch_at(file, position, size, expected)
            yield one
            if isinstance(one, DamagedRest):
                return
            position += one.header.size_bytes
            expected = max(expected, one.header.next_offset)


def _batch_at(file: DiskFile, position: int, size: int, expected: int) -> DumpedBatch | DamagedRest:
    rest = size - position
    if rest < HEADER_BYTES:
        return DamagedRest(position, rest, "a batch is cut off before its header ends")
    header = read_header(file.read(HEADER_BYTES, position))
    if header.magic != MAGIC or header.size_bytes < HEADER_BYTES:
        return DamagedRest(position, rest, "no batch begins here")
    if header.size_bytes > rest:
        return DamagedRest(position, rest, "a batch is cut off")
    data = file.read(header.size_bytes, position)
    damage = "" if has_good_crc(data, header) else "it does not match its checksum"
    if not damage and header.base_offset < expected:
        damage = f"offset {header.base_offset} comes where {expected} was expected"
    return DumpedBatch(position, header, data, damage)
