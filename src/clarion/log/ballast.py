"""A file of nothing, which is given up so that others can be deleted.

The reserve (`room`) keeps this broker's messages from filling the disk, but others may fill it to the last byte. Then
nothing can be deleted through the broker any more, since what is deleted is noted first, and notes need a little room.
So as long as there is plenty this file takes a little; whoever is about to make room and finds none for his note gives
it up and tries again.
"""

from __future__ import annotations

from typing import Final

from clarion.world import Disk, event_log

log = event_log("log")

NAME: Final = "ballast"
BYTES: Final = 1 << 20  # the store's note of a deleted topic takes 40 KB, and the start of every partition 30 bytes
_SHARE_OF_RESERVE: Final = 4  # no more than this part of it, on a small disk


class Ballast:
    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._path = f"{data_dir}/{NAME}"
        self._is_there: bool | None = None  # not looked for yet

    def make(self, free_bytes: int, reserve_bytes: int) -> None:
        """Unless it is there, or would take from the reserve. Blocks."""
        if self._is_there is None:
            self._is_there = self._disk.exists(self._path)
        size = min(BYTES, reserve_bytes // _SHARE_OF_RESERVE)
        if self._is_there or not size or free_bytes < reserve_bytes + size:
            return
        file = self._disk.open(self._path, create=True)
        try:
            file.write((bytes(size),), 0)
            file.sync()  # some file systems give the room only now
        finally:
            file.close()
        self._is_there = True

    def give_up(self) -> bool:
        """Whether that made room. Blocks."""
        if self._is_there is None:
            self._is_there = self._disk.exists(self._path)
        if not self._is_there:
            return False
        self._disk.remove(self._path)
        self._is_there = False
        log.warning("ballast_given_up", file=self._path, reason="the disk has no room to note what is deleted")
        return True
