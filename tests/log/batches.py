"""Batches for tests of the log."""

from __future__ import annotations

from uuid import UUID

from clarion.log.folder import remove_if_there
from clarion.log.log import Log, LogConfig
from clarion.wire.batch import read_header
from clarion.wire.records import encode_batch
from clarion.world import Disk

TOPIC_ID = UUID("6f1c8a2e-3b7d-4f57-9d0a-0123456789ab")
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150, segment_index_bytes=1 << 20)


def batch(base_offset: int, count: int = 1, size: int = 20, epoch: int = 0, time_ms: int = 1000) -> bytes:
    records = [(b"k", bytes([base_offset % 251]) * size, (), time_ms + number) for number in range(count)]
    return bytes(encode_batch(records, base_offset=base_offset, leader_epoch=epoch))


def append(log: Log, count: int = 1, size: int = 20, epoch: int = 0, time_ms: int = 1000, gap: int = 0) -> bytes:
    data = batch(log.next_offset + gap, count, size, epoch, time_ms)
    log.append(data, read_header(data), time_ms)
    return data


def open_log(disk: Disk, folder: str = "/data/t-0", config: LogConfig = SMALL, clean: bool = True, **more) -> Log:
    return Log.open(disk, folder, config, now_ms=1000, clean=clean, topic_id=TOPIC_ID, **more)


def content(log: Log) -> bytes:
    return b"".join(log.batches(log.start_offset))


def read_all(log: Log, offset: int, max_bytes: int = 1 << 30, **more) -> bytes:
    return b"".join(piece.read() for piece in log.read(offset, max_bytes, log.end, **more))


def sweep_deleted(log: Log, now_ms: int) -> None:
    """Remove what is due, as the broker does in a thread."""
    for path in log.take_deleted(now_ms):
        remove_if_there(log.segments[0].folder.disk, path)
