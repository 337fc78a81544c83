"""Checkpoint files in Kafka's form: a version line, a count, and one line per entry; replaced as a whole.

    1                                                               0
    2                                                               1
    6f1c8a2e3b7d4f579d0a0123456789ab 0 12 4711 4711 9d2f1c03        3 4711
    6f1c8a2e3b7d4f579d0a0123456789ab 1 0 12 12 1b6e77aa

    partition-offset-checkpoint: topic id, partition, start         leader-epoch-checkpoint, version 0:
    offset, recovery point, high watermark, CRC-32C of the line     epoch, start offset

Kafka has three files for what is in the first, by the topic's name. A name may be given to another topic, which the
offsets of the first must not reach: its messages would be taken for deleted, or for flushed. So entries go by id, and
Kafka's files are only read, where an earlier version of this broker has left them.

A file that cannot be read counts as absent, with a warning, and so does a line of the first whose checksum does not
match: a start has more to scan then, and records that were deleted may be readable again. The other way round, a bit
that flips in a start offset would hide messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.ids import TopicId, TopicPartition
from clarion.wire.checksum import crc32c
from clarion.world import Disk, event_log, read_file, replace_file

log = event_log("log")

PARTITION_OFFSETS: Final = "partition-offset-checkpoint"
# Kafka's, by name.
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
_KAFKAS: Final = "0"
_BY_ID: Final = "1"


class SavedOffsets(NamedTuple):
    """What is written down of one partition."""

    start: int
    recovery_point: int  # up to where the log is known to be on disk; a start after a crash scans from there
    high_watermark: int


NOTHING_SAVED: Final = SavedOffsets(0, 0, 0)
PartitionId = tuple[TopicId, int]


def save_partitions(disk: Disk, path: str, offsets: Mapping[PartitionId, SavedOffsets]) -> None:
    lines = sorted(
        _with_checksum(f"{topic_id.hex} {index} {one.start} {one.recovery_point} {one.high_watermark}")
        for (topic_id, index), one in offsets.items()
    )
    replace_file(disk, path, format_lines(lines, _BY_ID))


def load_partitions(disk: Disk, path: str) -> dict[PartitionId, SavedOffsets]:
    """Empty if the file is absent or unreadable."""
    try:
        lines = _load_lines(disk, path, _BY_ID)
        fields = [line.split(" ")[:-1] for line in lines if _has_right_checksum(line)]
        if len(fields) < len(lines):
            log.warning("checkpoint_lines_ignored", file=path, lines=len(lines) - len(fields))
        return {
            (UUID(hex=topic_id), _natural(index)): SavedOffsets(
                _natural(start), _natural(recovery_point), _natural(watermark)
            )
            for topic_id, index, start, recovery_point, watermark in fields
        }
    except ValueError as error:
        log.warning("checkpoint_ignored", file=path, reason=str(error))
        return {}


def _with_checksum(line: str) -> str:
    return f"{line} {crc32c(line.encode()):08x}"


def _has_right_checksum(line: str) -> bool:
    return _with_checksum(line.rpartition(" ")[0]) == line


def load_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """One of Kafka's files by name. Empty if it is absent or unreadable."""
    try:
        lines = _load_lines(disk, path)
        return {
            TopicPartition(topic, _natural(partition)): _natural(offset)
            for topic, partition, offset in (line.split(" ") for line in lines)
        }
    except ValueError as error:
        log.warning("checkpoint_ignored", file=path, reason=str(error))
        return {}


def format_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return format_lines([f"{epoch} {start}" for epoch, start in entries])


def load_epochs(disk: Disk, path: str) -> list[tuple[int, int]] | None:
    """None if the file is absent or unreadable."""
    try:
        lines = _load_lines(disk, path)
        entries = [(_natural(epoch), _natural(start)) for epoch, start in (line.split(" ") for line in lines)]
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(entries)):
            raise ValueError("epochs do not grow")
        return entries
    except ValueError as error:
        log.warning("checkpoint_ignored", file=path, reason=str(error))
    return None


def format_lines(lines: list[str], version: str = _KAFKAS) -> bytes:
    return "".join(f"{line}\n" for line in [version, str(len(lines)), *lines]).encode("ascii")


def _load_lines(disk: Disk, path: str, version: str = _KAFKAS) -> list[str]:
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return []
    lines = data.decode("ascii").split("\n")
    if len(lines) < 3 or lines[-1] != "":
        raise ValueError("it is cut off")
    if lines[0] != version:
        raise ValueError(f"version {lines[0]!r} is unknown")
    if _natural(lines[1]) != len(lines) - 3:
        raise ValueError(f"it has {len(lines) - 3} entries and says {lines[1]}")
    return lines[2:-1]


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is not a number")
    return int(text)


class CleanShutdown:
    """The mark that every log was closed and is on disk, so that the next start need not scan.

    It also says the epoch of the broker that left it, as Kafka's does: no log has a later one.
    """

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._path = f"{data_dir}/{CLEAN_SHUTDOWN}"
        self.broker_epoch: int | None = None  # after `take`; None if nobody has said it
        self.clean_since: int | None = None  # likewise: the first life since which every stop was clean

    def leave(self, broker_epoch: int, clean_since: int | None = None) -> None:
        said = {"version": 0, "brokerEpoch": broker_epoch}
        if clean_since is not None:
            said["cleanSince"] = clean_since
        replace_file(self._disk, self._path, json.dumps(said, separators=(",", ":")).encode())

    def take(self) -> bool:
        """Whether the last shutdown was clean. The mark is gone afterwards, durably: it vouches for one start only."""
        if not self._disk.exists(self._path):
            return False
        content = read_file(self._disk, self._path)
        self.broker_epoch, self.clean_since = _epoch(content, "brokerEpoch"), _epoch(content, "cleanSince")
        self._disk.remove(self._path)
        self._disk.sync_folder(self._data_dir)
        return True


def _epoch(content: bytes, name: str) -> int | None:
    """None where older versions have written -1, and where it cannot be read: then the logs have to be asked."""
    try:
        epoch = json.loads(content)[name]
    except (ValueError, KeyError, TypeError):
        return None
    return epoch if isinstance(epoch, int) and epoch >= 0 else None
