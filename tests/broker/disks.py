"""A real disk whose flushes a story may hold, and whose files it may break."""

import os
import threading
from collections.abc import Callable, Sequence

from clarion.world import Buffer, DiskFile, RealDisk
from clarion.world.disk import RealFile

Trouble = Callable[[str], OSError | None]  # from a path to the error that strikes there


class StoryDisk(RealDisk):
    def __init__(self) -> None:
        self._may_sync = threading.Event()
        self._may_sync.set()
        self.on_sync: Trouble = lambda path: None
        self.on_write: Trouble = lambda path: None
        self.on_open: Trouble = lambda path: None
        self.on_read: Trouble = lambda path: None
        self.held = 0  # flushes that wait now

    def hold_flushes(self) -> None:
        self._may_sync.clear()

    def let_flushes_go(self) -> None:
        self._may_sync.set()

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        _strike(self.on_open, path)
        file = StoryFile(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))
        file.disk = self
        return file

    def wait_for_leave(self, path: str) -> None:
        self.held += 1
        assert self._may_sync.wait(20), "a story forgot to let flushes go"
        self.held -= 1
        _strike(self.on_sync, path)


class StoryFile(RealFile):
    disk: StoryDisk

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        _strike(self.disk.on_write, self.path)
        super().write(buffers, position)

    def read(self, length: int, position: int) -> bytes:
        _strike(self.disk.on_read, self.path)
        return super().read(length, position)

    def read_into(self, view: memoryview, position: int) -> int | None:
        """What cannot be read is not in memory either."""
        return super().read_into(view, position) if self.disk.on_read(self.path) is None else None

    def sync(self) -> None:
        if self.path.endswith(".log"):
            self.disk.wait_for_leave(self.path)
        super().sync()


def _strike(trouble: Trouble, path: str) -> None:
    error = trouble(path)
    if error is not None:
        raise error
