"""What is kept of idempotent producers at a certain offset: Kafka's `.snapshot` files, version 1.

version int16, CRC-32C uint32 of the rest, count int32, then per producer:
id int64, epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64,
coordinator epoch int32, first offset of the current transaction int64
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from clarion.log.folder import Folder, base_offset_of, remove_if_there
from clarion.wire.checksum import crc32c
from clarion.world import Disk, event_log, read_file, replace_file

log = event_log("log")

SNAPSHOT: Final = ".snapshot"
_VERSION: Final = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_KEPT: Final = 2  # the newest, and the one before it in case the log loses its tail behind that


class ProducerEntry(NamedTuple):
    """The last batch of one producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """ValueError if it is not a whole, honest snapshot."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise ValueError("it is cut off")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"version {version} is unknown")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise ValueError("it does not match its checksum")
    if _COUNT.unpack_from(body)[0] * _ENTRY.size != len(body) - _COUNT.size:
        raise ValueError("it has another length than it says")
    return [ProducerEntry._make(entry) for entry in _ENTRY.iter_unpack(body[_COUNT.size :])]


def save_snapshot(
    disk: Disk, folder: str, offset: int, entries: Iterable[ProducerEntry], *, committed: int | None = None
) -> None:
    """The producers as they are when everything before the offset has been written. Older ones go (`drop_older`)."""
    replace_file(disk, _path(folder, offset), encode_snapshot(entries))
    drop_older(disk, folder, committed)


def put_snapshot(home: Folder, offset: int, entries: Iterable[ProducerEntry], truncations: int) -> bool:
    """The same in the thread of a flush, without dropping any. `truncations`: that the log had seen by then.

    False if it has been cut since. What was taken before stays away: when the log has grown past that offset again, a
    start would believe it, and take for written what was cut.
    """
    disk, fence, path = home.disk, home.fence, _path(home.path, offset)
    beside = fence.write_beside(disk, path, encode_snapshot(entries))
    with fence.lock:
        is_late = truncations != fence.truncations
        if not is_late:
            disk.rename(beside, path)
    if is_late:
        fence.give_up(disk, beside)
    else:
        disk.sync_folder(home.path)
    return not is_late


def drop_older(disk: Disk, folder: str, committed: int | None = None) -> None:
    """All but the newest, and the newest of what is `committed`: all behind that may be cut yet.

    One that cannot be removed is only in the way: the next time will do.
    """
    try:
        offsets = snapshot_offsets(disk, folder)
        lasting = [one for one in offsets if committed is not None and one <= committed][-1:]
        for old in offsets[:-_KEPT]:
            if old not in lasting:
                remove_if_there(disk, _path(folder, old))
    except OSError as error:
        log.warning("old_snapshots_stay", folder=folder, reason=str(error))


def load_latest_snapshot(disk: Disk, folder: str, offset_max: int) -> tuple[int, list[ProducerEntry]] | None:
    """The newest readable snapshot at or before the offset. One behind it speaks of batches that are lost."""
    for offset in reversed(snapshot_offsets(disk, folder)):
        if offset <= offset_max:
            try:
                return offset, decode_snapshot(read_file(disk, _path(folder, offset)))
            except ValueError as error:
                log.warning("snapshot_ignored", file=_path(folder, offset), reason=str(error))
    return None


def drop_snapshots(disk: Disk, folder: str, above: int) -> None:
    """Remove snapshots taken behind the offset, for good: the log has been cut there, and other batches will follow."""
    behind = [offset for offset in snapshot_offsets(disk, folder) if offset > above]
    for offset in behind:
        remove_if_there(disk, _path(folder, offset))
    if behind:
        disk.sync_folder(folder)


def snapshot_offsets(disk: Disk, folder: str) -> list[int]:
    return [offset for name in disk.names(folder) if (offset := base_offset_of(name, SNAPSHOT)) is not None]


def _path(folder: str, offset: int) -> str:
    return f"{folder}/{offset:020d}{SNAPSHOT}"
