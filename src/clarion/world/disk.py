"""Files, as the log needs them: positioned writes and reads, data sync, rename, folder sync.

The real disk is below; the simulated one (tests/sim) keeps a page cache that a crash may lose, tear or reorder.
An error of the operating system passes through as OSError: the caller alone knows what it means.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final, Protocol

from clarion.world import page_cache

Buffer = bytes | bytearray | memoryview

# Errors that pass by themselves: no room on the device, and no free descriptor.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


class DiskFile(Protocol):
    """An open file. It closes itself when nobody holds it any longer, so that a reader in flight can share it."""

    path: str

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one after the other at `position`. On OSError any prefix may have been written."""
        ...

    def read(self, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file. May block on the device."""
        ...

    def read_into(self, view: memoryview, position: int) -> int | None:
        """Fill a buffer, as far as the file goes: the count, or None where the device would have to be asked."""
        ...

    def is_cached(self, length: int, position: int) -> bool:
        """Whether all these bytes are known to be in memory, so that `sendfile` does not wait for the device."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when every byte written before the call, and the size, survive a power loss."""
        ...

    def close(self) -> None: ...

    def fileno(self) -> int | None:
        """The descriptor for `sendfile`, or None where there is none (simulation)."""
        ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. FileNotFoundError unless the file exists or `create`."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written to, by the wall clock."""
        ...

    def make_folder(self, path: str) -> None:
        """Make the folder and its parents; nothing happens where it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove a folder and everything in it."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomically, replacing `new`; durable after `sync_folder`."""
        ...

    def sync_folder(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system."""
        ...


def read_file(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Leave either the old content or the new one behind, whatever happens in between."""
    beside = path + ".tmp"
    write_lasting(disk, beside, data)
    disk.rename(beside, path)
    disk.sync_folder(os.path.dirname(path))


def write_lasting(disk: Disk, path: str, data: bytes) -> None:
    """Write a whole file. What is in it survives a power loss, its name does when the folder has been synced."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write([data], 0)
        file.sync()
    finally:
        file.close()


def make_lasting_folder(disk: Disk, path: str) -> None:
    """Make a folder and its parents, and have their names survive a power loss."""
    missing = []
    at = path
    while at and not disk.exists(at):
        missing.append(at)
        at = os.path.dirname(at)
    disk.make_folder(path)
    for made in reversed(missing):
        disk.sync_folder(os.path.dirname(made) or ".")


# Messages are their owner's alone: whoever else may read them is decided by the broker, not by the file system.
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700


def is_private(folder: str) -> bool:
    return not os.stat(folder).st_mode & 0o077


def make_private(folder: str) -> bool:
    """Close a folder to everybody but its owner, and with it all that is in it. False if that cannot or may not be."""
    if is_private(folder):
        return True
    if os.stat(folder).st_mode & stat.S_ISVTX:
        return False  # a place that is shared on purpose, as /tmp is
    try:
        os.chmod(folder, _PRIVATE_FOLDER)
    except PermissionError:
        return False
    return True


class RealDisk:
    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, _PRIVATE_FILE))

    def names(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_folder(self, path: str) -> None:
        os.makedirs(path, _PRIVATE_FOLDER, exist_ok=True)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        from shutil import rmtree  # with every format of archives behind it, so not before a topic is deleted

        rmtree(path)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def sync_folder(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize

    def total_bytes(self, path: str) -> int:
        room = os.statvfs(path)
        return room.f_blocks * room.f_frsize


_IOV_MAX = 1024  # Linux's limit for one pwritev
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_NO_NOWAIT_HERE: set[int] = set()  # devices whose file system refuses RWF_NOWAIT: there every read counts as cached

_PROBE: Final = memoryview(bytearray(1))


class RealFile:
    __slots__ = ("_device", "_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._device = -1

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        # One call does it all but when the disk is full, a signal arrives, or there are very many buffers.
        if len(buffers) == 1:
            total = len(buffers[0])
            written = os.pwrite(self._fd, buffers[0], position)
        else:
            total = sum(map(len, buffers))
            written = os.pwritev(self._fd, buffers[:_IOV_MAX], position)
        if written < total:
            self._write_rest(buffers, position, written)

    def _write_rest(self, buffers: Sequence[Buffer], position: int, written: int) -> None:
        rest = memoryview(b"".join(buffers))[written:]
        at = position + written
        while rest:
            count = os.pwrite(self._fd, rest, at)
            rest = rest[count:]
            at += count

    def read(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (more := os.pread(self._fd, length - got, position + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def read_into(self, view: memoryview, position: int) -> int | None:
        if _NOWAIT is None or (_NO_NOWAIT_HERE and self._device_number() in _NO_NOWAIT_HERE):
            return os.preadv(self._fd, [view], position)
        try:
            count = os.preadv(self._fd, [view], position, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            _NO_NOWAIT_HERE.add(self._device_number())
            return os.preadv(self._fd, [view], position)
        if count < len(view) and position + count < self.size():
            return None  # a short read here is the edge of what is cached, not the end of the file
        return count

    def is_cached(self, length: int, position: int) -> bool:
        # The last byte is read because the kernel's count includes pages that it is still reading ahead.
        if self.read_into(_PROBE, position + length - 1) != 1:
            return False
        if _NO_NOWAIT_HERE and self._device_number() in _NO_NOWAIT_HERE:
            return True
        return page_cache.has(self._fd, position, length)

    def _device_number(self) -> int:
        if self._device < 0:
            self._device = os.fstat(self._fd).st_dev
        return self._device

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd
