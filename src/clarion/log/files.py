"""The open files and loaded indexes of all logs of a broker, bounded.

Segments open their file here and keep the handle until the cache asks for it back. The least recently used goes first
(second chance: a segment only sets its `touched` flag when it is used, so a use costs nothing). Letting go of a handle
closes it only when no slice and no flush in flight holds it: the operating system's file lives as long as its holders.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

from clarion.world import Disk, DiskFile

_TRIES_MAX: Final = 64  # when all are dirty, a search through all of them would cost more than it saves


class Holder(Protocol):
    """A segment that keeps a file open or an index in memory."""

    touched: bool

    @property
    def is_dirty(self) -> bool:
        """Whether it has bytes that were not synced yet."""
        ...

    def let_go(self) -> None:
        """Drop the handle and the indexes; they can be had again."""
        ...


class FileCache:
    def __init__(self, disk: Disk, limit: int = 512, index_bytes_max: int = 32 << 20) -> None:
        """`limit`: half of the 1,024 descriptors that a process may have at least; the rest is for sockets.

        `index_bytes_max`: the indexes of six full segments of 1 GB; a reader uses one at a time.
        """
        self._disk = disk
        self._limit = limit
        self._index_bytes_max = index_bytes_max
        self._holders: OrderedDict[Holder, int] = OrderedDict()
        self._index_bytes = 0

    @property
    def open_count(self) -> int:
        """How many holders have something open or loaded."""
        return len(self._holders)

    def open(self, holder: Holder, path: str, *, create: bool = False) -> DiskFile:
        file = self._disk.open(path, create=create)
        self._holders.setdefault(holder, 0)
        if len(self._holders) > self._limit:
            self._evict(holder)
        return file

    def adopt(self, holder: Holder) -> None:
        """`holder` has taken over a file that another one opened."""
        self._holders.setdefault(holder, 0)

    def hold_index(self, holder: Holder, size: int) -> None:
        """`holder` has loaded an index of `size` bytes."""
        self._holders[holder] = self._holders.get(holder, 0) + size
        self._index_bytes += size
        while self._index_bytes > self._index_bytes_max and len(self._holders) > 1:
            self._evict(holder)

    def forget(self, holder: Holder) -> None:
        """The holder let go by itself: it was deleted or its log was closed."""
        self._index_bytes -= self._holders.pop(holder, 0)

    def _evict(self, newest: Holder) -> None:
        """Take back from the least recently used; from one with unsynced bytes only if all have some.

        A dirty file may be closed: the kernel keeps its pages, and its next sync opens it again.
        """
        victim = self._find_clean(newest) or next(holder for holder in self._holders if holder is not newest)
        self.forget(victim)
        victim.let_go()

    def _find_clean(self, newest: Holder) -> Holder | None:
        for _ in range(min(2 * len(self._holders), _TRIES_MAX)):
            holder, size = self._holders.popitem(last=False)
            self._holders[holder] = size
            if holder is newest or holder.is_dirty:
                continue
            if not holder.touched:
                return holder
            holder.touched = False
        return None
