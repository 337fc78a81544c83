"""A file of nothing, which is given up so that others can be deleted.

The reserve (`room`) keeps this broker's messages from filling the disk, but others may fill it to the last byte. Then
nothing can be deleted through the broker any more, since what is deleted is noted first, and notes need a little room.
So as long as there is plenty this file takes a little; whoever is about to make room and finds none for his note gives
it up and tries again.
"""

from __future__ import annotations

from typing import Final

from clarion.world import Disk, event_log, replace_file

log = event_log("log")

NAME: Final = "ballast"
BYTES: Final = 1 << 20  # the store's note of a deleted topic takes 40 KB, and the start of every partition 30 bytes
_SHARE_OF_RESERVE: Final = 2  # no more than this part of it, on a small disk: checkpoints may take some of it first


class Ballast:
    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._path = f"{data_dir}/{NAME}"

    def make(self, free_bytes: int, reserve_bytes: int) -> None:
        """Unless it is there, or would take from the reserve. Blocks."""
        size = min(BYTES, reserve_bytes // _SHARE_OF_RESERVE)
        if not size or free_bytes < reserve_bytes + size or self._disk.exists(self._path):
            return
        try:
            replace_file(self._disk, self._path, bytes(size))
        except OSError:  # others have filled the disk since it was looked at: a part of it is of no use to anybody
            self._remove(self._path + ".tmp")
            raise

    def give_up(self) -> bool:
        """Whether that made room. Blocks."""
        if not self._remove(self._path):
            return False
        log.warning("ballast_given_up", file=self._path, reason="the disk has no room to note what is deleted")
        return True

    def _remove(self, path: str) -> bool:
        if not self._disk.exists(path):
            return False
        self._disk.remove(path)
        return True
