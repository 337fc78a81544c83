"""Offsets that no batch of a log has: compaction leaves such gaps, and so does a crash that has cost what was flushed.

So does, or seems to, a disk that spoils a header: base offsets and lengths are under no checksum. A batch whose length
is wrong swallows those behind it, and one whose base offset is wrong is not found where it was. Who takes such records
for absent has lost them, so a gap is believed only with evidence: the batches on both sides of it match their
checksums (none has swallowed another), and each begins where its own predecessor lets it, and ends where its successor
does. Of one thing that is spoiled this believes none. (Whether a topic is compacted now says nothing of its log.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from clarion.wire.batch import HEADER_BYTES, MAGIC, BatchHeader, has_good_crc, read_header

BATCHES_MAX: Final = 2_000  # looked at after a read, in a few milliseconds

Batch = tuple[int, int, int, bool]


class _Standing(NamedTuple):
    header: BatchHeader
    begins: int
    ends: int
    follows_gap: bool

    @property
    def last(self) -> int:
        return self.header.last_offset

    def batch(self, from_: int) -> Batch:
        header = self.header
        return header.base_offset, self.last, self.ends - from_, header.is_control or header.record_count == 0


def may_be(header: BatchHeader, floor: int, end: int) -> bool:
    """Whether a batch may begin with this, all of whose offsets are from `floor` on and before `end`."""
    return (
        header.magic == MAGIC
        and header.size_bytes >= HEADER_BYTES
        and header.record_count >= 0
        and floor <= header.base_offset <= header.last_offset < end
    )


def leaves_out(header: BatchHeader) -> bool:
    """Whether it says to have nothing for readers at some of its offsets: a marker, or what compaction has left."""
    return header.is_control or header.record_count != header.last_offset_delta + 1


def standing(found: bytes, floor: int, offset: int, end: int) -> tuple[int, list[Batch]]:
    """Of whole batches that begin before the one that holds the offset, and reach behind it: those from that one on of
    which it is certain that they stand where they say, and all that is between them is absent. Also where they begin.

    `floor`: before it none begins; `end`: of what is committed, if `found` reaches so far.
    """
    walk: list[_Standing] = []
    at, next_, wanted, is_followed = 0, floor, 0, True
    while len(found) - at >= HEADER_BYTES and wanted < BATCHES_MAX:
        header = read_header(found, at)
        ends = at + header.size_bytes
        is_followed = may_be(header, next_, end)
        if not is_followed or ends > len(found):
            break
        follows_gap = header.base_offset > next_ and header.last_offset >= offset
        if follows_gap and walk and not _is_good(found, walk[-1]):
            walk.pop()  # what it has swallowed seems to be the gap
            break
        one = _Standing(header, at, ends, follows_gap)
        if (follows_gap or leaves_out(header)) and not _is_good(found, one):
            break
        walk.append(one)
        wanted += header.last_offset >= offset
        at, next_, is_followed = ends, header.next_offset, False
    is_end = at == len(found) and (next_ == end or (wanted == 1 and next_ < end))
    if walk and walk[-1].follows_gap and not (is_followed or is_end):
        walk.pop()  # it says to be further on than what is behind it
    kept = [one for one in walk if one.last >= offset]
    begins = kept[0].begins if kept else 0
    return begins, [one.batch(begins) for one in kept]


def _is_good(found: bytes, one: _Standing) -> bool:
    return has_good_crc(memoryview(found)[one.begins : one.ends], one.header)
