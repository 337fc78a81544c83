"""Where the batches end that are not committed yet: what turns a watermark's offset into a place in a file.

The offset alone is not enough for readers, who get slices of files up to there and never a part of a batch.
"""

from __future__ import annotations

from collections import deque

from clarion.model.ids import LogPosition


class Uncommitted:
    """The ends of batches, in order; the last one is the log's."""

    def __init__(self) -> None:
        self._ends: deque[LogPosition] = deque()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, end: LogPosition) -> None:
        if not self._ends or self._ends[-1] < end:
            self._ends.append(end)

    def last_end(self, offset: int, committed: LogPosition) -> LogPosition:
        """Where the last batch ends that lies before the offset whole; `committed` if none does."""
        found = committed
        for end in self._ends:
            if end.offset > offset:
                break
            found = end
        return found

    def forget(self, position: LogPosition) -> None:
        """What ends there or before is committed."""
        while self._ends and self._ends[0] <= position:
            self._ends.popleft()

    def cut(self, end: LogPosition) -> None:
        """The log has lost what lay behind its new end."""
        while self._ends and self._ends[-1] > end:
            self._ends.pop()
