"""The batches of a share-partition as they lie in the log: which there are, and where.

Who wants records has whole batches read; who only wants to know which there are, their headers. Either way what a
member is given are slices of files, as with Fetch: holding them keeps the files open, whatever is deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from clarion.broker.batch_gaps import BATCHES_MAX, Batch, leaves_out, standing
from clarion.broker.messages import check_offset, read_all, slices_around, slices_of
from clarion.broker.threads import in_thread
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acquisition import Acquired
from clarion.replication import Partition
from clarion.wire.batch import CONTROL, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, BatchHeader, has_good_crc, read_header

READ_BYTES_MAX: Final = 1024 * 1024  # at a time, as `max.partition.fetch.bytes`: it is for some hundred records
_AT_ONCE_BYTES: Final = 256 * 1024  # copied in a few ten microseconds
_WHOLE_BYTES: Final = 16 * 1024  # copied sooner than the kernel could be asked whether it has them
_LOOK_BYTES: Final = 4 * 1024  # read with the header of a batch that may be small: the next ones may be there, too

_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES
_NO_END: Final = 2**63  # of offsets


class ReadBatches(NamedTuple):
    """Of each batch: first and last offset, where it ends in the slices, and whether it has nothing for readers (a
    transaction's marker, or a batch that compaction has emptied)."""

    slices: list[FileSlice]
    batches: list[Batch]
    found: bytes  # what is in the slices; empty where only headers were wanted

    @property
    def next(self) -> int:
        return self.batches[-1][1] + 1

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(first, last) for first, last, _at, is_empty in self.batches if not is_empty]

    @property
    def size_bytes(self) -> int:
        return sum(one.length for one in self.slices)

    def contents(self) -> Iterator[tuple[int, int, bytes]]:
        """First and last offset, and the batch."""
        begins = 0
        for first, last, ends, is_empty in self.batches:
            if not is_empty:
                yield first, last, self.found[begins:ends]
            begins = ends

    def holding(self, acquired: list[Acquired]) -> list[FileSlice]:
        """From the first batch that has an acquired record to the last."""
        first, last = acquired[0].first, acquired[-1].last
        begin = max((ends_at for _, batch_last, ends_at, _ in self.batches if batch_last < first), default=0)
        end = max(ends_at for base, _, ends_at, _ in self.batches if base <= last)
        return cut(self.slices, begin, end)


async def read_batches(partition: Partition, offset: int, bytes_max: int) -> ReadBatches:
    """From the one that holds the offset on; CORRUPT_MESSAGE if what stands there cannot be it."""
    check_offset(partition, offset)
    slices = await slices_of(partition, offset, min(bytes_max, READ_BYTES_MAX))
    return await _read_whole(partition, slices, offset, bytes_max)


async def read_headers(partition: Partition, offset: int, bytes_max: int) -> ReadBatches:
    """The same for who does not look at records: they stay in the page cache, and are sent from there.

    What is not there is read all the same, so that it is known to be readable before somebody is given it.
    """
    check_offset(partition, offset)
    slices = await slices_of(partition, offset, min(bytes_max, READ_BYTES_MAX))
    if sum(one.length for one in slices) > _WHOLE_BYTES and _is_cached(slices):
        chain = _Chain(offset, partition.next_offset)
        if _split_in_files(slices, chain):
            return await _certain(partition, ReadBatches(slices, chain.batches, b""), chain, offset, bytes_max)
    return await _read_whole(partition, slices, offset, bytes_max)


def _is_cached(slices: list[FileSlice]) -> bool:
    try:
        return all(one.file.is_cached(one.length, one.position) for one in slices)
    except OSError:
        return False  # whoever reads it finds it too, and says so


async def _read_whole(partition: Partition, slices: list[FileSlice], offset: int, bytes_max: int) -> ReadBatches:
    found = _read_at_once(slices)
    if found is None:
        found = await in_thread(lambda: read_all(partition, slices))
    chain = _Chain(offset, partition.next_offset)
    _split(found, chain)
    return await _certain(partition, ReadBatches(slices, chain.batches, found), chain, offset, bytes_max)


async def _certain(partition: Partition, read: ReadBatches, chain: _Chain, offset: int, bytes_max: int) -> ReadBatches:
    """As it was read, if all of it follows from the first one, and that one begins where it was looked for. Else what
    there is evidence for: who reads on is not told of records that are there that they are not."""
    if read.slices and not (chain.is_certain or (chain.is_alone and await _is_followed(partition, read))):
        read = await _read_with_evidence(partition, offset, bytes_max)
    _check(partition, read)
    return read


async def _is_followed(partition: Partition, read: ReadBatches) -> bool:
    """Whether a batch that is alone in its read ends where the next one begins, as far as that is known at once."""
    if read.next >= partition.high_watermark.offset:
        return read.next == partition.high_watermark.offset
    last = cut(read.slices, 0, read.batches[0][2])[-1]
    behind = _seen(last, last.length, HEADER_BYTES)
    if not behind:  # it may be the last of its file
        following = await slices_of(partition, read.next, HEADER_BYTES)
        if following and following[0].position == 0 and following[0].file.path != last.file.path:
            behind = _seen(following[0], 0, HEADER_BYTES)
    return bool(behind) and read_header(behind).base_offset == read.next


async def _read_with_evidence(partition: Partition, offset: int, bytes_max: int) -> ReadBatches:
    slices, floor, end = await slices_around(partition, offset, min(bytes_max, READ_BYTES_MAX))

    def read() -> ReadBatches:
        found = read_all(partition, slices)
        begins, batches = standing(found, floor, offset, end.offset)
        return ReadBatches(cut(slices, begins, len(found)), batches, found[begins:])

    return await in_thread(read)


class _Chain:
    """Batches one behind the other. Their sizes and base offsets are under no checksum, and to go by one that the disk
    has spoiled would be to pass over records that are there: the first that cannot stand where it does ends it. The
    rest of a header is under the batch's checksum, which is compared where it claims to lack records."""

    __slots__ = ("_end", "_floor", "_has_gap", "_next", "batches")

    def __init__(self, offset: int, end: int) -> None:
        """`offset`: which the first has, or which is in no batch; `end`: of the log, which none reaches."""
        self.batches: list[Batch] = []
        self._next = offset
        self._floor = 0  # before it none begins
        self._end = end
        self._has_gap = False

    @property
    def is_certain(self) -> bool:
        """Each begins where the one before it ends: of two that agree none is wrong alone."""
        return len(self.batches) > 1 and not self._has_gap

    @property
    def is_alone(self) -> bool:
        """No other says that it ends where it says."""
        return len(self.batches) == 1 and not self._has_gap

    def add(self, header: BatchHeader, ends: int) -> bool:
        first, length, _, magic, _, attributes, delta, _, _, _, _, _, count = header
        last = first + delta
        if magic != MAGIC or length < _LENGTH_MIN or count < 0 or not self._floor <= first <= last < self._end:
            return False
        if first != self._next and (self.batches or not first < self._next <= last):
            self._has_gap = True
        self._floor = self._next = last + 1
        self.batches.append((first, last, ends, count == 0 or bool(attributes & CONTROL)))
        return True

    def take_back(self) -> None:
        """The last one: it is not what it says."""
        self.batches.pop()


def _check(partition: Partition, read: ReadBatches) -> None:
    """Where the log has something, there is a batch."""
    if read.slices and not read.batches:
        reason = f"{read.slices[0].file.path} is damaged at byte {read.slices[0].position}, or soon after it"
        if partition.is_leader:  # else it may have been cut meanwhile
            partition.note_damage(reason)
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


def _read_at_once(slices: list[FileSlice]) -> bytes | None:
    """What is little, and in memory, is read sooner than a thread could be asked for it."""
    if sum(one.length for one in slices) > _AT_ONCE_BYTES:
        return None
    found = []
    for one in slices:
        content = bytearray(one.length)
        try:
            if one.file.read_into(memoryview(content), one.position) != one.length:
                return None
        except OSError:
            return None  # the thread finds it too, and says so
        found.append(content)
    return b"".join(found)


def split(found: bytes) -> list[Batch]:
    """Of what was read before."""
    chain = _Chain(0, _NO_END)
    _split(found, chain)
    return chain.batches


def _split(found: bytes, chain: _Chain) -> None:
    at = 0
    while len(found) - at >= HEADER_BYTES and len(chain.batches) < BATCHES_MAX:
        header = read_header(found, at)
        begins, at = at, at + header.size_bytes
        if at > len(found) or not chain.add(header, at):
            break  # cut off by the limit, or damaged
        if leaves_out(header) and not has_good_crc(memoryview(found)[begins:at], header):
            chain.take_back()
            break


def _split_in_files(slices: list[FileSlice], chain: _Chain) -> bool:
    """The same, of what is in memory, and the headers alone are read. False if it is not there any more."""
    begins = 0  # of the slice, in all of them
    for one in slices:
        at, seen, seen_from = 0, b"", 0
        look_bytes = _LOOK_BYTES
        while one.length - at >= HEADER_BYTES and len(chain.batches) < BATCHES_MAX:
            if at + HEADER_BYTES > seen_from + len(seen):
                seen, seen_from = _seen(one, at, min(look_bytes, one.length - at)), at
                if len(seen) < HEADER_BYTES:
                    return False
            header = read_header(seen, at - seen_from)
            at += header.size_bytes
            if at > one.length or not chain.add(header, begins + at):
                return True  # cut off by the limit, or damaged
            if leaves_out(header):
                first = at - header.size_bytes
                is_whole = at <= seen_from + len(seen)
                batch = seen[first - seen_from : at - seen_from] if is_whole else _seen(one, first, header.size_bytes)
                if not batch or not has_good_crc(batch, header):
                    chain.take_back()
                    return bool(batch)
            look_bytes = _LOOK_BYTES if header.size_bytes < _LOOK_BYTES else HEADER_BYTES
        begins += one.length
    return True


def _seen(one: FileSlice, at: int, length: int) -> bytes:
    """Nothing if the device would have to be asked, or says that it cannot."""
    seen = bytearray(length)
    try:
        count = one.file.read_into(memoryview(seen), one.position + at)
    except OSError:
        return b""
    return bytes(seen) if count == length else b""


def cut(slices: list[FileSlice], begin: int, end: int) -> list[FileSlice]:
    """From there to there of what lies in all of them together."""
    found = []
    for one in slices:
        first, last = max(begin, 0), min(end, one.length)
        if first < last:
            found.append(FileSlice(one.file, one.position + first, last - first))
        begin, end = begin - one.length, end - one.length
    return found
