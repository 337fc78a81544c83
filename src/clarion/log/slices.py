"""A range of bytes in a file that somebody is going to send."""

from __future__ import annotations

from typing import NamedTuple

from clarion.world import DiskFile


class FileSlice(NamedTuple):
    """Holding the slice keeps its file open, even when the segment is deleted or its handle is evicted meanwhile."""

    file: DiskFile
    position: int
    length: int

    def read(self) -> bytes:
        """All of it; may block on the device."""
        return self.file.read(self.length, self.position)
