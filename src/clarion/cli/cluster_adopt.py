"""`clarion cluster adopt`: the folder of a single broker becomes that of the first broker of a cluster.

Its registry is copied to the cluster's store, and put aside; its catalog of subscriptions goes there too. With
`--cluster` the folder stays where it is; without, it becomes what `serve --brokers` has: its content goes into
`broker-1`, beside the store. Whatever interrupts this, the same command again goes on with it: `meta.properties`, by
which a folder is known, moves last.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clarion.cli.cluster import commands
from clarion.cli.errors import CliError
from clarion.cli.units import plural

if TYPE_CHECKING:
    from clarion.cluster import ClusterImage

_FIRST: Final = "broker-1"


ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="The cluster's store: file:PATH or etcd://HOST:PORT."),
]
DataDirOption = Annotated[str, typer.Option("--data-dir", metavar="PATH", help="Of the broker, and of the cluster.")]


@commands.command()
def adopt(cluster: ClusterOption = None, data_dir: DataDirOption = "clarion-data") -> None:
    """Make a single broker, while it is stopped, the first of a cluster, with its topics, groups and producers.

    Then start it with `clarion serve --brokers 3`, or with --cluster.

    Example:

        clarion cluster adopt --data-dir clarion-data
    """
    import asyncio

    from clarion.log.data_directory import STORE_FOLDER
    from clarion.world.lock import FolderLock, FolderTakenError

    folder = os.path.abspath(os.path.expanduser(data_dir))
    node_id = _node_of(folder)
    address = cluster or f"file:{os.path.join(folder, STORE_FOLDER)}"
    if cluster is None and node_id != 1:
        raise CliError(f"{folder} is that of broker {node_id}; with --brokers the first one is broker 1")
    try:
        lock = FolderLock(folder)
    except FolderTakenError as error:
        raise CliError(str(error)) from error
    try:
        _check_catalog(folder, address)
        image = asyncio.run(_copy(folder, _registry_in(folder), address, node_id))
        _move_catalog(folder, address)
        _put_registry_aside(folder)
        if cluster is None:
            _move_content(folder, os.path.join(folder, _FIRST))
    finally:
        lock.release()
    topics = plural(len(image.topics), "topic")
    start = f"--cluster {cluster} --node-id {node_id}" if cluster else "--brokers 3"
    print(f"{topics} of cluster {image.cluster_id} adopted; start it with: clarion serve {start} --data-dir {data_dir}")


def _node_of(folder: str) -> int:
    """CliError if it is no single broker's folder."""
    try:
        with open(os.path.join(folder, "meta.properties"), encoding="utf-8") as file:
            said = dict(line.strip().split("=", 1) for line in file if "=" in line)
        return int(said["node.id"])
    except (OSError, ValueError, KeyError) as error:
        raise CliError(f"{folder} is not the folder of a single broker") from error


def _registry_in(folder: str) -> str:
    from clarion.log.data_directory import ADOPTED, REGISTRY_FILE

    path = os.path.join(folder, REGISTRY_FILE)
    places = (path, path + ADOPTED, os.path.join(folder, _FIRST, REGISTRY_FILE + ADOPTED))  # the latter: interrupted
    found = next((one for one in places if os.path.exists(one)), None)
    if found is None:
        raise CliError(f"{folder} has no registry: it is not the folder of a single broker")
    return found


def _check_catalog(folder: str, address: str) -> None:
    """Subscriptions in SQLite go where the store goes; before anything has changed, it is seen whether they can."""
    import filecmp

    from clarion.catalog.access import CATALOG_FILE
    from clarion.cluster.opening import folder_of

    path, store = os.path.join(folder, CATALOG_FILE), folder_of(address)
    if os.path.exists(path) and store is None:
        raise CliError(
            f"{path} has subscriptions, and a cluster over etcd keeps them in PostgreSQL: make them anew there, and "
            "move the file away first"
        )
    there = "" if store is None else os.path.join(store, CATALOG_FILE)
    if os.path.exists(path) and os.path.exists(there) and not filecmp.cmp(path, there, shallow=False):
        raise CliError(f"{store} has subscriptions already; move {path} away to go on without those in it")


def _move_catalog(folder: str, address: str) -> None:
    import shutil
    import sqlite3

    from clarion.catalog.access import CATALOG_FILE
    from clarion.cluster.opening import folder_of

    path, store = os.path.join(folder, CATALOG_FILE), folder_of(address)
    if not os.path.exists(path):
        return
    assert store is not None
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # what a crash left beside it goes into it
    except sqlite3.Error as error:
        raise CliError(f"{path} cannot be read: {error}") from error
    finally:
        connection.close()
    beside = os.path.join(store, CATALOG_FILE + ".tmp")  # it may be another disk
    shutil.copyfile(path, beside)
    os.chmod(beside, 0o600)
    _sync(beside)
    os.rename(beside, os.path.join(store, CATALOG_FILE))
    _sync(store)
    os.unlink(path)
    _sync(folder)


async def _copy(folder: str, registry: str, address: str, node_id: int) -> ClusterImage:
    from clarion.cluster import SqliteStore, StoreError
    from clarion.cluster.adoption import adopt_registry, check_source
    from clarion.cluster.opening import InvalidAddressError, check_address, open_store

    try:
        check_address(address)
        source = await SqliteStore.open(registry, _ignore)
        try:
            await check_source(source)
            target = await open_store(address, _ignore)
            try:
                return await adopt_registry(source, target, node_id)
            finally:
                await target.close()
        finally:
            await source.close()
    except (StoreError, OSError, InvalidAddressError) as error:
        raise CliError(f"{folder} cannot be adopted: {error}") from error


def _ignore(_error: Exception) -> None:
    """It is told to whoever asked, too."""


def _put_registry_aside(folder: str) -> None:
    from clarion.log.data_directory import ADOPTED, REGISTRY_FILE

    path = os.path.join(folder, REGISTRY_FILE)
    if os.path.exists(path):
        os.rename(path, path + ADOPTED)
    for left in (f"{path}-wal", f"{path}-shm"):  # a closed database has none
        if os.path.exists(left):
            os.rename(left, left.replace(path, path + ADOPTED))
    _sync(folder)


def _move_content(folder: str, first: str) -> None:
    from clarion.log.data_directory import STORE_FOLDER

    os.makedirs(first, mode=0o700, exist_ok=True)
    stay = {STORE_FOLDER, _FIRST, ".lock", "meta.properties"}
    for name in sorted(set(os.listdir(folder)) - stay):
        os.rename(os.path.join(folder, name), os.path.join(first, name))
    _sync(first)
    os.rename(os.path.join(folder, "meta.properties"), os.path.join(first, "meta.properties"))
    _sync(first)
    _sync(folder)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
