"""The leader's side of one partition: it admits batches, gives them offsets, and moves the watermark.

    log start          high watermark            log end
        │ readable: committed │ appended, not yet committed │
        └─────────────────────┴────────────────────────────┘

When a batch is committed is decided by `Leader`, which does nothing; what it decides is done here. A leader's term is
numbered by its epoch, which grows whenever a term begins, so that a reader can tell a log that lost its tail from the
one it knew.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from clarion.log.flush import FlushTicket
from clarion.log.hops import DamagedSegment
from clarion.log.log import Log
from clarion.log.room import Room
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition, TopicId, TopicPartition
from clarion.model.topic_settings import TopicSettings
from clarion.replication.group_commit import GroupCommit
from clarion.replication.leader import FLUSH, TELL_COMMITTED, Commands, Do, Leader
from clarion.replication.preparation import Preparation, check_size, preparation_for
from clarion.replication.producer_files import producer_entries, recall_older
from clarion.replication.producers import KnownBatch, ProducerStates
from clarion.wire.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    check_produced_batch,
    read_header,
    stamp,
    stamp_log_append_time,
)
from clarion.wire.limits import WorkBudget
from clarion.world import NO_ROOM, Disk, event_log

log = event_log("replication")

_NOT_FOR_CLIENTS: Final = LOG_APPEND_TIME | TRANSACTIONAL  # the second until there are transactions
_TELL_AGAIN_MS: Final = 10_000  # a full disk refuses every message, and is logged this often

CommitCallback = Callable[[ErrorCode], None]


class Watcher(Protocol):
    """A reader that waits for more."""

    def on_progress(self, partition: Partition) -> None:
        """The watermark has moved, or the partition has gone."""
        ...


class Appended:
    """Where a batch came to lie."""

    __slots__ = ("base_offset", "last_offset", "log_append_time_ms")

    def __init__(self, base_offset: int, last_offset: int, log_append_time_ms: int) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms  # -1 unless the broker stamps it


class Partition:
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
        room: Room | None = None,
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = partition_log
        self.leader_epoch = leader_epoch
        self.producers = producers
        # The only replica: what recovery found and flushed is committed.
        self._leader = Leader(
            partition_log.end, is_durable=settings.is_durable, min_in_sync=settings.min_insync_replicas
        )
        self.high_watermark: LogPosition = partition_log.end
        self.watchers: dict[Watcher, None] = {}
        self.is_flushing = False
        self.is_gone = False
        self.preparing = 0  # requests whose batches for this partition are in a thread, or wait for one
        self.bytes_in_total = 0
        self.messages_in_total = 0
        self.bytes_out_total = 0
        self._commits = commits
        self._disk = disk
        self._room = room or Room()
        self._waiting: deque[tuple[int, CommitCallback]] = deque()
        self._is_flush_wanted = False  # by somebody who cannot wait for the next append to ask for one
        self._snapshot_due_at = -1  # the offset of the last roll of whose producers there is no snapshot yet
        self._snapshot_due_from = -1  # the segment that the first such roll began
        self._told_ms = 0  # when trouble with the disk was last logged
        partition_log.on_pressure(self.flush_soon)
        self.configure(settings)

    def configure(self, settings: TopicSettings) -> None:
        """Take new settings. What was readable stays readable: the watermark never falls."""
        self.settings = settings
        self._is_durable = settings.is_durable
        self._bytes_max = settings.max_message_bytes
        self._stamps_time = settings.is_log_append_time
        self.preparation: Preparation | None = preparation_for(self.tp.topic, settings)
        self._after_max_ms = settings.message_timestamp_after_max_ms
        self._before_max_ms = settings.message_timestamp_before_max_ms
        commands = self._leader.configure(is_durable=self._is_durable, min_in_sync=settings.min_insync_replicas)
        self.has_enough_replicas = self._leader.has_enough_in_sync
        if self.log.failed is None and not self.is_gone:
            self._perform(commands)

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    # Writing

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Check one produced batch, give it its place and write it. KafkaError says why it is refused."""
        if self.preparation is not None:
            return self.append_prepared(self.preparation(batch, WorkBudget.for_bytes(len(batch))), now_ms)
        if len(batch) >= HEADER_BYTES:
            # Before the check, which reads the header anyway: both fields sit outside the checksum.
            stamp(batch, self.log.next_offset, self.leader_epoch)
        return self._append_checked(batch, check_produced_batch(batch), now_ms)

    def append_prepared(self, batch: memoryview, now_ms: int) -> Appended:
        """The same for what a `preparation` has returned. Meanwhile the topic may have been deleted."""
        if self.is_gone:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.tp} has been deleted")
        stamp(batch, self.log.next_offset, self.leader_epoch)
        return self._append_checked(batch, read_header(batch), now_ms)

    def _append_checked(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        self._admit(batch, header, now_ms)
        if header.producer_id >= 0:
            try:
                known = self.producers.check(header)
            except KafkaError as error:
                known = self._recall(header, error)
            if known is not None:
                return self._repeated(known)
        room, size = self._room, len(batch)
        if size > room.left_bytes:
            raise self._refused_for_room(header, now_ms)
        room.left_bytes -= size
        return self._write(batch, header, now_ms)

    def _refused_for_room(self, header: BatchHeader, now_ms: int) -> KafkaError:
        if header.producer_id >= 0:
            self.producers.refuse(header, now_ms)
        self._room.refused_bytes = max(self._room.refused_bytes, header.size_bytes)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._room.sentence)

    def note_refused(self, batch: memoryview, now_ms: int) -> None:
        """A batch was turned away unread and will come again: none behind it may begin its producer's sequence."""
        if len(batch) >= HEADER_BYTES and (header := read_header(batch)).producer_id >= 0:
            self.producers.refuse(header, now_ms)

    def check_in_sync(self) -> None:
        """Before a batch is appended for whom only min.insync.replicas are enough: nothing is written then."""
        if not self.has_enough_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.tp} has {1 + len(self._leader.in_sync)} replica in sync; "
                f"min.insync.replicas is {self.settings.min_insync_replicas}",
            )

    def append_own(self, batch: bytearray, now_ms: int) -> Appended:
        """Append a batch that this broker made itself (a coordinator's records)."""
        stamp(batch, self.log.next_offset, self.leader_epoch)
        return self._write(memoryview(batch), read_header(batch), now_ms)

    def when_committed(self, last_offset: int, callback: CommitCallback) -> bool:
        """True if `last_offset` is committed already; else the callback is called once, when it is or never will be."""
        if last_offset < self.high_watermark.offset:
            return True
        if self.is_gone or self.log.failed is not None:
            callback(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self.is_gone else ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._waiting.append((last_offset, callback))
        return False

    def _admit(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        check_size(batch, self.tp.topic, self._bytes_max)
        if header.attributes & _NOT_FOR_CLIENTS:
            raise _refused_attribute(header)
        if not self._stamps_time:
            self._check_time(header, now_ms)

    def _check_time(self, header: BatchHeader, now_ms: int) -> None:
        if header.max_timestamp > now_ms + self._after_max_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {header.max_timestamp} is more than {self._after_max_ms} ms ahead of the broker's clock "
                f"(message.timestamp.after.max.ms)",
            )
        if 0 <= header.base_timestamp < now_ms - self._before_max_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {header.base_timestamp} is more than {self._before_max_ms} ms behind the broker's clock "
                f"(message.timestamp.before.max.ms)",
            )

    def _recall(self, header: BatchHeader, refusal: KafkaError) -> KnownBatch | None:
        """A batch that seems out of order may repeat one that was written before the last restart."""
        producer = self.producers.find(header.producer_id)
        if producer is None or not producer.is_restored or producer.epoch != header.producer_epoch:
            raise refusal
        try:
            recall_older(self.log, producer)
        except (OSError, DamagedSegment) as error:
            log.warning("producer_not_recalled", partition=self.tp, producer=producer.id, reason=str(error))
        return self.producers.check(header)

    def _repeated(self, known: KnownBatch) -> Appended:
        if self.log.failed is not None and known.last_offset >= self.high_watermark.offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp} went offline before this batch was committed")
        return Appended(known.base_offset, known.last_offset, known.timestamp_ms if self._stamps_time else -1)

    def _write(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        append_time = -1
        if self._stamps_time:
            stamp_log_append_time(batch, now_ms)
            append_time = now_ms
            header = header._replace(max_timestamp=now_ms, attributes=header.attributes | LOG_APPEND_TIME)
        try:
            segment = self.log.end.segment
            end = self.log.append(batch, header, now_ms)
        except OSError as error:
            if header.producer_id >= 0:
                self.producers.refuse(header, now_ms)
            raise self._storage_error(error, now_ms) from error
        if header.producer_id >= 0:
            self.producers.replay(header, now_ms)
        if end.segment != segment:
            self._on_roll()
        self.bytes_in_total += len(batch)
        self.messages_in_total += header.record_count
        commands = self._leader.on_append(end)
        if commands is TELL_COMMITTED:
            self._tell_committed(end)
        elif commands is FLUSH:
            self._commits.request(self)
        else:
            self._perform(commands)
        return Appended(header.base_offset, end.offset - 1, append_time)

    def roll(self, now_ms: int) -> None:
        """Seal the active segment. Where all is committed, the watermark moves to the new file at the same offset."""
        segment = self.log.end.segment
        self.log.roll(now_ms)
        if self.log.end.segment == segment:
            return
        self._perform(self._leader.on_roll(self.log.end))
        self._on_roll()

    def _on_roll(self) -> None:
        """What recovery would have to look at again ends with the segment: its bytes go to disk, its producers too."""
        if len(self.producers) or self.producers.has_snapshot:
            self._snapshot_due_at = self.log.next_offset
            if self._snapshot_due_from < 0:
                self._snapshot_due_from = self.log.end.segment
        self.flush_soon()

    @property
    def recovery_point(self) -> int:
        """What a start after a crash need not look at: it is flushed, and a snapshot knows its producers."""
        flushed = self.log.flushed.offset
        return flushed if self._snapshot_due_from < 0 else min(flushed, self._snapshot_due_from)

    def _storage_error(self, error: OSError, now_ms: int) -> KafkaError:
        if self.log.failed is not None:
            event, message = "log_offline", f"{self.tp} is offline after a disk error: {error}"
        elif error.errno in NO_ROOM:
            event, message = "no_room", f"the disk is full; {self.tp} takes no messages until it is not"
        else:
            event, message = "append_put_off", f"{self.tp} takes no messages for now: {error}"
        if abs(now_ms - self._told_ms) >= _TELL_AGAIN_MS:
            self._told_ms = now_ms
            (log.warning if self.log.failed is None else log.error)(event, partition=self.tp, reason=str(error))
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    # Committing

    def flush_soon(self) -> None:
        """Flush what is appended, whatever the durability: somebody is going to build on it."""
        self._is_flush_wanted = True
        self._commits.request(self)

    @property
    def needs_flush(self) -> bool:
        if self.log.failed is not None or self.is_gone:
            return False
        return self._is_flush_wanted or (self._is_durable and self.log.flushed < self.log.end)

    def begin_flush(self) -> FlushTicket | None:
        if self.is_gone:
            return None
        self._is_flush_wanted = False
        ticket = self.log.begin_flush()
        if self._snapshot_due_at >= 0:
            self.producers.has_snapshot = True
            ticket.take_along(self.log.next_offset, producer_entries(self.producers))
        return ticket

    def finish_flush(self, ticket: FlushTicket) -> None:
        if self.is_gone:
            return
        if ticket.is_snapshot_saved and ticket.snapshot_offset >= self._snapshot_due_at:
            self._snapshot_due_at = self._snapshot_due_from = -1
        self.log.finish_flush(ticket)
        self._perform(self._leader.on_flushed(self.log.flushed))
        assert self.log.start_offset <= self.high_watermark.offset, "what readers may not see yet was deleted"

    def fail_flush(self, error: BaseException) -> None:
        """Writing is over for this log. Of a deleted one it no longer matters what its files do."""
        if self.is_gone:
            return
        if self.log.failed is None:
            is_disks = isinstance(error, OSError)
            self.log.fail(error if isinstance(error, OSError) else OSError(errno.EIO, repr(error)))
            log.error("log_offline", partition=self.tp, reason=f"flush: {error}", error=None if is_disks else error)
        self._give_up_waiting(ErrorCode.KAFKA_STORAGE_ERROR)

    def _perform(self, commands: Commands) -> None:
        for command in commands:
            if command is Do.TELL_COMMITTED:
                self._tell_committed(self._leader.high_watermark)
            elif command is Do.FLUSH:
                self._commits.request(self)
            else:
                raise AssertionError(f"{self.tp} has no followers, and {command} is about them")

    def _tell_committed(self, position: LogPosition) -> None:
        assert position.offset <= self.log.next_offset, "the watermark never passes the end"
        self.high_watermark = position
        waiting = self._waiting
        while waiting and waiting[0][0] < position.offset:
            waiting.popleft()[1](ErrorCode.NONE)
        if self.watchers:
            for watcher in list(self.watchers):
                watcher.on_progress(self)

    def _give_up_waiting(self, code: ErrorCode) -> None:
        while self._waiting:
            self._waiting.popleft()[1](code)

    # The end

    def begin_close(self) -> FlushTicket | None:
        """The broker stops: what a flush and a snapshot at the log's end have to write, so that a start reads nothing.

        `run` in a thread, then `finish_close`. None if there is nothing to write.
        """
        ticket = self.log.begin_close()
        if self.log.failed is None and (len(self.producers) or self.producers.has_snapshot):
            ticket = ticket or self.log.begin_flush()
            ticket.take_along(self.log.next_offset, producer_entries(self.producers), must_be_saved=True)
        return ticket

    def finish_close(self, ticket: FlushTicket | None) -> None:
        if ticket is not None:
            self.log.finish_flush(ticket)
        self.log.abandon()

    def retire(self, code: ErrorCode) -> None:
        """The topic is deleted or the broker stops: nobody waits for this partition any longer."""
        self.is_gone = True
        self.producers.forget_all()
        self._give_up_waiting(code)
        for watcher in list(self.watchers):
            watcher.on_progress(self)
        self.watchers.clear()


def _refused_attribute(header: BatchHeader) -> KafkaError:
    if header.is_transactional:
        return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet")
    return KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker stamps the time of appending")
