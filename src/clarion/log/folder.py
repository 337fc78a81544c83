"""A partition's folder: which file has which name, in Kafka's layout.

00000000000000000000.log .index .timeindex   a segment and its two indexes
00000000000000004711.snapshot                producers as they were at that offset
leader-epoch-checkpoint, partition.metadata
… .cut.tmp .cutting.tmp                      see `cut_mark`
… .deleted .cleaned .swap .tmp .corrupt      see `leftovers`
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from clarion.log.config import LogConfig
from clarion.log.fence import Fence
from clarion.log.files import FileCache
from clarion.world import Disk, event_log, read_file

log = event_log("log")

DIGITS: Final = 20
LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
SEGMENT_FILES: Final = (LOG, INDEX, TIME_INDEX)
METADATA: Final = "partition.metadata"
EPOCHS: Final = "leader-epoch-checkpoint"
SYNC_FAILED: Final = "sync-failed"  # the page cache may show bytes that the device never got
DAMAGED: Final = "damaged"  # some of what was flushed is not what was written: a clean stop does not make that good


class TopicIdMismatch(Exception):
    """The folder belongs to another topic of the same name: a deleted one, or one of another cluster."""


class Folder:
    __slots__ = ("changes", "changes_synced", "config", "disk", "fence", "files", "flush_soon", "path")

    def __init__(self, disk: Disk, path: str, files: FileCache, config: LogConfig) -> None:
        self.disk = disk
        self.path = path
        self.files = files
        self.config = config
        self.fence = Fence()
        self.changes = 0  # of names in it, in this process; a sync of the folder makes them last
        self.changes_synced = 0
        self.flush_soon: Callable[[], None] = _no_flush  # asks whoever flushes this log to do it

    @property
    def index_interval_bytes(self) -> int:
        return self.config.index_interval_bytes

    @property
    def has_unsynced_names(self) -> bool:
        return self.changes != self.changes_synced

    def mark_synced(self, changes: int) -> None:
        """`changes`: as many as there were when the sync began."""
        self.changes_synced = max(self.changes_synced, changes)

    def file(self, base_offset: int, kind: str) -> str:
        return path_of(self.path, base_offset, kind)

    def save(self, base_offset: int, kind: str, data: bytes | bytearray) -> str:
        """Write a whole small file, without a sync; returns its path."""
        path = self.file(base_offset, kind)
        write_whole(self.disk, path, data)
        return path

    def check_topic_id(self, topic_id: UUID) -> bool:
        """True if partition.metadata names this topic; False if it cannot be read; TopicIdMismatch otherwise."""
        try:
            found = parse_metadata(read_file(self.disk, f"{self.path}/{METADATA}"))
        except ValueError as error:
            log.warning("metadata_unreadable", folder=self.path, reason=str(error))
            return False
        if found != topic_id:
            raise TopicIdMismatch(f"{self.path} belongs to topic id {found}, not {topic_id}")
        return True

    def write_topic_id(self, topic_id: UUID) -> None:
        """Without a sync: the first flush does it, and until then there is nothing that the id could guard."""
        write_whole(self.disk, f"{self.path}/{METADATA}", format_metadata(topic_id))

    def note_failed_sync(self) -> None:
        """Tell the next start of this process not to believe the page cache. Needs no sync: a power loss ends both."""
        try:
            self.disk.open(f"{self.path}/{SYNC_FAILED}", create=True).close()
        except OSError as error:
            log.error("failed_sync_not_noted", folder=self.path, reason=str(error))

    def note_damage(self) -> None:
        """On disk when it returns, if the disk lets it be."""
        try:
            self.disk.open(f"{self.path}/{DAMAGED}", create=True).close()
            self.disk.sync_folder(self.path)
        except OSError as error:
            log.error("damage_not_noted", folder=self.path, reason=str(error))

    def remove_segment(self, base_offset: int) -> None:
        """The log last: what is left behind by a crash is a segment without indexes, not indexes without a segment."""
        for kind in (TIME_INDEX, INDEX, LOG):
            remove_if_there(self.disk, self.file(base_offset, kind))


def _no_flush() -> None:
    """Nobody flushes a log that no partition has taken."""


def path_of(folder: str, base_offset: int, kind: str) -> str:
    return f"{folder}/{base_offset:020d}{kind}"


def base_offset_of(name: str, kind: str = LOG) -> int | None:
    """The offset in a file's name, or None if it is not a file of that kind."""
    digits = name[:DIGITS]
    return int(digits) if name[DIGITS:] == kind and digits.isdecimal() and digits.isascii() else None


def format_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {urlsafe_b64encode(topic_id.bytes).rstrip(b'=').decode()}\n".encode()


def parse_metadata(data: bytes) -> UUID:
    """ValueError if it is not what Kafka writes."""
    fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines() if line)
    if fields.get("version") != "0":
        raise ValueError("partition.metadata has an unknown version")
    return UUID(bytes=urlsafe_b64decode(fields.get("topic_id", "") + "=="))


def write_whole(disk: Disk, path: str, data: bytes | bytearray) -> None:
    file = disk.open(path, create=True)
    try:
        file.write([data], 0)
        file.truncate(len(data))
    finally:
        file.close()


def sync_files(disk: Disk, paths: Sequence[str]) -> None:
    """Those that are still there."""
    for path in paths:
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            file.sync()
        finally:
            file.close()


def remove_if_there(disk: Disk, path: str) -> None:
    try:
        disk.remove(path)
    except FileNotFoundError:
        pass


def rename_if_there(disk: Disk, old: str, new: str) -> None:
    try:
        disk.rename(old, new)
    except FileNotFoundError:
        pass


def rename_segment(folder: Folder, base_offset: int, old_suffix: str, new_suffix: str) -> None:
    """The log last: its name says that the indexes are there."""
    for kind in (TIME_INDEX, INDEX, LOG):
        path = folder.file(base_offset, kind)
        rename_if_there(folder.disk, path + old_suffix, path + new_suffix)


def parent_of(path: str) -> str:
    return os.path.dirname(path)
