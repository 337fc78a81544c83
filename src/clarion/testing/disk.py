"""A real disk with faults on order: full, broken, slow; and deaf once its broker has been killed.

It is a RealDisk, so the data directory is locked as ever. While no fault is set, every call goes straight through.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from typing import Final, Literal

from clarion.testing.errors import InjectedError
from clarion.testing.fault import Fault
from clarion.world import Buffer, DiskFile, RealDisk

Operation = Literal["read", "write", "sync"]

_LOOK_SECONDS: Final = 0.02  # how often a slow operation looks whether its broker is still alive


class DiskFault(Fault):
    """Asked before every operation: it may wait or raise. Of a write it may let a part through."""

    def before(self, operation: Operation, cut_off: threading.Event) -> None:
        """Raise InjectedError if the operation is to fail as a whole; wait no longer than the broker lives."""

    def room_for(self, size: int) -> int:
        """How many of these bytes may be written before the write fails."""
        return size


class FullDisk(DiskFault):
    def __init__(self, free_bytes: int) -> None:
        super().__init__("disk_full")
        self.free_bytes = free_bytes

    def room_for(self, size: int) -> int:
        room = min(size, self.free_bytes)
        self.free_bytes -= room
        if room < size:
            self.strike()
        return room


class BrokenDisk(DiskFault):
    def __init__(self, operation: Operation, times: int | None) -> None:
        super().__init__(f"disk_error({operation})", times=times)
        self._operation = operation

    def before(self, operation: Operation, cut_off: threading.Event) -> None:
        if operation == self._operation and self.strike():
            raise InjectedError(errno.EIO, f"Input/output error on {operation} (injected)")


class SlowDisk(DiskFault):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"slow_disk({seconds})")
        self._seconds = seconds
        self._over = threading.Event()

    def before(self, operation: Operation, cut_off: threading.Event) -> None:
        if operation == "read" or not self.strike():
            return
        end = time.monotonic() + self._seconds
        while (left := end - time.monotonic()) > 0 and not self._over.wait(min(left, _LOOK_SECONDS)):
            if cut_off.is_set():
                return

    def _let_go(self) -> None:
        self._over.set()


class DiskFaults:
    """The faults of one broker's disk, whatever lives it goes through."""

    def __init__(self) -> None:
        self.faults: tuple[DiskFault, ...] = ()

    def before(self, operation: Operation, cut_off: threading.Event) -> None:
        for fault in self.faults:
            fault.before(operation, cut_off)

    def room_for(self, size: int) -> int:
        for fault in self.faults:
            size = min(size, fault.room_for(size))
        return size

    @property
    def free_bytes(self) -> int | None:
        return min((fault.free_bytes for fault in self.faults if isinstance(fault, FullDisk)), default=None)


class FaultyDisk(RealDisk):
    """The disk of one life of a broker."""

    def __init__(self, faults: DiskFaults) -> None:
        self._faults = faults
        self._cut_off = threading.Event()

    def cut_off(self) -> None:
        """From now on this broker changes nothing, as if its process were dead."""
        self._cut_off.set()

    def before(self, operation: Operation) -> None:
        if self._faults.faults:
            self._faults.before(operation, self._cut_off)

    def check(self) -> None:
        if self._cut_off.is_set():
            raise InjectedError(errno.EIO, "this broker has been killed")

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        self.check()
        if create and not self.exists(path):
            self._need_room()
        return FaultyFile(self, self._faults, super().open(path, create=create))

    def make_folder(self, path: str) -> None:
        self.check()
        if not self.exists(path):
            self._need_room()
        super().make_folder(path)

    def remove(self, path: str) -> None:
        self.check()
        super().remove(path)

    def remove_folder(self, path: str) -> None:
        self.check()
        super().remove_folder(path)

    def rename(self, old: str, new: str) -> None:
        self.check()
        super().rename(old, new)

    def sync_folder(self, path: str) -> None:
        self.before("sync")
        self.check()
        super().sync_folder(path)

    def free_bytes(self, path: str) -> int:
        free = self._faults.free_bytes
        return super().free_bytes(path) if free is None else free

    def _need_room(self) -> None:
        """A new name needs a block; how much is the file system's secret, so one byte stands for it."""
        if self._faults.faults and not self._faults.room_for(1):
            raise _no_room()


class FaultyFile:
    """Implements `world.DiskFile`."""

    __slots__ = ("_disk", "_faults", "_file", "path")

    def __init__(self, disk: FaultyDisk, faults: DiskFaults, file: DiskFile) -> None:
        self._disk = disk
        self._faults = faults
        self._file = file
        self.path = file.path

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.before("write")
        self._disk.check()
        if self._faults.faults:
            size = sum(map(len, buffers))
            room = self._faults.room_for(size)
            if room < size:
                # As on a real disk: what still fitted is there, and the reader after a crash must cope.
                self._file.write([memoryview(b"".join(buffers))[:room]], position)
                raise _no_room()
        self._file.write(buffers, position)

    def read(self, length: int, position: int) -> bytes:
        self._disk.before("read")
        return self._file.read(length, position)

    def read_into(self, view: memoryview, position: int) -> int | None:
        return None if self._faults.faults else self._file.read_into(view, position)

    def is_cached(self, length: int, position: int) -> bool:
        return not self._faults.faults and self._file.is_cached(length, position)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._disk.check()
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.before("sync")
        self._disk.check()
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def fileno(self) -> int | None:
        return self._file.fileno()


def _no_room() -> InjectedError:
    return InjectedError(errno.ENOSPC, "No space left on device (injected)")
