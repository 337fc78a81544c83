"""One partition: what is written into its log, by producers and coordinators where it leads, and by its leader else.

A produced batch is checked, gets its place, and is written as it came; what a follower writes is `following`'s, and
what becomes of either then `committing`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clarion.log.batch_headers import DamagedSegment, Reader, read_any
from clarion.log.log import Log
from clarion.log.room import Room
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId, TopicPartition
from clarion.model.topic_settings import TopicSettings
from clarion.replication.committing import Watcher
from clarion.replication.following import FollowingPartition
from clarion.replication.group_commit import GroupCommit
from clarion.replication.leader import FLUSH, TELL_COMMITTED
from clarion.replication.membership import Membership
from clarion.replication.preparation import Preparation, check_size, preparation_for
from clarion.replication.producer_files import recall_older
from clarion.replication.producers import FIRST_KEYED_ID, REFUSED_KEPT_MS, KnownBatch, ProducerStates
from clarion.wire.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    check_produced_batch,
    has_good_crc,
    read_header,
    stamp,
    stamp_log_append_time,
)
from clarion.wire.limits import WorkBudget
from clarion.world import Disk, event_log

__all__ = ["Appended", "Partition", "Watcher"]

log = event_log("replication")

_NOT_FOR_CLIENTS: Final = LOG_APPEND_TIME | TRANSACTIONAL  # the second until there are transactions


class Appended:
    """Where a batch came to lie."""

    __slots__ = ("base_offset", "last_offset", "log_append_time_ms")

    def __init__(self, base_offset: int, last_offset: int, log_append_time_ms: int) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.log_append_time_ms = log_append_time_ms  # -1 unless the broker stamps it


class Partition(FollowingPartition):
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
        membership: Membership | None = None,
    ) -> None:
        """It has no role yet: `lead` or `follow` gives it one. `leader_epoch`: the latest that is known of it."""
        super().__init__(
            tp, topic_id, partition_log, settings, leader_epoch, commits, disk, producers, room or Room(), membership
        )
        self.preparing = 0  # requests whose batches for this partition are in a thread, or wait for one
        self.bytes_in_total = 0
        self.messages_in_total = 0
        self.bytes_out_total = 0
        self.replicated_out_total = 0  # bytes to its followers
        self.configure(settings)

    def _this(self) -> Partition:
        return self

    def configure(self, settings: TopicSettings, *, is_min_in_sync_set: bool = True) -> None:
        self._bytes_max = settings.max_message_bytes
        self._stamps_time = settings.is_log_append_time
        self.preparation: Preparation | None = preparation_for(self.tp.topic, settings)
        self._after_max_ms = settings.message_timestamp_after_max_ms
        self._before_max_ms = settings.message_timestamp_before_max_ms
        super().configure(settings, is_min_in_sync_set=is_min_in_sync_set)

    # What producers write

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Check one produced batch, give it its place and write it. KafkaError says why it is refused.

        The caller has found out in this turn that this broker leads the partition.
        """
        if self.preparation is not None:
            return self.append_prepared(self.preparation(batch, WorkBudget.for_bytes(len(batch))), now_ms)
        if len(batch) >= HEADER_BYTES:
            # Before the check, which reads the header anyway: both fields sit outside the checksum.
            stamp(batch, self.log.next_offset, self.leader_epoch)
        return self._append_checked(batch, check_produced_batch(batch), now_ms)

    def append_prepared(self, batch: memoryview, now_ms: int) -> Appended:
        """The same for what a `preparation` has returned. Meanwhile the topic may have been deleted, or moved."""
        self.check_takes(batch, now_ms)
        stamp(batch, self.log.next_offset, self.leader_epoch)
        return self._append_checked(batch, read_header(batch), now_ms)

    def append_own(self, batch: bytearray, now_ms: int) -> Appended:
        """Append a batch that this broker made itself (a coordinator's records)."""
        self.check_leads()
        stamp(batch, self.log.next_offset, self.leader_epoch)
        return self._write(memoryview(batch), read_header(batch), now_ms)

    def _append_checked(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        if self.membership is not None:
            self.check_takes(batch, now_ms)
        self._admit(batch, header, now_ms)
        if header.producer_id >= 0:
            if self._empty_at_ms is not None and self.membership is not None:
                self._check_begins(header, now_ms)
            try:
                known = self.producers.check(header, now_ms)
            except KafkaError as error:
                known = self._recall(header, error, now_ms)
            if known is not None:
                return self._repeated(known)
        room, size = self._room, len(batch)
        if size > room.left_bytes:
            raise self._refused_for_room(header, now_ms)
        room.left_bytes -= size
        return self._write(batch, header, now_ms)

    def _check_begins(self, header: BatchHeader, now_ms: int) -> None:
        """Others may have turned away what comes before it, and this broker when it knew nothing of the partition yet:
        nobody has noted that. Who begins in the middle is asked to come again, once; what lacks comes before it then.
        """
        if self._empty_at_ms is None or abs(now_ms - self._empty_at_ms) > REFUSED_KEPT_MS:
            self._empty_at_ms = None
            return
        is_first = header.producer_id < FIRST_KEYED_ID and self.producers.find(header.producer_id) is None
        if is_first and header.base_sequence:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self.producers.refuse(header, now_ms, code)
            raise KafkaError(
                code, f"producer {header.producer_id}: {self.tp} is new, and has nothing before {header.base_sequence}"
            )

    def _refused_for_room(self, header: BatchHeader, now_ms: int) -> KafkaError:
        self.producers.refuse(header, now_ms, ErrorCode.KAFKA_STORAGE_ERROR)
        self._room.refused_bytes = max(self._room.refused_bytes, header.size_bytes)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._room.sentence)

    def note_refused(self, batch: memoryview, now_ms: int, code: ErrorCode) -> None:
        """A batch was turned away unread and will come again: none behind it may begin its producer's sequence."""
        if len(batch) >= HEADER_BYTES and not self.is_gone:
            self.producers.refuse(read_header(batch), now_ms, code)

    def check_takes(self, batch: memoryview, now_ms: int) -> None:
        """`check_leads` for a batch: where this broker leads a moment later, what is on its way waits for it."""
        try:
            self.check_leads()
        except KafkaError as error:
            self.note_refused(batch, now_ms, error.code)
            raise

    def check_in_sync(self, batch: memoryview, now_ms: int) -> None:
        """Before a batch is appended for whom only min.insync.replicas are enough: nothing is written then."""
        if not self.takes_all:
            self.check_leads()
            code, minimum = ErrorCode.NOT_ENOUGH_REPLICAS, self._min_in_sync(self._state)
            self.note_refused(batch, now_ms, code)
            raise KafkaError(code, f"{self.tp} has {self.in_sync_count} in sync; min.insync.replicas is {minimum}")

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

    def _recall(self, header: BatchHeader, refusal: KafkaError, now_ms: int) -> KnownBatch | None:
        """A batch that seems out of order may repeat one that was written before the last restart."""
        producer = self.producers.find(header.producer_id)
        if producer is None or not producer.is_restored or producer.epoch != header.producer_epoch:
            raise refusal
        try:
            recall_older(self.log, producer)
        except (OSError, DamagedSegment) as error:
            log.warning("producer_not_recalled", partition=self.tp, producer=producer.id, reason=str(error))
        return self.producers.check(header, now_ms)

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
        leader = self._leader
        assert leader is not None, "only a leader gives batches their place"
        try:
            segment = self.log.end.segment
            end = self.log.append(batch, header, now_ms)
        except OSError as error:
            self.producers.refuse(header, now_ms, ErrorCode.KAFKA_STORAGE_ERROR)
            raise self._storage_error(error, now_ms) from error
        if header.producer_id >= 0:
            self.producers.replay(header, now_ms)
        if end.segment != segment:
            self._on_roll()
        self.bytes_in_total += len(batch)
        self.messages_in_total += header.record_count
        commands = leader.on_append(end)
        if commands is TELL_COMMITTED:
            self._tell_committed(end)
        elif commands is FLUSH:
            self._commits.request(self)
        else:
            self._perform(commands)
        return Appended(header.base_offset, end.offset - 1, append_time)

    # What followers fetch from here

    def on_replica_fetch(
        self,
        replica: int,
        offset: int,
        now_ms: int,
        *,
        flushed_offset: int = -1,
        start_offset: int = 0,
        life: int = -1,
    ) -> None:
        """A follower has all before the offset: it fetches in this epoch, and its log agrees with this one."""
        leader = self._leader
        if leader is None or not leader.is_follower(replica):
            # As in Kafka: one of the two has yet to hear of an assignment.
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica} is no replica of {self.tp} as known here"
            )
        self._perform(
            leader.on_fetch(
                replica, offset, now_ms, flushed_offset=flushed_offset, start_offset=start_offset, life=life
            )
        )

    def follower_lags(self) -> Iterator[tuple[int, int]]:
        """How many messages each follower lacks: all of them, as long as it has not fetched in this term."""
        if self._leader is not None:
            for replica, next_offset in self._leader.positions():
                yield replica, self.next_offset - max(next_offset, self.start_offset)

    def check_what_was_sent(self, replica: int, offset: int, now_ms: int) -> None:
        """A follower that comes back for the same may have found it damaged. CORRUPT_MESSAGE if it is, on this disk."""
        if self._leader is None or not self._leader.returns_to(replica, offset, now_ms):
            return
        try:
            data = memoryview(b"".join([one.read() for one in self.log.read(offset, 1, self.log.end)]))
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp} cannot be read: {error}") from error
        header = read_header(data)
        if not has_good_crc(data[: header.size_bytes], header):
            reason = f"{self.tp}: the batch at {offset} does not match its checksum"
            self.log.note_damage(reason)
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)

    def read_as_replica(
        self, offset: int, max_bytes: int, *, at_least_one_batch: bool = True, reader: Reader = read_any
    ) -> list[FileSlice]:
        """What there is, committed or not."""
        return self.log.read(offset, max_bytes, self.log.end, at_least_one_batch=at_least_one_batch, reader=reader)


def _refused_attribute(header: BatchHeader) -> KafkaError:
    if header.is_transactional:
        return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet")
    return KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker stamps the time of appending")
