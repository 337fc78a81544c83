"""From batch header to batch header, without reading what lies between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, BatchHeader, read_header
from clarion.world import DiskFile

LOOK_BYTES: Final = 8192  # two index intervals: one read finds a batch from the index entry before it
SWEEP_BYTES: Final = 256 << 10  # for walks through whole segments


class DamagedSegment(KafkaError):
    """What stands where a batch must begin is not one."""

    def __init__(self, path: str, position: int) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path} is damaged at byte {position}")
        self.position = position


Reader = Callable[[DiskFile, int, int], bytes]  # file, length, position


class ColdRead(Exception):
    """The device would have to be asked. `warm_up` does that in a thread; then it is tried again."""

    def __init__(self, file: DiskFile, length: int, position: int) -> None:
        super().__init__(file.path, length, position)
        self._file = file
        self._length = length
        self._position = position

    def warm_up(self) -> None:
        """Touches nothing but the file: what is read is in the page cache afterwards."""
        self._file.read(self._length, self._position)


def read_any(file: DiskFile, length: int, position: int) -> bytes:
    return file.read(length, position)


def read_cached(file: DiskFile, length: int, position: int) -> bytes:
    """ColdRead where the device would have to be asked."""
    data = bytearray(length)
    count = file.read_into(memoryview(data), position)
    if count is None:
        raise ColdRead(file, length, position)
    return bytes(memoryview(data)[:count])


def iter_batch_headers(
    file: DiskFile, position: int, end: int, chunk_bytes: int = LOOK_BYTES, read: Reader = read_any
) -> Iterator[tuple[BatchHeader, int]]:
    """The header and position of every batch from `position` to `end`; both are where batches begin."""
    chunk, chunk_at = b"", position
    while position < end:
        inside = position - chunk_at
        if inside + HEADER_BYTES > len(chunk):
            chunk, chunk_at, inside = read(file, min(chunk_bytes, end - position), position), position, 0
            if len(chunk) < HEADER_BYTES:
                raise DamagedSegment(file.path, position)
        header = read_header(chunk, inside)
        size = header.batch_length + LENGTH_PREFIX_BYTES
        if header.magic != MAGIC or size < HEADER_BYTES or position + size > end:
            raise DamagedSegment(file.path, position)
        yield header, position
        position += size
