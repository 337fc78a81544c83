"""Which leader epoch began at which offset, for one log (KIP-101).

Changes stay in memory until the log's next flush, roll or close writes them: what a crash loses stands in the batches
above the recovery point, and recovery reads it there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

UNKNOWN: Final = (-1, -1)


class LeaderEpochs:
    __slots__ = ("_next_offset", "changes", "entries")

    def __init__(self, entries: Iterable[tuple[int, int]], next_offset: Callable[[], int]) -> None:
        """`next_offset` asks for the log's end, where the latest epoch ends."""
        self.entries: list[tuple[int, int]] = list(entries)  # (epoch, start offset), both grow
        self._next_offset = next_offset
        self.changes = 0

    @property
    def latest(self) -> int:
        """-1 before the first."""
        return self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """The epoch begins at the offset. Nothing happens if it has begun before; what contradicts it is dropped."""
        assert epoch >= 0 <= start_offset, f"no epoch {epoch} begins at {start_offset}"
        entries = self.entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start_offset:
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((epoch, start_offset))
        self.changes += 1

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """The greatest known epoch up to this one, and where it ended; (-1, -1) for one not known yet, as in Kafka."""
        entries = self.entries
        if epoch < 0 or not entries or epoch > entries[-1][0]:
            return UNKNOWN
        number = bisect_right(entries, epoch, key=lambda entry: entry[0])
        end = entries[number][1] if number < len(entries) else self._next_offset()
        return (entries[number - 1][0] if number else epoch), end

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the offset was written; -1 if that is not known."""
        number = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[number - 1][0] if number else -1

    def truncate_to(self, offset: int) -> None:
        """Forget epochs that begin at the offset or behind it."""
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[1] < offset]
        self.changes += len(self.entries) != before

    def advance_start(self, offset: int) -> None:
        """Forget epochs that ended before the offset; the one in which it lies begins with it now."""
        number = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        if number and self.entries[number - 1][1] < offset:
            self.entries[:number] = [(self.entries[number - 1][0], offset)]
            self.changes += 1

    def clear(self) -> None:
        self.entries = []
        self.changes += 1
