"""Dead letters: records that a queue gives up, written to another topic before they leave it.

A dead letter is the record as it was, with headers that say whose it is, where it comes from and why. It is written
when it is durable that the record is given up: else another leader may have it delivered as well. The record is
ARCHIVED when its dead letter is committed; whoever ends in between leaves it ARCHIVING, and the next leader writes the
dead letter, perhaps again. While none can be written the records stay, and count as open: a queue whose dead letters go
nowhere comes to a stop, and loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from clarion.broker.relaying import Write, writing_to
from clarion.broker.share_records import DAMAGED_MS, records_at
from clarion.broker.threads import in_thread
from clarion.cluster import Topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.runs import RecordRun, outside
from clarion.wire.batch import HEADER_BYTES
from clarion.wire.compression import Codec
from clarion.wire.records import NewRecord, Record, encode_batch
from clarion.world import event_log
from clarion.world.events import Repeats

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.share_leader import ShareLeader

log = event_log("broker")

HEADER: Final = "clarion-dead-letter-"
_LOT: Final = 500  # records at a time
_BATCH_BYTES: Final = 256 * 1024  # of records in one batch; one that is larger is alone
_RECORD_BYTES: Final = 40  # of a record, or of a header, beside what is in it, at most
_HEADERS_BYTES: Final = 8 * 1024  # by so much a dead letter may be larger than its record
_RETENTION_MS: Final = 30 * 24 * 3_600_000  # of a topic that is made for them: somebody looks within a month
_REFUSED: Final = (  # for what they are, by their topic: too large, without a key where it is compacted, too old
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
)
_PAUSE_SECONDS: Final = (0.1, 30.0)  # before it is tried again; twice as long each time


class _Lot(NamedTuple):
    batch: bytearray
    letters: list[NewRecord]
    offsets: list[int]  # of the records that they are of


def batch_bytes_max(broker: Broker, topic: Topic) -> int:
    """Of records in one batch; where its topic takes less, no more than that."""
    told = topic.overrides.get("max.message.bytes")
    taken = broker.partitions.defaults.max_message_bytes if told is None else int(told)
    return min(_BATCH_BYTES, taken - HEADER_BYTES)


def lots_of(records: list[NewRecord], bytes_max: int) -> Iterator[slice]:
    """Which of them go together into one batch; one that is larger is alone."""
    first = size = 0
    for at, record in enumerate(records):
        bytes_ = _bytes_of(record)
        if at > first and size + bytes_ > bytes_max:
            yield slice(first, at)
            first, size = at, 0
        size += bytes_
    if records:
        yield slice(first, len(records))


def encode_within(records: list[NewRecord], bytes_max: int) -> bytearray:
    """Compressed if it is larger: so it may have been written, and only so be small enough for its topic."""
    is_large = sum(map(_bytes_of, records)) > bytes_max
    return encode_batch(records, compression=Codec.GZIP if is_large else Codec.NONE)


def _bytes_of(record: NewRecord) -> int:
    """At most, in a batch."""
    key, value, headers, _ = record
    in_headers = sum(len(name) * 3 + len(value or b"") + _RECORD_BYTES for name, value in headers)
    return len(key or b"") + len(value or b"") + in_headers + _RECORD_BYTES


def _one_by_one(lot: _Lot) -> list[_Lot]:
    """For a thread."""
    each = zip(lot.letters, lot.offsets, strict=True)
    return [_Lot(encode_batch([letter]), [letter], [offset]) for letter, offset in each]


class DeadLetters:
    """Those of one share-partition."""

    def __init__(self, broker: Broker, leader: ShareLeader) -> None:
        self._broker = broker
        self._leader = leader
        self._is_writing = False
        self._failures = Repeats(lines_max=1, seconds=60.0)
        self._spoiled: list[tuple[int, int]] = []  # what the disk has spoiled: it waits, and nothing else for it
        self._spoiled_count = 0
        self._again: asyncio.Handle | None = None  # when it is looked at again

    def look(self) -> None:
        """To be called after every change."""
        if not self._is_writing and self._has_due:
            self._is_writing = True
            self._broker.turns.start(self._write_all(), lambda: None)

    def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()

    @property
    def _has_due(self) -> bool:
        return self._leader.share.given_up_count > self._spoiled_count

    async def _write_all(self) -> None:
        """From the first on, and over those that their topic refuses, which are tried again after a pause."""
        leader, pause, begin = self._leader, _PAUSE_SECONDS[0], 0
        try:
            while leader.is_current and self._has_due:
                runs = leader.share.given_up(_LOT, begin, self._spoiled)
                failure = await self._try(runs) if runs else None
                if runs and failure is None:
                    pause = _PAUSE_SECONDS[0]
                elif isinstance(failure, KafkaError) and failure.code in _REFUSED:
                    begin = runs[-1].last + 1
                elif leader.is_current:
                    begin = 0
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSE_SECONDS[1])
        finally:
            self._is_writing = False

    async def _try(self, runs: list[RecordRun]) -> Exception | None:
        """What stood in the way, if something did; else they have left the queue, but for what was found spoiled: by
        this very read, for by the end of the write `_spoiled` may have been forgotten, to be looked at again."""
        leader, spoiled = self._leader, list[tuple[int, int]]()
        try:
            await leader.wait_saved()  # of what another leader has, a letter would tell that it was given up
            if leader.rules.dead_letter_topic:  # else its subscription has gone, and they with it
                spoiled = await self._write(runs, leader.rules.dead_letter_topic)
        except (KafkaError, OSError) as error:
            if leader.is_current:
                self._complain(error)
            return error
        for first, last in outside([(run.first, run.last) for run in runs], spoiled):
            leader.share.archived(first, last)
        leader.changed()
        return None

    def _complain(self, error: Exception) -> None:
        if self._failures.allow(asyncio.get_running_loop().time()):
            reason = (error.message or error.code.name) if isinstance(error, KafkaError) else str(error)
            topic, left_out = self._leader.rules.dead_letter_topic, self._failures.take_left_out()
            log.warning("dead_letters_not_written", share=str(self._leader.key), topic=topic, reason=reason, **left_out)

    async def _write(self, runs: list[RecordRun], topic_name: str) -> list[tuple[int, int]]:
        """Of records that the log has lost meanwhile there is nothing to write. Returned is what of them is spoiled."""
        source = self._leader.partition
        records, spoiled = await records_at(source, [(run.first, run.last) for run in runs])
        if not self._leader.is_current:  # meanwhile: what was not found may have been cut here, and stand elsewhere
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if spoiled:
            self._put_off(spoiled)
        if not records:
            return spoiled
        topic = await self._topic(topic_name)
        bytes_max = batch_bytes_max(self._broker, topic)
        lots = await in_thread(lambda: self._lots(records, runs, bytes_max))
        async with writing_to(self._broker, topic, self._index_in(topic)) as write:
            await self._write_each(lots, write)
        log.info("dead_letters_written", share=str(self._leader.key), topic=topic_name, records=len(records))
        return spoiled

    def _put_off(self, spoiled: list[tuple[int, int]]) -> None:
        """The disk has spoiled these, and may be mended."""
        self._complain(
            KafkaError(ErrorCode.CORRUPT_MESSAGE, f"offsets {spoiled[0][0]} to {spoiled[-1][1]} are damaged")
        )
        self._spoiled = sorted([*self._spoiled, *spoiled])
        self._spoiled_count += sum(last - first + 1 for first, last in spoiled)
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(DAMAGED_MS / 1000, self._look_again)

    def _look_again(self) -> None:
        self._again = None
        self._spoiled, self._spoiled_count = [], 0
        self.look()

    async def _write_each(self, lots: list[_Lot], write: Write) -> None:
        """Each leaves the queue when it is written: what stands beside or behind one that its topic refuses is written,
        and not again and again with it."""
        refused: KafkaError | None = None
        waiting = deque(lots)
        while waiting:
            lot = waiting.popleft()
            try:
                await write(lot.batch)
            except KafkaError as error:
                if error.code not in _REFUSED:
                    raise
                if len(lot.letters) > 1:
                    waiting.extendleft(reversed(await in_thread(lambda lot=lot: _one_by_one(lot))))  # type: ignore[misc]
                else:
                    refused = error
                continue
            for offset in lot.offsets:
                self._leader.share.archived(offset, offset)
            self._leader.changed()
        if refused is not None:
            raise refused

    async def _topic(self, name: str) -> Topic:
        known = self._broker.image.topics.get(name)
        if known is not None:
            return known
        source = self._broker.image.topics[self._leader.partition.tp.topic]
        bytes_max = self._broker.partitions.settings_of(source).max_message_bytes + _HEADERS_BYTES
        settings = {"retention.ms": str(_RETENTION_MS), "max.message.bytes": str(bytes_max)}
        try:
            return await self._broker.create_topic(name, source.partition_count, settings)
        except KafkaError as error:
            known = self._broker.image.topics.get(name)
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or known is None:
                raise
            return known

    def _index_in(self, topic: Topic) -> int:
        """The same number, if this broker leads it, or any that it leads: where it was is in a header."""
        same: int = self._leader.key.partition % topic.partition_count
        indexes: list[int] = [same, *range(topic.partition_count)]
        for index in indexes:
            partition = self._broker.partitions.find(topic.id, index)
            if partition is not None and partition.is_leader:
                return index
        return same

    def _lots(self, records: list[Record], runs: list[RecordRun], bytes_max: int) -> list[_Lot]:
        letters = [
            self._letter(record, next(run for run in runs if run.first <= record.offset <= run.last))
            for record in records
        ]
        return [
            _Lot(encode_within(letters[part], bytes_max), letters[part], [record.offset for record in records[part]])
            for part in lots_of(letters, bytes_max)
        ]

    def _letter(self, record: Record, run: RecordRun) -> NewRecord:
        """If it has been a dead letter before, and was sent back, only its last death is told."""
        key = self._leader.key
        about = {
            "subscription": key.group_id,
            "topic": self._leader.partition.tp.topic,
            "partition": key.partition,
            "offset": record.offset,
            "deliveries": run.deliveries,
            "reason": run.reason,
            "time": self._broker.clock.now_ms(),
        }
        kept = [(name, value) for name, value in record.headers if not name.startswith(HEADER)]
        added = [(HEADER + name, str(value).encode()) for name, value in about.items()]
        return record.key, record.value, [*kept, *added], record.timestamp
