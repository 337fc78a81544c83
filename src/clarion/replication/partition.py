"""The leader's side of one partition: it admits batches, gives them offsets, and moves the watermark.

    log start          high watermark            log end
        │ readable: committed │ appended, not yet committed │
        └─────────────────────┴────────────────────────────┘

Invariants: the high watermark never falls and never passes the log's end; with `fsync` durability it never passes what
has been flushed. A leader's term is numbered by its epoch, which grows at every start of the broker, so that a reader
can tell a log that lost its tail from the one it knew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from clarion.log.log import Log
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition, TopicId, TopicPartition
from clarion.model.topic_settings import TopicSettings
from clarion.replication.group_commit import FlushTicket, GroupCommit
from clarion.replication.producer_files import save_producers
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
from clarion.wire.records import check_deep
from clarion.world import NO_ROOM, Disk, event_log

log = event_log("replication")

_NOT_FOR_CLIENTS: Final = LOG_APPEND_TIME | TRANSACTIONAL  # the second until there are transactions

CommitCallback = Callable[[ErrorCode], None]


class Watcher(Protocol):
    """A reader that waits for more."""

    def on_progress(self, partition: Partition) -> None:
        """The watermark has moved, or the partition has gone."""
        ...


class Appended:
    """Where a batch came to lie."""

    __slots__ = ("base_offset", "is_duplicate", "last_offset", "log_append_time_ms")

    def __init__(self, base_offset: int, last_offset: int, log_append_time_ms: int, is_duplicate: bool) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms
        self.is_duplicate = is_duplicate


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
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = partition_log
        self.leader_epoch = leader_epoch
        self.producers = producers
        # The only replica: what recovery found and flushed is committed.
        self.high_watermark: LogPosition = partition_log.end
        self.watchers: dict[Watcher, None] = {}
        self.is_flushing = False
        self.is_gone = False
        self.bytes_in_total = 0
        self.messages_in_total = 0
        self.bytes_out_total = 0
        self._commits = commits
        self._disk = disk
        self._waiting: deque[tuple[int, CommitCallback]] = deque()
        self.configure(settings)

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings
        self._is_durable = settings.is_durable
        self._bytes_max = settings.max_message_bytes
        self._stamps_time = settings.is_log_append_time
        self._checks_deep = settings.is_validated_deeply
        self._after_max_ms = settings.message_timestamp_after_max_ms
        self._before_max_ms = settings.message_timestamp_before_max_ms
        if not self._is_durable and self.high_watermark < self.log.end:
            self._advance(self.log.end)

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    # Writing

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Check one produced batch, give it its place and write it. KafkaError says why it is refused."""
        if len(batch) >= HEADER_BYTES:
            # Before the check, which reads the header anyway: both fields sit outside the checksum.
            stamp(batch, self.log.next_offset, self.leader_epoch)
        header = check_produced_batch(batch)
        self._admit(batch, header, now_ms)
        if header.producer_id >= 0:
            known = self.producers.check(header)
            if known is not None:
                return _repeated(known)
        return self._write(batch, header, now_ms)

    def append_own(self, batch: bytearray, now_ms: int) -> Appended:
        """Append a batch that this broker made itself (a coordinator's records)."""
        stamp(batch, self.log.next_offset, self.leader_epoch)
        return self._write(memoryview(batch), read_header(batch), now_ms)

    def when_committed(self, last_offset: int, callback: CommitCallback) -> bool:
        """True if `last_offset` is committed already; else the callback is called once, when it is or never will be."""
        if last_offset < self.high_watermark.offset:
            return True
        self._waiting.append((last_offset, callback))
        return False

    def _admit(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        if len(batch) > self._bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(batch)} bytes; {self.tp.topic} takes at most {self._bytes_max} (max.message.bytes)",
            )
        if header.attributes & _NOT_FOR_CLIENTS:
            raise _refused_attribute(header)
        if not self._stamps_time:
            self._check_time(header, now_ms)
        if self._checks_deep:
            check_deep(batch, header, keys_required=self.settings.is_compacted)

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
            raise self._storage_error(error) from error
        if header.producer_id >= 0:
            self.producers.replay(header, now_ms)
        if end.segment != segment:
            self._on_roll()
        self.bytes_in_total += len(batch)
        self.messages_in_total += header.record_count
        if self._is_durable:
            self._commits.request(self)
        else:
            self._advance(end)
        return Appended(header.base_offset, end.offset - 1, append_time, False)

    def roll(self, now_ms: int) -> None:
        """Seal the active segment. Where all is committed, the watermark moves to the new file at the same offset."""
        self.log.roll(now_ms)
        if self.high_watermark.offset == self.log.next_offset:
            self._advance(self.log.end)

    def _on_roll(self) -> None:
        """What recovery would have to look at again ends with the segment: its bytes go to disk, its producers too."""
        try:
            save_producers(self._disk, self.log, self.producers)
        except OSError as error:
            # The one before it is still there: a start has more to read, and finds the same.
            log.warning("snapshot_not_saved", partition=self.tp, reason=str(error))
        self._commits.request(self)

    def _storage_error(self, error: OSError) -> KafkaError:
        if error.errno in NO_ROOM:
            log.warning("no_room", partition=self.tp, reason=str(error))
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the disk is full; {self.tp} takes no messages until it is not"
            )
        if self.log.failed is None:
            log.warning("append_put_off", partition=self.tp, reason=str(error))
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp} takes no messages for now: {error}")
        log.error("log_offline", partition=self.tp, reason=str(error))
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp} is offline after a disk error: {error}")

    # Committing

    def flush_soon(self) -> None:
        """Flush what is appended, whatever the durability: somebody is going to build on it."""
        self._commits.request(self)

    @property
    def needs_flush(self) -> bool:
        return self._is_durable and self.log.flushed < self.log.end and self.log.failed is None and not self.is_gone

    def begin_flush(self) -> FlushTicket:
        return self.log.begin_flush()

    def finish_flush(self, ticket: FlushTicket) -> None:
        if self.is_gone:
            return
        self.log.finish_flush(ticket)  # type: ignore[arg-type]
        if self._is_durable and self.high_watermark < self.log.flushed:
            self._advance(self.log.flushed)

    def fail_flush(self, error: OSError) -> None:
        self.is_flushing = False
        if self.is_gone:
            return
        self.log.failed = error
        log.error("log_offline", partition=self.tp, reason=f"flush failed: {error}")
        self._give_up_waiting(ErrorCode.KAFKA_STORAGE_ERROR)

    def _advance(self, position: LogPosition) -> None:
        assert self.high_watermark <= position <= self.log.end, "the watermark never falls and never passes the end"
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

    def save_producers(self) -> None:
        """Write a snapshot at the log's end: a start need not read the log before it."""
        save_producers(self._disk, self.log, self.producers)

    def retire(self, code: ErrorCode) -> None:
        """The topic is deleted or the broker stops: nobody waits for this partition any longer."""
        self.is_gone = True
        self._give_up_waiting(code)
        for watcher in list(self.watchers):
            watcher.on_progress(self)
        self.watchers.clear()


def _refused_attribute(header: BatchHeader) -> KafkaError:
    if header.is_transactional:
        return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet")
    return KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker stamps the time of appending")


def _repeated(known: KnownBatch) -> Appended:
    return Appended(known.base_offset, known.last_offset, -1, True)
