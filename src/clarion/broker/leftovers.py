"""Folders that no topic claims when a broker starts: what a crash interrupted is finished, what is unknown is kept.

A topic leaves the registry before its files go, and its id is noted until they are gone. So a folder with messages
whose id nobody noted is not the rest of a deletion: the registry may be an older copy of itself. Such a folder is put
aside under a name that ends in `-stray`, for a person to look at.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Final

from clarion.cluster import Topic
from clarion.log.folder import LOG, METADATA, base_offset_of, parse_metadata
from clarion.model.ids import TopicId, TopicPartition
from clarion.world import Disk, event_log, read_file

log = event_log("broker")

DELETED: Final = "-delete"  # a folder on its way out
STRAY: Final = "-stray"
_NAME_PART_MAX: Final = 200  # of a topic's name in the folder's new one: file systems take 255 bytes


def settle_leftovers(disk: Disk, data_dir: str, topics: Iterable[Topic], deleted: Collection[TopicId]) -> None:
    """`deleted`: the ids of topics whose deletion was not finished."""
    known = {f"{topic.name}-{index}" for topic in topics for index in range(topic.partition_count)}
    for name in disk.names(data_dir):
        if name.endswith(DELETED):
            _remove(disk, data_dir, name)
        elif name not in known and (tp := _partition_of(name)) is not None:
            _settle(disk, data_dir, name, tp, deleted)


def new_name(tp: TopicPartition, topic_id: TopicId, suffix: str) -> str:
    """What a partition's folder is called when it no longer is one."""
    return f"{tp.topic[:_NAME_PART_MAX]}-{tp.partition}.{topic_id.hex}{suffix}"


def _settle(disk: Disk, data_dir: str, name: str, tp: TopicPartition, deleted: Collection[TopicId]) -> None:
    path = os.path.join(data_dir, name)
    try:
        sizes = {one: disk.size(f"{path}/{one}") for one in disk.names(path)}
    except NotADirectoryError:
        return  # a file of somebody else's
    if METADATA not in sizes and any(size or base_offset_of(one) != 0 for one, size in sizes.items()):
        return  # neither a partition nor the beginning of one
    topic_id = _topic_id(disk, path) if METADATA in sizes else None
    has_messages = any(size for one, size in sizes.items() if base_offset_of(one, LOG) is not None)
    if topic_id is None or topic_id in deleted or not has_messages:
        _remove(disk, data_dir, name)
        return
    stray = new_name(tp, topic_id, STRAY)
    log.warning("stray_put_aside", folder=name, now=stray, reason="it has messages, and no topic claims it")
    disk.rename(path, os.path.join(data_dir, stray))
    disk.sync_folder(data_dir)


def _topic_id(disk: Disk, path: str) -> TopicId | None:
    try:
        return parse_metadata(read_file(disk, f"{path}/{METADATA}"))
    except ValueError:
        return None


def _remove(disk: Disk, data_dir: str, name: str) -> None:
    log.info("leftover_removed", folder=name)
    disk.remove_folder(os.path.join(data_dir, name))


def _partition_of(name: str) -> TopicPartition | None:
    topic, dash, index = name.rpartition("-")
    return TopicPartition(topic, int(index)) if dash and index.isdecimal() and index.isascii() else None
