"""Stands between the loop, which cuts a log, and the threads that flush it: both replace small files in its folder.

    thread   write and sync the new file beside the old one, under a name that nobody else uses    may take long
    thread   under the lock: look whether it is late by now; if not, give it its name
    loop     under the lock: say that all is late that was taken before now; then cut

So what was taken before a cut is in its place when the cut begins, which sees it then and sets it right, or never is.
The lock is held for a rename at most.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from clarion.world import Disk, write_lasting


class Fence:
    __slots__ = ("_number", "lock", "truncations")

    def __init__(self) -> None:
        self.lock = Lock()
        self.truncations = 0  # of the log
        self._number = 0

    def begin_cut(self) -> None:
        with self.lock:
            self.truncations += 1

    def write_beside(self, disk: Disk, path: str, data: bytes) -> str:
        """What may take the place of the file; `give_up` if it is not to. A start removes what a crash has left."""
        with self.lock:
            self._number += 1
            beside = f"{path}.{self._number}.tmp"
        try:
            write_lasting(disk, beside, data)
        except OSError:
            self.give_up(disk, beside)
            raise
        return beside

    def give_up(self, disk: Disk, beside: str) -> None:
        with suppress(OSError):
            disk.remove(beside)
