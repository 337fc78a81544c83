"""Kafka's checkpoint files: a version line, a count, and one line per entry; replaced as a whole.

    0                           0
    2                           1
    orders 0 4711               3 4711          (leader-epoch-checkpoint: epoch, start offset)
    orders 1 12

A file that cannot be read counts as absent, with a warning: everything in it can be found again, only slower.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from clarion.model.ids import TopicPartition
from clarion.world import Disk, event_log, read_file, replace_file

log = event_log("log")

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"


class Checkpoints:
    """The three checkpoint files of a data directory."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir

    def recovery_points(self) -> dict[TopicPartition, int]:
        """Up to where each log is known to be on disk; a start after a crash scans from there."""
        return load_offsets(self._disk, f"{self._data_dir}/{RECOVERY_POINTS}")

    def start_offsets(self) -> dict[TopicPartition, int]:
        return load_offsets(self._disk, f"{self._data_dir}/{START_OFFSETS}")

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return load_offsets(self._disk, f"{self._data_dir}/{HIGH_WATERMARKS}")

    def save_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        save_offsets(self._disk, f"{self._data_dir}/{RECOVERY_POINTS}", offsets)

    def save_start_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        save_offsets(self._disk, f"{self._data_dir}/{START_OFFSETS}", offsets)

    def save_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        save_offsets(self._disk, f"{self._data_dir}/{HIGH_WATERMARKS}", offsets)


def save_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    lines = sorted(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())
    replace_file(disk, path, format_lines(lines))


def load_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Empty if the file is absent or unreadable."""
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


def format_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ["0", str(len(lines)), *lines]).encode("ascii")


def _load_lines(disk: Disk, path: str) -> list[str]:
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return []
    lines = data.decode("ascii").split("\n")
    if len(lines) < 3 or lines[-1] != "":
        raise ValueError("it is cut off")
    if lines[0] != "0":
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

    def leave(self, broker_epoch: int) -> None:
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        replace_file(self._disk, self._path, content.encode())

    def take(self) -> bool:
        """Whether the last shutdown was clean. The mark is gone afterwards, durably: it vouches for one start only."""
        if not self._disk.exists(self._path):
            return False
        self.broker_epoch = _broker_epoch(read_file(self._disk, self._path))
        self._disk.remove(self._path)
        self._disk.sync_folder(self._data_dir)
        return True


def _broker_epoch(content: bytes) -> int | None:
    """None where older versions have written -1, and where it cannot be read: then the logs have to be asked."""
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return None
    return epoch if isinstance(epoch, int) and epoch >= 0 else None
