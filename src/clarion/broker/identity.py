"""A data directory belongs to one process at a time, and to one broker of one cluster for life."""

from __future__ import annotations

import os
from typing import Final

from clarion.world import Disk, RealDisk, read_file, replace_file
from clarion.world.lock import FolderLock

_FILE: Final = "meta.properties"  # Kafka's name and format


class WrongFolderError(Exception):
    """The data belongs to another broker."""


def claim_folder(disk: Disk, folder: str) -> Claim:
    """Take the folder for this process; FolderTakenError if another one has it."""
    return Claim(disk, folder, FolderLock(folder) if isinstance(disk, RealDisk) else None)


class Claim:
    def __init__(self, disk: Disk, folder: str, lock: FolderLock | None) -> None:
        self._disk = disk
        self._path = os.path.join(folder, _FILE)
        self._lock = lock

    def check_identity(self, cluster_id: str, node_id: int) -> None:
        """Write who we are on the first start; refuse to go on with somebody else's data after that."""
        if not self._disk.exists(self._path):
            content = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n"
            replace_file(self._disk, self._path, content.encode())
            return
        lines = read_file(self._disk, self._path).decode().splitlines()
        known = dict(line.split("=", 1) for line in lines if "=" in line)
        for name, ours in (("cluster.id", cluster_id), ("node.id", str(node_id))):
            theirs = known.get(name)
            if theirs != ours:
                raise WrongFolderError(f"{self._path} says {name}={theirs}, this broker is {name}={ours}")

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
