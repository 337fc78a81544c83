"""A disk that can lose power, fill up and break: `world.Disk` in memory.

Every file has what the device holds and a list of writes that are still in the page cache; every folder the same for
names. `sync` and `sync_folder` move them over. `power_loss(rng)` returns the disk as it might be found afterwards: of
what was not synced any part may be there, in any order, cut at any sector; of names any subset.

    disk = SimDisk()
    disk.crash_at = 17            # the 17th operation raises PowerLoss and does not happen
    disk.fail(17, errno.EIO)      # … or raises OSError; a failed write leaves half of itself behind
    disk.operations               # what happened so far, for enumerating crash points
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

from clarion.world import Buffer, DiskFile

SECTOR = 512
T = TypeVar("T")


class PowerLoss(BaseException):
    """The machine is off. Nobody can catch this and go on."""


class Operation(NamedTuple):
    number: int
    kind: str
    path: str


@dataclass
class Inode:
    device: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (position, data) or (new size, None)
    content: bytearray = field(default_factory=bytearray)  # as everybody sees it
    lost_writebacks: int = 0

    def write(self, position: int, data: bytes) -> None:
        self.pending.append((position, data))
        put(self.content, position, data)

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        put(self.content, size, None)

    def sync(self) -> None:
        # Not `content`: what a failed sync dropped stays dropped, however often it is tried again.
        survivor = bytearray(self.device)
        for position, data in self.pending:
            put(survivor, position, data)
        self.device, self.pending = bytes(survivor), []

    def drop_pending(self) -> None:
        self.pending = []


@dataclass
class Directory:
    device: dict[str, Inode | Directory] = field(default_factory=dict)
    pending: list[tuple[str, str, Inode | Directory | None]] = field(default_factory=list)  # (gone name, name, what)
    entries: dict[str, Inode | Directory] = field(default_factory=dict)

    def change(self, gone: str, name: str, what: Inode | Directory | None) -> None:
        self.pending.append((gone, name, what))
        relink(self.entries, gone, name, what)

    def sync(self) -> None:
        for change in self.pending:
            relink(self.device, *change)
        self.pending = []


class SimDisk:
    def __init__(self) -> None:
        self.root = Directory()
        self.operations: list[Operation] = []
        self.crash_at: int | None = None
        self.is_full = False
        self.refuses: Callable[[Operation], bool] = lambda _: False  # what fails every time, until it is healed
        self.written_ms = 1 << 60  # of every file: the machine's clock does not reach the device
        self._faults: dict[int, int] = {}
        self._fault_rules: list[tuple[Callable[[Operation], bool], int]] = []
        self._read_rules: list[Callable[[str], bool]] = []

    # Faults

    def fail(self, number: int, code: int) -> None:
        """The operation with this number fails."""
        self._faults[number] = code

    def fail_when(self, applies: Callable[[Operation], bool], code: int) -> None:
        """The next operation of which this is true fails."""
        self._fault_rules.append((applies, code))

    def fail_read_when(self, applies: Callable[[str], bool]) -> None:
        """The next read of a file of which this is true fails."""
        self._read_rules.append(applies)

    def files(self) -> list[str]:
        """Every file, by its path."""
        return sorted(_files("", self.root))

    def content(self, path: str) -> bytes:
        """As a process would read it."""
        return bytes(self._inode(path).content)

    def flip_bit(self, path: str, bit: int) -> None:
        """The device changes one bit, in what it holds and in what everybody sees."""
        inode = self._inode(path)
        device = bytearray(inode.device)
        for content in (device, inode.content):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << bit % 8
        inode.device = bytes(device)

    def lose_tail(self, path: str, size: int) -> None:
        """The device has lost all of a file but its beginning, synced or not."""
        inode = self._inode(path)
        inode.device, inode.pending = inode.device[:size], []
        del inode.content[size:]

    def lose_writeback(self, path: str) -> None:
        """The kernel fails to write the file's pages back by itself. Only who has it open now will hear of that."""
        inode = self._inode(path)
        inode.drop_pending()
        inode.lost_writebacks += 1

    def heal(self) -> None:
        """No fault is left that has not happened yet."""
        self.refuses = lambda _: False
        self._read_rules.clear()
        self.is_full = False
        self.crash_at = None
        self._faults.clear()
        self._fault_rules.clear()

    def power_loss(self, rng: random.Random | None = None) -> SimDisk:
        """What is found afterwards. Without a generator: exactly what was synced."""
        after = SimDisk()
        after.root = _survivor(self.root, rng, {})
        return after

    # Disk

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        folder, name = self._folder_of(path)
        found = folder.entries.get(name)
        if found is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.happen("create", path)
            found = Inode()
            folder.change("", name, found)
        assert isinstance(found, Inode), f"{path} is a folder"
        return SimFile(self, path, found)

    def names(self, folder: str) -> list[str]:
        return sorted(self._directory(folder).entries)

    def exists(self, path: str) -> bool:
        try:
            folder, name = self._folder_of(path)
        except FileNotFoundError:
            return False
        return not name or name in folder.entries

    def size(self, path: str) -> int:
        return len(self._inode(path).content)

    def modified_ms(self, path: str) -> int:
        self._inode(path)
        return self.written_ms

    def make_folder(self, path: str) -> None:
        at = self.root
        for name in _parts(path):
            found = at.entries.get(name)
            if found is None:
                self.happen("mkdir", path)
                found = Directory()
                at.change("", name, found)
            assert isinstance(found, Directory), f"{path} is a file"
            at = found

    def remove(self, path: str) -> None:
        self._inode(path)
        self.happen("remove", path)
        folder, name = self._folder_of(path)
        folder.change(name, "", None)

    def remove_folder(self, path: str) -> None:
        self._directory(path)
        self.happen("rmdir", path)
        folder, name = self._folder_of(path)
        folder.change(name, "", None)

    def rename(self, old: str, new: str) -> None:
        folder, name = self._folder_of(old)
        target, new_name = self._folder_of(new)
        if name not in folder.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        assert folder is target, "nobody moves files between folders"
        self.happen("rename", new)
        folder.change(name, new_name, folder.entries[name])

    def sync_folder(self, path: str) -> None:
        self.happen("sync_folder", path)
        self._directory(path).sync()

    def free_bytes(self, path: str) -> int:
        return 0 if self.is_full else 1 << 40

    def total_bytes(self, path: str) -> int:
        return 1 << 40

    # Inside

    def happen(self, kind: str, path: str) -> None:
        """Every change goes through here, before it happens."""
        operation = Operation(len(self.operations), kind, path)
        if operation.number == self.crash_at:
            raise PowerLoss
        self.operations.append(operation)
        code = self._faults.pop(operation.number, None)
        for rule in self._fault_rules:
            if code is None and rule[0](operation):
                code = rule[1]
                self._fault_rules.remove(rule)
                break
        if code is None and self.refuses(operation):
            code = errno.EIO
        if code is None and self.is_full and kind in ("write", "create", "mkdir"):
            code = errno.ENOSPC
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def check_read(self, path: str) -> None:
        """Reads are no operations: nothing is left of them that a crash could tear."""
        for rule in self._read_rules:
            if rule(path):
                self._read_rules.remove(rule)
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _folder_of(self, path: str) -> tuple[Directory, str]:
        parts = _parts(path)
        return (self._at(parts[:-1], path), parts[-1]) if parts else (self.root, "")

    def _directory(self, path: str) -> Directory:
        return self._at(_parts(path), path)

    def _at(self, parts: tuple[str, ...], path: str) -> Directory:
        at = self.root
        for name in parts:
            found = at.entries.get(name)
            if not isinstance(found, Directory):
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            at = found
        return at

    def _inode(self, path: str) -> Inode:
        folder, name = self._folder_of(path)
        found = folder.entries.get(name)
        if not isinstance(found, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return found


class SimFile:
    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._lost_before = inode.lost_writebacks

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(buffers)
        try:
            self._disk.happen("write", self.path)
        except OSError:
            self._inode.write(position, data[: len(data) // 2])
            raise
        self._inode.write(position, data)

    def read(self, length: int, position: int) -> bytes:
        self._disk.check_read(self.path)
        return bytes(self._inode.content[position : position + length])

    def read_into(self, view: memoryview, position: int) -> int | None:
        data = self.read(len(view), position)
        view[: len(data)] = data
        return len(data)

    def is_cached(self, length: int, position: int) -> bool:
        return False

    def size(self) -> int:
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        if size != len(self._inode.content):
            self._disk.happen("truncate", self.path)
            self._inode.truncate(size)

    def sync(self) -> None:
        try:
            self._disk.happen("sync", self.path)
            if self._lost_before != self._inode.lost_writebacks:
                self._lost_before = self._inode.lost_writebacks
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        except OSError:
            self._inode.drop_pending()  # as Linux does: the pages count as clean, and are gone
            raise
        self._inode.sync()

    def close(self) -> None: ...

    def fileno(self) -> int | None:
        return None


def put(content: bytearray, position: int, data: bytes | None) -> None:
    """Write data at a position, or set the size; a hole is full of zeros."""
    if len(content) < position:
        content += bytes(position - len(content))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def relink(names: dict[str, Inode | Directory], gone: str, name: str, what: Inode | Directory | None) -> None:
    if gone:
        names.pop(gone, None)
    if what is not None:
        names[name] = what


def _survivor(folder: Directory, rng: random.Random | None, seen: dict[int, Inode]) -> Directory:
    names = dict(folder.device)
    for change in _chosen(folder.pending, rng):
        relink(names, *change)
    after = Directory()
    for name, found in names.items():
        if isinstance(found, Directory):
            after.entries[name] = _survivor(found, rng, seen)
        else:
            after.entries[name] = seen.setdefault(id(found), _surviving_file(found, rng))
    after.device = dict(after.entries)
    return after


def _surviving_file(inode: Inode, rng: random.Random | None) -> Inode:
    content = bytearray(inode.device)
    pieces = [piece for change in inode.pending for piece in _sectors(*change)]
    for position, data in _chosen(pieces, rng):
        put(content, position, data)
    return Inode(bytes(content), [], content)


def _sectors(position: int, data: bytes | None) -> list[tuple[int, bytes | None]]:
    """One write as the device sees it: cut where sectors end."""
    if data is None:
        return [(position, None)]
    cuts = [0, *range(SECTOR - position % SECTOR, len(data), SECTOR), len(data)]
    return [(position + a, data[a:b]) for a, b in pairwise(cuts) if b > a]


def _chosen(pending: list[T], rng: random.Random | None) -> list[T]:
    """What of it reached the device: nothing, all, a beginning, or any part."""
    if rng is None:
        return []
    match rng.randrange(4):
        case 0:
            return []
        case 1:
            return pending
        case 2:
            return pending[: rng.randrange(len(pending) + 1)]
        case _:
            return [one for one in pending if rng.random() < 0.6]


def _files(path: str, folder: Directory) -> Iterator[str]:
    for name, found in folder.entries.items():
        if isinstance(found, Directory):
            yield from _files(f"{path}/{name}", found)
        else:
            yield f"{path}/{name}"


@lru_cache(10_000)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)
