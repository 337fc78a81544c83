"""One data directory, one process."""

from __future__ import annotations

import fcntl
import os


class FolderTakenError(Exception):
    """Another process works in this folder."""


class FolderLock:
    """Held until `release` or the end of the process, whichever way it ends."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, ".lock")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._fd, 32).decode(errors="replace").strip()
            os.close(self._fd)
            raise FolderTakenError(
                f"{folder} is in use by another broker (process {owner or 'unknown'}); "
                f"stop it or choose another --data-dir"
            ) from None
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
