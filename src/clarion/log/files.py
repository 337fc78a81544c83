"""The open files and loaded indexes of all logs of a broker, bounded.

Segments open their file here and keep the handle until the cache asks for it back. The least recently used goes first
(second chance: a segment only sets its `touched` flag when it is used, so a use costs nothing). Letting go of a handle
closes it only when no slice and no flush in flight holds it: the operating system's file lives as long as its holders.

A file with unsynced bytes stays open. The kernel writes them back whenever it likes, and tells an error only to the
descriptors that are open then: the sync of a descriptor that was opened later would report nothing. Where files with
unsynced bytes are all there is, their logs are asked for a flush, and the cache grows beyond its limit meanwhile.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import Final, Protocol

from clarion.world import Disk, DiskFile

_TRIES_MAX: Final = 64  # when all are dirty, a search through all of them would cost more than it saves
_BEYOND_MIN: Final = 64  # files over the limit, while flushes are on their way: four turns of the group commit


class Holder(Protocol):
    """A segment that keeps a file open or an index in memory."""

    touched: bool

    @property
    def is_dirty(self) -> bool:
        """Whether it has bytes that were not synced yet."""
        ...

    def flush_soon(self) -> None:
        """Its bytes are to be synced, so that it can let go."""
        ...

    def let_go(self) -> None:
        """Drop the handle and the indexes; they can be had again."""
        ...

    def let_go_of_indexes(self) -> None: ...


class FileCache:
    def __init__(self, disk: Disk, limit: int = 512, index_bytes_max: int = 32 << 20) -> None:
        """`limit`: half of the 1,024 descriptors that a process may have at least; the rest is for sockets.

        `index_bytes_max`: the indexes of six full segments of 1 GB; a reader uses one at a time.
        """
        self._disk = disk
        self._limit = limit
        self._dirty_max = limit + max(_BEYOND_MIN, limit // 2)
        self._index_bytes_max = index_bytes_max
        self._holders: OrderedDict[Holder, int] = OrderedDict()
        self._index_bytes = 0

    @property
    def open_count(self) -> int:
        """How many holders have something open or loaded."""
        return len(self._holders)

    def open(self, holder: Holder, path: str, *, create: bool = False) -> DiskFile:
        """OSError, as from the operating system without a free descriptor, while too many files wait for a flush."""
        if len(self._holders) >= self._limit:
            self._evict(holder)
            if len(self._holders) >= self._dirty_max:
                raise OSError(errno.EMFILE, f"{len(self._holders)} files wait for a flush before one can be closed")
        file = self._disk.open(path, create=create)
        self._holders.setdefault(holder, 0)
        return file

    def adopt(self, holder: Holder) -> None:
        """`holder` has taken over a file that another one opened."""
        self._holders.setdefault(holder, 0)

    def hold_index(self, holder: Holder, size: int) -> None:
        """`holder` has loaded an index of `size` bytes."""
        self._holders[holder] = self._holders.get(holder, 0) + size
        self._index_bytes += size
        if self._index_bytes > self._index_bytes_max:
            self._shed_indexes(holder)

    def forget(self, holder: Holder) -> None:
        """The holder let go by itself: it was deleted or its log was closed."""
        self._index_bytes -= self._holders.pop(holder, 0)

    def trim(self) -> None:
        """After a flush: what was beyond the limit only because it waited for it goes."""
        if len(self._holders) > self._limit:
            self._evict(None)

    def _evict(self, newest: Holder | None) -> None:
        """Take back from the least recently used until there is room for the newest."""
        tries = min(2 * len(self._holders), _TRIES_MAX)
        dirty: list[Holder] = []
        for _ in range(tries):
            if len(self._holders) < self._limit:
                return
            holder, size = self._holders.popitem(last=False)
            self._holders[holder] = size
            if holder.is_dirty:
                dirty.append(holder)
            elif holder is newest or (holder.touched and len(self._holders) == self._limit):
                holder.touched = False  # a second chance, as long as nobody is beyond the limit
            else:
                self.forget(holder)
                holder.let_go()
        for holder in dirty:
            holder.flush_soon()

    def _shed_indexes(self, newest: Holder) -> None:
        for _ in range(len(self._holders)):
            if self._index_bytes <= self._index_bytes_max:
                return
            holder, size = self._holders.popitem(last=False)
            self._holders[holder] = size
            if holder is newest or not size:
                continue
            if holder.is_dirty:
                self._holders[holder] = 0
                self._index_bytes -= size
                holder.let_go_of_indexes()
            else:
                self.forget(holder)
                holder.let_go()
