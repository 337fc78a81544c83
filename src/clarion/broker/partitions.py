"""The partitions this broker holds: opening them at start, making and removing them, and finding them quickly."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from clarion.broker.threads import in_thread
from clarion.cluster import Topic
from clarion.cluster.elections import ElectionRules
from clarion.log.checkpoints import NOTHING_SAVED
from clarion.log.config import LogConfig
from clarion.log.files import FileCache
from clarion.log.flush import FlushTicket
from clarion.log.log import Log
from clarion.log.offset_files import OffsetFiles
from clarion.log.partition_folders import (
    clear_way,
    damaged_kept,
    keep_damaged,
    remove_folders,
    settle_leftovers,
    topic_id_of,
)
from clarion.log.room import Room
from clarion.model.errors import ErrorCode
from clarion.model.ids import TopicId, TopicPartition
from clarion.model.topic_settings import TopicSettings, parse
from clarion.replication import GroupCommit, Membership, Partition, ProducerLimits
from clarion.replication.producer_files import load_producers
from clarion.world import Clock, Disk, event_log

log = event_log("broker")

_FILES_WHILE_MAKING: Final = 16  # open at once while a topic's files are made
MIN_IN_SYNC: Final = "min.insync.replicas"
_CLOSING_AT_ONCE: Final = 16  # flushes overlap in the device up to about here, and a few wait for their thread


@dataclass(frozen=True, slots=True)
class StartReport:
    """What opening the partitions found."""

    partitions: int
    was_clean: bool
    cut_bytes: int


class Partitions:
    """Those that this broker has, by topic id and index; `open_all`, `make` and `remove_files` touch the disk."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        data_dir: str,
        files: FileCache,
        defaults: TopicSettings,
        commits: GroupCommit,
        producer_limits: ProducerLimits | None = None,
        room: Room | None = None,
        node_id: int = 1,
        membership: Membership | None = None,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._data_dir = data_dir
        self._files = files
        self._commits = commits
        self._node_id = node_id
        self._producer_limits = producer_limits or ProducerLimits()
        self.room = room or Room()
        self.defaults = defaults
        self.membership = membership  # None: this broker is alone
        self._held: dict[TopicId, dict[int, Partition]] = {}
        self._opened_with: dict[TopicId, Mapping[str, str]] = {}  # topics' own settings when their files were opened

    def __iter__(self) -> Iterator[Partition]:
        for partitions in list(self._held.values()):
            yield from list(partitions.values())

    @property
    def topic_ids(self) -> Set[TopicId]:
        return self._held.keys()

    def of_topic(self, topic: Topic) -> list[Partition]:
        return list(self._held.get(topic.id, {}).values())

    def find(self, topic_id: TopicId, index: int) -> Partition | None:
        partitions = self._held.get(topic_id)
        return None if partitions is None else partitions.get(index)

    def settings_of(self, topic: Topic) -> TopicSettings:
        return parse(topic.overrides, self.defaults)

    # Life of the files

    def open_all(
        self,
        topics: list[Topic],
        offset_files: OffsetFiles,
        *,
        was_clean: bool,
        deleted: Collection[TopicId] = (),
    ) -> StartReport:
        """`deleted`: the ids of topics whose files a crash has left behind."""
        claimed = {
            TopicPartition(topic.name, index): topic.id for topic in topics for index in range(topic.partition_count)
        }
        settle_leftovers(self._disk, self._data_dir, claimed, deleted, has_replicas=self.membership is not None)
        saved = offset_files.load(claimed, was_clean=was_clean)
        surplus = {} if self.membership is None else self._surplus(topics)
        cut = 0
        for topic in topics:
            settings = self.settings_of(topic)
            held = topic.led_by(self._node_id) if self.membership is None else topic.held_by(self._node_id)
            for index in (*held, *surplus.get(topic.id, ())):
                tp = TopicPartition(topic.name, index)
                known = saved.get((topic.id, index), NOTHING_SAVED)
                try:
                    opened = self._open(topic, tp, settings, was_clean, known.start, known.recovery_point, self._files)
                except OSError as error:
                    if index not in surplus.get(topic.id, ()):
                        raise
                    log.warning("surplus_stays", folder=str(tp), reason=str(error))  # until the next start
                    continue
                if self.membership is not None:
                    opened.restore_watermark(known.high_watermark)
                    self._opened_with[topic.id] = topic.overrides
                cut += opened.cut_bytes
                self._held.setdefault(topic.id, {})[index] = opened
        return StartReport(sum(1 for _ in self), was_clean, cut)

    def _surplus(self, topics: list[Topic]) -> dict[TopicId, list[int]]:
        """Partitions that have files here and were moved away while this broker was. Whether they go is decided when it
        has joined, as for those that are moved while it is there (`OutdatedReplicas`)."""
        names = set(self._disk.names(self._data_dir))
        found: dict[TopicId, list[int]] = {}
        for topic in topics:
            for index in {*range(topic.partition_count)} - {*topic.held_by(self._node_id)}:
                name = str(TopicPartition(topic.name, index))
                if name in names and topic_id_of(self._disk, os.path.join(self._data_dir, name)) == topic.id:
                    found.setdefault(topic.id, []).append(index)
        return found

    def latest_epoch(self, topic: Topic, index: int) -> int:
        """The latest in which a leader has written into this log; -1 if none has."""
        partition = self.find(topic.id, index)
        return -1 if partition is None else partition.latest_epoch

    def lead(self, topics: Iterable[Topic]) -> None:
        """Begin the terms that the cluster has agreed on: from here on messages may be written."""
        for topic in topics:
            for index, partition in self._held.get(topic.id, {}).items():
                partition.lead(topic.partitions[index], self._clock.now_ms())

    def make(
        self, topic: Topic, settings: TopicSettings, indexes: Sequence[int], *, deleted: Collection[TopicId] = ()
    ) -> list[Partition]:
        """Make the files of new partitions; `adopt` puts them to use.

        `deleted`: the ids of topics whose files could not be removed.
        """
        self.remove_strays(topic, indexes, deleted)
        # With a cache of its own: the shared one belongs to the loop, which goes on meanwhile.
        files = FileCache(self._disk, _FILES_WHILE_MAKING)
        made = [self._open(topic, TopicPartition(topic.name, index), settings, True, 0, 0, files) for index in indexes]
        self._disk.sync_folder(self._data_dir)
        return made

    def remove_strays(self, topic: Topic, indexes: Sequence[int], deleted: Collection[TopicId] = ()) -> None:
        """What an attempt to make, grow or delete a topic of this name has left behind of these partitions."""
        for index in indexes:
            tp = TopicPartition(topic.name, index)
            try:
                clear_way(self._disk, self._data_dir, tp, deleted)
            except OSError as error:
                log.warning("leftover_stays", folder=str(tp), reason=str(error))

    def adopt(self, topic: Topic, made: list[Partition]) -> None:
        """A broker that is alone leads them from here on; others wait for their roles.

        `topic`: as it is now. While they were made its settings may have been altered, or what it inherits.
        """
        held = self._held.setdefault(topic.id, {})
        settings, is_min_in_sync_set = self.settings_of(topic), self._is_min_in_sync_set(topic)
        for partition in made:
            partition.share_files(self._files)
            partition.configure(settings, is_min_in_sync_set=is_min_in_sync_set)
            held[partition.tp.partition] = partition
            if self.membership is None:
                partition.lead(topic.partitions[partition.tp.partition], self._clock.now_ms())

    def configure(self, topic: Topic, settings: TopicSettings) -> None:
        for partition in self.of_topic(topic):
            partition.configure(settings, is_min_in_sync_set=self._is_min_in_sync_set(topic))

    def configure_opened(self, topics: Iterable[Topic]) -> None:
        """Those that were altered between the opening of their files and now."""
        opened_with, self._opened_with = self._opened_with, {}
        for topic in topics:
            if opened_with.get(topic.id, topic.overrides) != topic.overrides:
                self.configure(topic, self.settings_of(topic))

    def _is_min_in_sync_set(self, topic: Topic) -> bool:
        return (
            MIN_IN_SYNC in topic.overrides or self.defaults.min_insync_replicas != TopicSettings().min_insync_replicas
        )

    def rules_of(self, topic: Topic) -> ElectionRules:
        """What its settings say about electing leaders."""
        settings = self.settings_of(topic)
        return ElectionRules(
            settings.min_insync_replicas if self._is_min_in_sync_set(topic) else None,
            settings.is_durable,
            settings.unclean_leader_election_enable,
        )

    def retire(self, topic_id: TopicId) -> list[Partition]:
        """Take a topic out of service; `remove_files` follows."""
        retired = list(self._held.pop(topic_id, {}).values())
        for partition in retired:
            partition.retire(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return retired

    def give_up(self, topic: Topic, indexes: Iterable[int]) -> list[Partition]:
        """Take some partitions out of service: other brokers have them. `remove_files` follows."""
        held = self._held.get(topic.id, {})
        given_up = [held.pop(index) for index in indexes if index in held]
        for partition in given_up:
            partition.retire(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return given_up

    async def settle(self, partitions: Iterable[Partition]) -> None:
        """Returns when no flush of these is under way: a flush writes into the folder by its name."""
        await self._commits.settle(partitions)

    def remove_files(self, retired: list[Partition]) -> None:
        remove_folders(self._disk, self._data_dir, ((one.tp, one.topic_id) for one in retired))

    def keep_damaged(self, partition: Partition) -> str:
        """Put aside what is going to be filled anew: until that is done, it is better than nothing."""
        return keep_damaged(self._disk, self._data_dir, partition.tp, partition.topic_id)

    def damaged_kept(self) -> dict[tuple[TopicId, int], str]:
        return damaged_kept(self._disk, self._data_dir)

    def remove_kept(self, name: str) -> None:
        self._disk.remove_folder(os.path.join(self._data_dir, name))

    async def close_all(self) -> None:
        """Trouble with one partition keeps none of the others from being closed; it counts as failed afterwards."""
        waiting = iter(list(self))
        await asyncio.gather(*(_close_each(waiting) for _ in range(_CLOSING_AT_ONCE)))

    def _open(
        self,
        topic: Topic,
        tp: TopicPartition,
        settings: TopicSettings,
        clean: bool,
        start: int,
        recovery_point: int,
        files: FileCache,
    ) -> Partition:
        opened = Log.open(
            self._disk,
            os.path.join(self._data_dir, str(tp)),
            LogConfig.of(settings),
            now_ms=self._clock.now_ms(),
            clean=clean,
            topic_id=topic.id,
            start_offset=start,
            recovery_point=recovery_point,
            files=files,
            is_replicated=self.membership is not None and len(topic.partitions[tp.partition].replicas) > 1,
        )
        if opened.recovery.cut_bytes:
            log.warning("tail_cut", partition=tp, bytes=opened.recovery.cut_bytes, reason=opened.recovery.reason)
        producers = load_producers(
            self._disk,
            opened,
            self._clock.now_ms(),
            clean=clean and opened.recovery.was_clean,  # a log that was cut has snapshots of what is lost
            recovery_point=recovery_point,
            limits=self._producer_limits,
        )
        epoch = topic.partitions[tp.partition].leader_epoch
        made = Partition(
            tp, topic.id, opened, settings, epoch, self._commits, self._disk, producers, self.room, self.membership
        )
        made.configure(settings, is_min_in_sync_set=self._is_min_in_sync_set(topic))
        return made


async def _close_each(waiting: Iterator[Partition]) -> None:
    for partition in waiting:
        if partition.failure is None:
            try:
                ticket = partition.begin_close()
                if ticket is not None:
                    await _run(ticket)
                partition.finish_close(ticket)
            except OSError as error:
                log.error("close_failed", partition=partition.tp, reason=str(error))
                partition.fail(error)


async def _run(ticket: FlushTicket) -> None:
    try:
        await in_thread(ticket.run)
    except OSError:
        if ticket.error is not None:
            raise
        ticket.run()  # at a program's end there may be no thread to have, and nobody waits for the loop any more
