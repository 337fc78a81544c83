"""Where an embedded broker's data lives: in memory if there is room, and gone with the test, however that ends.

A test process that is killed cannot clean up after itself, and what it leaves in /dev/shm is memory. So each folder
holds a locked file while its broker lives, and whoever makes the next folder removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from clarion.world import SystemClock

MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 512 * 1024 * 1024  # a container's 64 MB fill up; then the ordinary place is the better one
PREFIX: Final = "clarion-test-"
_OWNER: Final = "owner.lock"
_YOUNG_MS: Final = 60_000  # a folder this new may be without its lock still


class TemporaryFolder:
    """`data` is the broker's; everything goes with `remove`."""

    def __init__(self, parent: Path | None = None) -> None:
        place = parent or _place()
        _remove_orphans(place)
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self._lock = os.open(self._path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.data = self._path / "data"

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _place() -> Path:
    if os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        return MEMORY
    return Path(tempfile.gettempdir())


def _remove_orphans(place: Path) -> None:
    now_ms = SystemClock().now_ms()
    for path in place.glob(f"{PREFIX}*"):
        try:
            if now_ms - path.stat().st_mtime * 1000 > _YOUNG_MS and _is_orphan(path):
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # another user's, or somebody else removes it just now


def _is_orphan(path: Path) -> bool:
    owner = os.open(path / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(owner)
    return True
