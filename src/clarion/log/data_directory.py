"""A data directory belongs to one process at a time, and to one broker of one cluster for life.

`meta.properties` says whose it is and in which format: 1 had its registry in a journal, 2 has it in `registry.db`, or
in the store of the cluster to which it belongs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from clarion.world import NO_ROOM, Disk, RealDisk, event_log, is_private, make_private, read_file, replace_file
from clarion.world.lock import FolderLock

log = event_log("log")

_FILE: Final = "meta.properties"  # Kafka's name and format
_ALWAYS_THERE: Final = frozenset({".lock", "lost+found"})  # in an empty folder, and in an empty file system
_FORMAT: Final = "clarion.format"
_FORMAT_NOW: Final = 2
_MEMBERSHIP: Final = "clarion.store"
_MEMBER: Final = "cluster"
_DIRECTORY: Final = "directory.id"  # Kafka's name for it
_LAST_LIFE: Final = "clarion.broker.epoch"  # of the last life of a cluster's broker that was begun with this folder
REGISTRY_FILE: Final = "registry.db"  # of a broker that is alone
ADOPTED: Final = ".adopted"  # behind the name of a registry that a cluster has taken over
STORE_FOLDER: Final = "cluster"  # of several brokers that one process started: the store that they share


class WrongFolderError(Exception):
    """The data belongs to another broker, or to another version of this one."""


def claim_folder(disk: Disk, folder: str) -> Claim:
    """Take the folder for this process; FolderTakenError if another one has it."""
    claim = Claim(disk, folder, FolderLock(folder) if isinstance(disk, RealDisk) else None)
    try:
        claim.check_format()
        if isinstance(disk, RealDisk):
            _close_to_others(folder, disk.names(folder))
    except BaseException:
        claim.release()
        raise
    return claim


def holds_single_broker(disk: Disk, folder: str) -> bool:
    return disk.exists(os.path.join(folder, _FILE))


def _close_to_others(folder: str, names: list[str]) -> None:
    """Older versions made the data directory and all in it readable for everybody."""
    is_ours = _FILE in names or not set(names) - _ALWAYS_THERE
    if not (make_private(folder) if is_ours else is_private(folder)):
        log.warning("data_readable_by_others", folder=folder, reason="its mode is not 0700, and was left as it is")


class Claim:
    def __init__(self, disk: Disk, folder: str, lock: FolderLock | None) -> None:
        self._disk = disk
        self._folder = folder
        self._path = os.path.join(folder, _FILE)
        self._lock = lock

    def check_format(self) -> None:
        """Before anything in the folder is touched."""
        written = (self._written() or {}).get(_FORMAT, "1")
        if not written.isdecimal() or int(written) > _FORMAT_NOW:
            raise WrongFolderError(
                f"{self._path} says {_FORMAT}={written}, this version of Clarion knows formats up to {_FORMAT_NOW}: "
                f"a newer version has worked here, and has to go on"
            )

    def check_node(self, node_id: int) -> None:
        """Likewise."""
        written = self._written()
        if written is not None:
            self._check("node.id", written.get("node.id"), str(node_id))

    def check_alone(self) -> None:
        """A broker of a cluster does not go on alone: what the others hold and decide it would not know."""
        if self._disk.exists(os.path.join(self._folder, STORE_FOLDER, REGISTRY_FILE)):
            raise WrongFolderError(f"{self._folder} holds the brokers of a cluster: start them with --brokers")
        if (self._written() or {}).get(_MEMBERSHIP) == _MEMBER or self._is_adopted():
            raise WrongFolderError(
                f"{self._folder} belongs to a broker of a cluster: start it with the cluster's --cluster, or with "
                "--brokers and the data directory above it"
            )

    def _is_adopted(self) -> bool:
        """By a cluster with which it has not started yet."""
        registry = os.path.join(self._folder, REGISTRY_FILE)
        return self._disk.exists(registry + ADOPTED) and not self._disk.exists(registry)

    def check_member(self) -> None:
        """What a single broker holds is in no cluster's registry: it has to be taken over first."""
        if self._disk.exists(os.path.join(self._folder, REGISTRY_FILE)):
            raise WrongFolderError(
                f"{self._folder} is that of a single broker; `clarion cluster adopt` makes it the first of a cluster"
            )

    def directory_id(self, new_id: Callable[[], str]) -> str:
        """By which others tell this folder from another one with the same broker id."""
        return (self._written() or {}).get(_DIRECTORY) or new_id()

    @property
    def last_life(self) -> int | None:
        """None where nobody has noted one: the folder is new, or an older version's."""
        written = (self._written() or {}).get(_LAST_LIFE, "")
        return int(written) if written.isdecimal() else None

    def note_life(self, epoch: int) -> bool:
        """On disk when it returns True. A full disk keeps no broker from its cluster: it is not noted then."""
        try:
            self._write({**(self._written() or {}), _LAST_LIFE: str(epoch)})
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("life_not_noted", folder=self._folder, reason=str(error))
            return False
        return True

    def check_registry(self, *, is_new: bool) -> None:
        """A folder that belongs to a cluster has a registry that says so: without it, topics would seem to be gone."""
        known = (self._written() or {}).get("cluster.id")
        if known is not None and is_new:
            raise WrongFolderError(
                f"{self._path} says cluster.id={known}, but the registry is new: restore it from a copy"
                " (or choose the right --cluster)"
            )

    def settle(self, cluster_id: str, node_id: int, directory_id: str | None = None) -> None:
        """Write who we are on the first start; refuse to go on with somebody else's data after that.

        `directory_id`: of a broker of a cluster.
        """
        written = self._written()
        if written is not None:
            self._check("cluster.id", written.get("cluster.id"), cluster_id)
        ours = {"cluster.id": cluster_id, "node.id": str(node_id), _FORMAT: str(_FORMAT_NOW)}
        if directory_id is not None:
            ours |= {_MEMBERSHIP: _MEMBER, _DIRECTORY: directory_id}
        wanted = {"version": "1", **(written or {}), **ours}
        if written != wanted:
            self._write(wanted)

    def _write(self, wanted: dict[str, str]) -> None:
        content = "".join(f"{name}={value}\n" for name, value in wanted.items())
        replace_file(self._disk, self._path, content.encode())

    def _check(self, name: str, written: str | None, ours: str) -> None:
        if written != ours:
            raise WrongFolderError(
                f"{self._path} says {name}={written}, this broker is {name}={ours}; "
                f"choose another --data-dir, or the right --node-id"
            )

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _written(self) -> dict[str, str] | None:
        """None if there is no such file."""
        if not self._disk.exists(self._path):
            return None
        lines = read_file(self._disk, self._path).decode(errors="replace").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)
