"""What a follower does with what its leader sends: written as it is, cut where the logs part, or begun anew.

What it decides about that is `follower`'s.
"""

from __future__ import annotations

from typing import Final

from clarion.log.log import Log
from clarion.log.room import Room
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition, TopicId, TopicPartition
from clarion.model.topic_settings import TopicSettings
from clarion.replication.follower import Follower, Position
from clarion.replication.group_commit import GroupCommit
from clarion.replication.membership import Membership
from clarion.replication.producer_files import load_producers
from clarion.replication.producers import ProducerStates
from clarion.replication.roles import AssignedPartition
from clarion.wire.batch import HEADER_BYTES, BatchHeader, has_good_crc, read_header
from clarion.world import NO_ROOM, Disk, event_log

log = event_log("replication")

_LOG_INTERVAL_MS: Final = 10_000  # a full disk refuses every message, and is logged this often


class FollowingPartition(AssignedPartition):
    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        partition_log: Log,
        settings: TopicSettings,
        leader_epoch: int,
        commits: GroupCommit,
        disk: Disk,
        producers: ProducerStates,
        room: Room,
        membership: Membership | None,
    ) -> None:
        super().__init__(tp, topic_id, partition_log, settings, leader_epoch, commits, producers, membership)
        self.replicated_in_total = 0  # bytes from its leader
        self._disk = disk
        self._room = room
        self._last_logged_ms = 0  # when trouble with the disk was last logged

    @property
    def position(self) -> Position:
        """What the next fetch tells the leader."""
        one = self.log
        return Position(one.next_offset, one.epochs.latest, one.flushed.offset, self.told_start, self.leader_epoch)

    def append_fetched(self, records: memoryview, now_ms: int) -> int:
        """Write what the leader sent, as it is; returns how many bytes were new.

        A batch that is cut off at the end comes again. KafkaError if one is damaged, or cannot be written.
        """
        follower = self._followed()
        at, written = 0, 0
        while len(records) - at >= HEADER_BYTES:
            header = read_header(records, at)
            size = header.size_bytes
            if size < HEADER_BYTES:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.tp}: the leader sent a batch of {size} bytes")
            if len(records) - at < size:
                break
            is_empty = self.log.start_offset == self.log.next_offset
            if follower.on_batch(header, self.log.epochs.latest, is_empty=is_empty):
                self._append_fetched(follower, records[at : at + size], header, now_ms)
                written += size
            at += size
        if written and self._is_durable:
            self._commits.request(self)
        return written

    def _append_fetched(self, follower: Follower, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        if not has_good_crc(batch, header):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"{self.tp}: the leader's batch at {header.base_offset} is damaged"
            )
        if len(batch) > self._room.left_bytes:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._room.sentence)
        self._room.left_bytes -= len(batch)
        start = self.log.start_offset
        if header.base_offset < start:  # what was deleted ends in the middle of it: it is there whole, as on the leader
            self._cut(follower, header.base_offset, now_ms, begins_anew=True)
        try:
            segment = self.log.end.segment
            end = self.log.append(batch, header, now_ms)
        except OSError as error:
            raise self._storage_error(error, now_ms) from error
        if header.base_offset < start:
            self.log.raise_start(start)
        if header.producer_id >= 0:
            self.producers.replay(header, now_ms)
        if end.segment != segment:
            self._on_roll()
        self.replicated_in_total += len(batch)
        follower.on_appended(end)

    def note_leader(self, high_watermark: int, start_offset: int) -> None:
        """What the leader says of its log: its start and its watermark are this one's too, as far as it reaches."""
        follower = self._followed()
        reached = min(high_watermark, self.log.next_offset)
        is_new = follower.on_leader_watermark(high_watermark)
        if follower.high_watermark.offset < start_offset <= reached:
            is_new = follower.on_committed(self._end_before(reached)) or is_new
        if is_new:
            self._tell_committed(follower.high_watermark)
        if self.told_start < start_offset <= self.high_watermark.offset:
            self._follow_start(start_offset)

    def _end_before(self, offset: int) -> LogPosition:
        """Looked for in the log: since the last start it is not known where the batches end that were there then."""
        place = self.log.position_of(offset)
        return place._replace(offset=min(place.offset, offset))

    def cut_where_logs_part(self, epoch: int, end_offset: int, now_ms: int) -> None:
        """The leader knows no more of this log than up to there; the next fetch compares again."""
        follower = self._followed()
        if self.log.forget_empty_epochs():
            return  # what the leader compared says of no message in here where it is from
        offset = follower.on_diverging(epoch, end_offset, self.log.epochs)
        committed, before = self.high_watermark.offset, self.log.next_offset
        # What is committed is cut by no election but one that loses messages. An older value may be gone because of a
        # newer one that is cut now: its leader has it, and would not send it. (All else must stay: who is in sync may
        # be the next to lead.)
        begins_anew = self.settings.is_compacted and offset < committed
        if begins_anew:
            offset = min(offset, self.log.start_offset)
        self._cut(follower, offset, now_ms, begins_anew=begins_anew)
        tell = log.warning if self.log.next_offset < committed else log.info
        tell("log_cut", partition=self.tp, at=self.log.next_offset, before=before, epoch=epoch, watermark=committed)

    def begin_anew(self, leader_start: int, now_ms: int) -> bool:
        """The leader has nothing where this log ends: begin anew where its log begins. False if it does already."""
        follower = self._followed()
        offset = follower.on_out_of_range(leader_start)
        if offset is None:
            return False
        log.warning("log_begun_anew", partition=self.tp, at=offset, before=self.log.next_offset)
        self._cut(follower, offset, now_ms, begins_anew=True)
        return True

    def _cut(self, follower: Follower, offset: int, now_ms: int, *, begins_anew: bool = False) -> None:
        try:
            if begins_anew:
                self.log.restart_at(offset, now_ms)
            else:
                self.log.truncate_to(offset, now_ms)
        except OSError as error:
            raise self._storage_error(error, now_ms) from error
        finally:
            self.saved_start = self.told_start  # if it begins further back now, its disk is yet to have that
            follower.on_cut(self.log.end)
            self.high_watermark = follower.high_watermark
        self._load_producers_again(now_ms)

    def _load_producers_again(self, now_ms: int) -> None:
        """As of the log's present end. The next flush saves them: a full disk keeps no follower from going on."""
        # Where it has taken all snapshots along, what the last of them knew is behind the recovery point, too.
        limits, point = self.producers.limits, 0 if self.producers.has_snapshot else self.recovery_point
        self.producers.forget_all()
        try:
            self.producers = load_producers(
                self._disk, self.log, now_ms, clean=False, recovery_point=point, limits=limits, saves=False
            )
        except OSError as error:
            self.log.fail(error)  # without its producers it must not lead
            raise self._storage_error(error, now_ms) from error
        self._snapshot_due_at = self._snapshot_due_from = -1
        if len(self.producers):
            if not self.producers.has_snapshot:  # until there is one, a start after a crash reads all of it
                self._snapshot_due_from = self.log.start.segment
            self._on_roll()

    def _followed(self) -> Follower:
        if self._follower is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} follows nobody")
        return self._follower

    def _storage_error(self, error: OSError, now_ms: int) -> KafkaError:
        if self.log.failed is not None:
            event, message = "log_offline", f"{self.tp} is offline after a disk error: {error}"
        elif error.errno in NO_ROOM:
            event, message = "no_room", f"the disk is full; {self.tp} takes no messages until it is not"
        else:
            event, message = "append_put_off", f"{self.tp} takes no messages for now: {error}"
        if abs(now_ms - self._last_logged_ms) >= _LOG_INTERVAL_MS:
            self._last_logged_ms = now_ms
            (log.warning if self.log.failed is None else log.error)(event, partition=self.tp, reason=str(error))
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
