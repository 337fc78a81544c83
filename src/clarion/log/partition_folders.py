"""The folders of partitions in a data directory: how they go, and what becomes of those that no topic claims.

A topic leaves the registry before its files go, and its id is noted until they are gone. So a folder with messages
whose id nobody noted is not the rest of a deletion: the registry may be an older copy of itself. Such a folder is put
aside under a name that ends in `-stray`, for a person to look at; also one whose id cannot be read. A replica that is
damaged is kept under a name that ends in `-damaged` until a good one has taken its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from uuid import UUID

from clarion.log.folder import LOG, METADATA, base_offset_of, parse_metadata
from clarion.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from clarion.world import Disk, event_log, read_file

log = event_log("log")

_DELETED: Final = "-delete"  # a folder on its way out
_STRAY: Final = "-stray"
_DAMAGED: Final = "-damaged"
_DAMAGED_NAME: Final = re.compile(r".*-(\d+)\.([0-9a-f]{32})-damaged", re.ASCII)
_STRAYS_MAX: Final = 1000  # under one name; nobody leaves that many lying about
_NAME_PART_MAX: Final = 200  # of a topic's name in the folder's new one: file systems take 255 bytes


def settle_leftovers(
    disk: Disk,
    data_dir: str,
    claimed: Mapping[TopicPartition, TopicId],
    deleted: Collection[TopicId],
    *,
    has_replicas: bool = False,
) -> None:
    """At a start. `claimed`: by the topics of today; `deleted`: the ids of topics whose deletion was not finished.

    A folder under the name of a topic of today may be that of another one, which was deleted while this broker was
    away, or after the data directory was copied. Whoever is alone with it does not start then (`has_replicas`: the
    others have what is wanted).
    """
    known = {str(tp): topic_id for tp, topic_id in claimed.items()}
    for name in disk.names(data_dir):
        if name.endswith(_DELETED):
            _remove(disk, data_dir, name)
        elif (tp := _partition_of(name)) is None:
            continue
        elif name not in known:
            _settle(disk, data_dir, name, tp, deleted)
        elif deleted or has_replicas:
            found = topic_id_of(disk, os.path.join(data_dir, name))
            if found not in (None, known[name]) and (has_replicas or found in deleted):
                _settle(disk, data_dir, name, tp, deleted)


def remove_folders(disk: Disk, data_dir: str, partitions: Iterable[tuple[TopicPartition, TopicId]]) -> None:
    """Rename first: a crash in the middle leaves a name that says what to do.

    Asked again after an error it passes over what is gone, and leaves alone what another topic of that name has there.
    """
    doomed = []
    for tp, topic_id in partitions:
        path = os.path.join(data_dir, str(tp))
        renamed = os.path.join(data_dir, _new_name(tp, topic_id, _DELETED))
        if disk.exists(path) and topic_id_of(disk, path) in (None, topic_id):
            if disk.exists(renamed):
                disk.remove_folder(renamed)
            disk.rename(path, renamed)
        doomed.append(renamed)
    disk.sync_folder(data_dir)
    for renamed in doomed:
        if disk.exists(renamed):
            disk.remove_folder(renamed)


def keep_damaged(disk: Disk, data_dir: str, tp: TopicPartition, topic_id: TopicId) -> str:
    """Put a replica aside that is going to be filled anew; returns what its folder is called now."""
    name = _new_name(tp, topic_id, _DAMAGED)
    disk.rename(os.path.join(data_dir, str(tp)), os.path.join(data_dir, name))
    disk.sync_folder(data_dir)
    return name


def damaged_kept(disk: Disk, data_dir: str) -> dict[tuple[TopicId, int], str]:
    """The folders of such replicas, by the topic's id and the partition."""
    found = (_DAMAGED_NAME.fullmatch(name) for name in disk.names(data_dir))
    return {(UUID(hex=one[2]), int(one[1])): one[0] for one in found if one is not None}


def _settle(disk: Disk, data_dir: str, name: str, tp: TopicPartition, deleted: Collection[TopicId]) -> None:
    path = os.path.join(data_dir, name)
    try:
        sizes = {one: disk.size(f"{path}/{one}") for one in disk.names(path)}
    except NotADirectoryError:
        return  # a file of somebody else's
    if METADATA not in sizes and any(size or base_offset_of(one) != 0 for one, size in sizes.items()):
        return  # neither a partition nor the beginning of one
    topic_id = topic_id_of(disk, path) if METADATA in sizes else None
    if topic_id in deleted or not _has_messages(sizes):
        _remove(disk, data_dir, name)
    else:
        _put_aside(disk, data_dir, tp, topic_id)


def clear_way(disk: Disk, data_dir: str, tp: TopicPartition, deleted: Collection[TopicId]) -> None:
    """A partition is going to be made where a folder stands: without messages it goes, with some it is put aside.

    Unless they are those of a topic that was deleted, and whose files could not be removed then.
    """
    path = os.path.join(data_dir, str(tp))
    try:
        sizes = {one: disk.size(f"{path}/{one}") for one in disk.names(path)}
    except FileNotFoundError:
        return
    topic_id = topic_id_of(disk, path) if METADATA in sizes else None
    if topic_id in deleted or not _has_messages(sizes):
        # Without a line: on a full disk every attempt to make a topic leaves one for each of its partitions.
        disk.remove_folder(path)
    else:
        _put_aside(disk, data_dir, tp, topic_id)


def _has_messages(sizes: Mapping[str, int]) -> bool:
    return any(size for one, size in sizes.items() if base_offset_of(one, LOG) is not None)


def _put_aside(disk: Disk, data_dir: str, tp: TopicPartition, topic_id: TopicId | None) -> None:
    stray = _free_name(disk, data_dir, tp, topic_id or NO_TOPIC_ID)
    log.warning("stray_put_aside", folder=str(tp), now=stray, reason="it has messages, and no topic claims it")
    disk.rename(os.path.join(data_dir, str(tp)), os.path.join(data_dir, stray))
    disk.sync_folder(data_dir)


def _new_name(tp: TopicPartition, topic_id: TopicId, suffix: str) -> str:
    """What a partition's folder is called when it no longer is one."""
    return f"{tp.topic[:_NAME_PART_MAX]}-{tp.partition}.{topic_id.hex}{suffix}"


def _free_name(disk: Disk, data_dir: str, tp: TopicPartition, topic_id: TopicId) -> str:
    """Several may have lost their ids."""
    for number in range(_STRAYS_MAX):
        name = _new_name(tp, topic_id, f"{number or ''}{_STRAY}")
        if not disk.exists(os.path.join(data_dir, name)):
            return name
    raise FileExistsError(f"{_STRAYS_MAX} folders of {tp} have been put aside in {data_dir}")


def topic_id_of(disk: Disk, path: str) -> TopicId | None:
    """None where a folder does not say whose it is."""
    try:
        return parse_metadata(read_file(disk, f"{path}/{METADATA}"))
    except (ValueError, FileNotFoundError):
        return None


def _remove(disk: Disk, data_dir: str, name: str) -> None:
    log.info("leftover_removed", folder=name)
    disk.remove_folder(os.path.join(data_dir, name))


def _partition_of(name: str) -> TopicPartition | None:
    topic, dash, index = name.rpartition("-")
    return TopicPartition(topic, int(index)) if dash and index.isdecimal() and index.isascii() else None
