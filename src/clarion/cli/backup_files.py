"""A data directory copied while its broker runs, so that the copy is one that a broker could have left by a crash.

No word with the broker is needed, for what it keeps on disk is made to be found at any moment:

- A segment that is full never changes. All files of a partition are opened first, then looked for again: if compaction
  or retention has put others in their place, all are opened anew. What is open stays readable.
- The segment that is being written is copied up to its last whole batch.
- The checkpoint of offsets is copied before the logs it speaks of, so nothing it vouches for is missing; the places
  of groups and queues before the messages they point at.
- Topics may come and go meanwhile. What is copied belongs to the topics of the registry as it was copied: of one that
  was deleted since, and made again under its name, the new messages stay behind.
- The registry is two files, and so is the catalog of subscriptions: a database that changes only when its write-ahead
  log is moved into it, and that log, which only grows. Where neither was begun anew while they were read, they belong
  together, and SQLite makes one of them.

When the broker was last alive goes along: of a backup that is restored a month later, nothing is deleted by time for a
day, as after a month without a broker. So do indexes of full segments; all others are built again at the first start.
Nothing vouches for a clean end, so that start checks the tails as after a crash.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from clarion.catalog.access import CATALOG_FILE
from clarion.cli.errors import CliError
from clarion.cluster.schema import TOPICS, read_topic
from clarion.log.checkpoints import PARTITION_OFFSETS
from clarion.log.clock_trust import CLOCK_FILE
from clarion.log.folder import EPOCHS, INDEX, LOG, METADATA, TIME_INDEX, parse_metadata
from clarion.log.producer_snapshot import SNAPSHOT
from clarion.model.ids import TopicId
from clarion.model.names import COORDINATED_TOPICS
from clarion.wire.batch import HEADER_BYTES, has_good_crc, read_header
from clarion.wire.checksum import crc32c

REGISTRY: Final = "registry.db"
IDENTITY: Final = "meta.properties"
_WAL: Final = "-wal"
_WAL_HEADER_BYTES: Final = 32  # its salts change whenever the log begins anew
_ATTEMPTS: Final = 100  # compaction and a checkpoint of the registry are over in milliseconds
_PAUSE_SECONDS: Final = 0.05
_CHUNK_BYTES: Final = 1 << 20
_SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, SNAPSHOT)


class Copied(NamedTuple):
    """A file of a backup, relative to its folder."""

    path: str
    size: int
    crc32c: int


def copy_data_dir(source: Path, target: Path) -> Iterator[Copied]:
    """Every file, once it is in the target. Nothing is synced yet."""
    yield from _copy_whole(source, target, IDENTITY)
    for name in (CLOCK_FILE, PARTITION_OFFSETS):
        if (source / name).exists():
            yield from _copy_whole(source, target, name)
    yield copy_registry(source / REGISTRY, target / REGISTRY, target)
    if (source / CATALOG_FILE).exists():
        yield copy_registry(source / CATALOG_FILE, target / CATALOG_FILE, target)
    topics = _topics_in(target / REGISTRY)
    for topic, folder in sorted(_partition_folders(source), key=lambda each: (each[0] not in COORDINATED_TOPICS, each)):
        yield from copy_partition(source / folder, target / folder, target, topics.get(topic))


def copy_file(source: int, target: Path, size: int) -> int:
    """The first `size` bytes; their checksum."""
    crc, at = 0, 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        while at < size and (chunk := os.pread(source, min(_CHUNK_BYTES, size - at), at)):
            file.write(chunk)
            crc = crc32c(chunk, crc)
            at += len(chunk)
    if at < size:
        raise CliError(f"{target.name} became shorter while it was read")
    return crc


def copy_partition(source: Path, target: Path, root: Path, topic_id: TopicId | None = None) -> Iterator[Copied]:
    """Nothing for a partition that was deleted meanwhile. `topic_id`: of the topic with this name, if there is one."""
    with ExitStack() as opened:
        files = _opened(source, opened)
        if topic_id is not None and METADATA in files and _id_in(files[METADATA]) not in (None, topic_id):
            return  # a broker would not start with another topic's messages
        target.mkdir(mode=0o700)
        active = max((name for name in files if name.endswith(LOG)), default="")
        for name, descriptor in files.items():
            is_last = name[: -len(Path(name).suffix)] == active.removesuffix(LOG)
            if is_last and name.endswith((INDEX, TIME_INDEX)):
                continue  # may be ahead of what we copy
            size = whole_batches(descriptor) if name == active else os.fstat(descriptor).st_size
            crc = copy_file(descriptor, target / name, size)
            yield Copied(str((target / name).relative_to(root)), size, crc)


def whole_batches(descriptor: int) -> int:
    """Where the last batch ends that is there whole."""
    size, at, last_at = os.fstat(descriptor).st_size, 0, 0
    while at + HEADER_BYTES <= size:
        length = read_header(os.pread(descriptor, HEADER_BYTES, at)).size_bytes
        if length < HEADER_BYTES or at + length > size:
            break
        last_at, at = at, at + length
    last = os.pread(descriptor, at - last_at, last_at)
    return at if not last or has_good_crc(last, read_header(last)) else last_at


def copy_registry(source: Path, target: Path, root: Path) -> Copied:
    _settled(lambda: _copy_registry_once(source, target), f"{source} changes all the time")
    connection = sqlite3.connect(target, isolation_level=None)
    try:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise CliError(f"{source} is damaged: {error}") from error
    finally:
        connection.close()
    if verdict != "ok":
        raise CliError(f"{source} is damaged: {verdict}")
    content = target.read_bytes()
    return Copied(str(target.relative_to(root)), len(content), crc32c(content))


def _topics_in(registry: Path) -> dict[str, TopicId]:
    connection = sqlite3.connect(registry, isolation_level=None)
    try:
        entries = connection.execute("SELECT key, value FROM entries").fetchall()
    finally:
        connection.close()
    named = [(bytes(key).decode(), bytes(value)) for key, value in entries]
    return {key.removeprefix(TOPICS): read_topic(value).id for key, value in named if key.startswith(TOPICS)}


def _id_in(descriptor: int) -> TopicId | None:
    """None if it cannot be read: then the broker does without."""
    try:
        return parse_metadata(os.pread(descriptor, _CHUNK_BYTES, 0))
    except ValueError:
        return None


def _copy_registry_once(source: Path, target: Path) -> bool:
    wal = source.with_name(source.name + _WAL)
    before, head_before = source.read_bytes(), _read(wal, _WAL_HEADER_BYTES)
    content = _read(wal)
    head_after, after = _read(wal, _WAL_HEADER_BYTES), source.read_bytes()
    if before != after or not head_before == head_after == content[:_WAL_HEADER_BYTES]:
        return False
    for path, data in ((target, before), (target.with_name(target.name + _WAL), content)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
    return True


def _read(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        return b""


def _copy_whole(source: Path, target: Path, name: str) -> Iterator[Copied]:
    """A file that is replaced as a whole, never changed."""
    with (source / name).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        yield Copied(name, size, copy_file(file.fileno(), target / name, size))


def _partition_folders(data_dir: Path) -> list[tuple[str, str]]:
    """Each with its topic."""
    names = [each.name for each in data_dir.iterdir() if (each / METADATA).exists()]
    return [(name.rpartition("-")[0], name) for name in names]


def _opened(folder: Path, stack: ExitStack) -> dict[str, int]:
    """Files that belong together, open; by name."""
    found: dict[str, int] = {}

    def attempt() -> bool:
        found.clear()
        with ExitStack() as trial:
            if not _open_all(folder, trial, found):
                return False
            stack.enter_context(trial.pop_all())
        return True

    _settled(attempt, f"the files of {folder} change all the time")
    return found


def _open_all(folder: Path, stack: ExitStack, found: dict[str, int]) -> bool:
    try:
        names = _wanted(folder)
        if names is None:
            return False
        for name in names:
            descriptor = os.open(folder / name, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            found[name] = descriptor
        again = _wanted(folder)
        return again is not None and all(
            os.stat(folder / name).st_ino == os.fstat(found[name]).st_ino for name in names if name != EPOCHS
        )
    except FileNotFoundError:
        return not folder.exists() and not found  # deleted with its topic: nothing to copy


def _wanted(folder: Path) -> list[str] | None:
    """The files that make a partition; None while compaction is about to put others in their place."""
    if not folder.exists():
        return []
    names = os.listdir(folder)
    if any(name.endswith(".swap") for name in names):
        return None
    kept = [name for name in names if name in (EPOCHS, METADATA) or name.endswith(_SEGMENT_SUFFIXES)]
    return sorted(kept)


def _settled(attempt: Callable[[], bool], why: str) -> None:
    for _ in range(_ATTEMPTS):
        if attempt():
            return
        time.sleep(_PAUSE_SECONDS)
    raise CliError(f"{why}; try again")
