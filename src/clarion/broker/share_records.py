"""The records of a share-partition, which are looked at where rules need it.

Records may say themselves when they want to be delivered, in headers that queues with a subscription heed:

    clarion-deliver-at   not before: milliseconds since 1970, or an ISO time (UTC unless it says otherwise)
    clarion-ttl-ms       not after: milliseconds from its timestamp, or from when it was due

A due time that is far away is not kept for each record: neighbours share the earliest of theirs, and are looked at
again when it has come. So a million records that are due tomorrow cost a thousand entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

from clarion.broker.queue_rules import QueueRules
from clarion.broker.share_batches import READ_BYTES_MAX, ReadBatches, read_batches, split
from clarion.broker.threads import in_thread
from clarion.consumers.filters import Filter, compile_filter
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.subscription import Subscription
from clarion.queues.acquisition import Fate
from clarion.queues.rules import REASON_MAX
from clarion.replication import Partition
from clarion.wire.batch import has_good_crc, read_header
from clarion.wire.records import Headers, Record, iter_records

DELIVER_AT: Final = "clarion-deliver-at"
TTL: Final = "clarion-ttl-ms"
EXPIRED: Final = "expired"
UNREADABLE: Final = "unreadable"  # as it was written: nobody can make records of the batch

FAR_MS: Final = 60_000  # due times within a minute are kept exactly, others by the thousand
_TOGETHER_MAX: Final = 1_000
DAMAGED_MS: Final = 60_000  # after which a batch is looked at again that the disk has spoiled: it may be mended
_PLAIN: Final = Fate()
_UNWANTED: Final = Fate(is_unwanted=True)
_PASSED: Final = Fate(is_passed=True)


def records_of(found: bytes) -> Iterator[tuple[int, Record]]:
    """Of whole batches, one after the other, with the leader's term that they are of. One that cannot be read may lie
    between them, and is nobody's."""
    for _, _, batch in ReadBatches([], split(found), found).contents():
        leader_epoch = read_header(batch).leader_epoch
        try:
            for record in iter_records(batch):
                yield leader_epoch, record
        except KafkaError:
            continue


class FoundRecords(NamedTuple):
    records: list[Record]
    spoiled: list[tuple[int, int]]  # of what was asked for, offsets that the disk has spoiled: that may be mended


async def records_at(partition: Partition, ranges: Sequence[tuple[int, int]]) -> FoundRecords:
    """What the log still has of these offsets, which are in order. One read for each stretch of them. What cannot be
    read keeps nothing else back: a range ends where nobody knows where its next batch begins, and the next one goes on.
    """
    found = FoundRecords([], [])
    at = 0
    for first, last in ranges:
        at = max(at, first, partition.start_offset)
        while at <= last and at < partition.high_watermark.offset:
            try:
                read = await read_batches(partition, at, READ_BYTES_MAX)
            except KafkaError as error:
                if error.code is not ErrorCode.CORRUPT_MESSAGE:
                    raise
                found.spoiled.append((at, last))
                break
            if not read.batches:
                break
            await in_thread(lambda read=read: _collect(read, ranges, found))  # type: ignore[misc]
            at = read.next
    return found


def _collect(read: ReadBatches, ranges: Sequence[tuple[int, int]], found: FoundRecords) -> None:
    wanted = [(first, last) for first, last in ranges if first < read.next and last >= read.batches[0][0]]
    for base, end, batch in read.contents():
        asked = [(max(first, base), min(last, end)) for first, last in wanted if first <= end and last >= base]
        try:
            records = _records_or_whole(base, batch) if asked else []
        except KafkaError:
            found.spoiled.extend(asked)
            continue
        found.records.extend(one for one in records if any(first <= one.offset <= last for first, last in asked))


def _records_or_whole(base: int, batch: bytes) -> list[Record]:
    """A batch of which nobody can make records is one, in the place of its first: its value is all of it."""
    try:
        return list(iter_records(batch))
    except KafkaError:
        header = read_header(batch)
        if not has_good_crc(batch, header):
            raise  # the disk has spoiled it: that may be mended
        return [Record(base, header.max_timestamp, None, batch, ())]


# Looking at records


class Now(NamedTuple):
    """What time it is. `early_ms`: by which a message is too old; `ahead_ms`: of the loop's clock is the wall clock;
    `far_ms`: what is due later than that from now is far away."""

    wall_ms: int
    early_ms: int
    ahead_ms: int
    far_ms: int = FAR_MS


def look(
    read: ReadBatches, place: TopicPartition, rules: QueueRules, now: Now, offsets: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[Fate | None]]:
    """What is to become of each record: neighbours of one batch with the same fate together. For a thread.

    `offsets`: at which somebody wants to know it; in order. The others are passed.
    """
    assert rules.subscription is not None
    wanted = _filter(rules.subscription.filter) if rules.subscription.filter is not None else None
    spans: list[tuple[int, int]] = []
    fates: list[Fate | None] = []
    for first, last, batch in read.contents():
        asked = offsets[bisect_left(offsets, first, key=_last) : bisect_right(offsets, last, key=_first)]
        if not asked:
            spans.append((first, last))
            fates.append(_PASSED)
            continue
        is_whole, found = asked[0][0] <= first and last <= asked[0][1], _Together(now.wall_ms + now.far_ms)
        try:
            for record in iter_records(batch):
                if not is_whole and not _has(asked, record.offset):
                    found.add(record.offset, _PASSED)
                    continue
                is_wanted = wanted is None or _matches(wanted, record, place)
                found.add(record.offset, _fate(record, rules.subscription, now) if is_wanted else _UNWANTED)
        except KafkaError as error:
            spans.append((first, last))
            fates.append(_by_loop_time(_unreadable(batch, error, now.wall_ms), now.ahead_ms))
            continue
        spans += found.spans
        fates += [_by_loop_time(fate, now.ahead_ms) for fate in found.fates]
    return spans, fates


_first = itemgetter(0)
_last = itemgetter(1)


def _has(ranges: Sequence[tuple[int, int]], offset: int) -> bool:
    at = bisect_left(ranges, offset, key=_last)
    return at < len(ranges) and ranges[at][0] <= offset


def _unreadable(batch: bytes, error: KafkaError, wall_ms: int) -> Fate:
    """It holds up nothing that is behind it. (The broker looks into no batch that it takes: anything may be in it.)"""
    if has_good_crc(batch, read_header(batch)):
        return Fate(given_up=f"{UNREADABLE}: {error.message}"[:REASON_MAX], has_dead_letter=True)
    return Fate(due_ms=wall_ms + DAMAGED_MS)


def is_wanted(subscription: Subscription, record: Record, place: TopicPartition) -> bool:
    """Whether its filter, if it has one, lets the record through. For a thread."""
    return subscription.filter is None or _matches(_filter(subscription.filter), record, place)


@lru_cache(maxsize=1_000)
def _filter(text: str) -> Filter:
    return compile_filter(text)


def _matches(wanted: Filter, record: Record, place: TopicPartition) -> bool:
    return wanted.matches(
        record.key,
        record.headers,
        record.value,
        topic=place.topic,
        partition=place.partition,
        timestamp_ms=record.timestamp,
    )


def _by_loop_time(fate: Fate, wall_ahead_ms: int) -> Fate:
    return fate._replace(due_ms=max(fate.due_ms - wall_ahead_ms, 1)) if fate.due_ms else fate


class _Together:
    """Neighbours with the same fate; and those whose time is far away."""

    def __init__(self, far_ms: int) -> None:
        self._far_ms = far_ms
        self.spans: list[tuple[int, int]] = []
        self.fates: list[Fate] = []

    def add(self, offset: int, fate: Fate) -> None:
        if self.spans and self.spans[-1][1] + 1 == offset and fate.key is None:
            first, before = self.spans[-1][0], self.fates[-1]
            is_far = min(before.due_ms, fate.due_ms) > self._far_ms
            if before == fate or (is_far and offset - first < _TOGETHER_MAX):
                self.spans[-1] = (first, offset)
                self.fates[-1] = fate if fate.due_ms < before.due_ms else before
                return
        self.spans.append((offset, offset))
        self.fates.append(fate)


def _fate(record: Record, rules: Subscription, now: Now) -> Fate:
    """A record without a time, which some clients write, is of no age: it is delivered, and not lost for that."""
    if record.timestamp > 0 and 0 < (rules.retention_ms or 0) <= now.early_ms - record.timestamp:
        return _UNWANTED
    due_ms, ttl_ms = _times(record.headers)
    if rules.message_ttl_ms is not None:
        ttl_ms = min(ttl_ms or rules.message_ttl_ms, rules.message_ttl_ms)
    lives_from_ms = max(record.timestamp, due_ms)
    if ttl_ms and lives_from_ms > 0 and lives_from_ms + ttl_ms <= now.early_ms:
        return Fate(given_up=EXPIRED, has_dead_letter=rules.dead_letter_topic is not None)
    if due_ms > now.wall_ms:
        return Fate(due_ms=due_ms)
    return Fate(key=hash(record.key)) if rules.keeps_key_order and record.key is not None else _PLAIN


def _times(headers: Headers) -> tuple[int, int]:
    """When it is due, and how long it lives; 0 where it does not say."""
    due_ms = ttl_ms = 0
    for name, value in headers:
        if name == DELIVER_AT and value is not None:
            due_ms = moment_ms(value)
        elif name == TTL and value is not None:
            ttl_ms = int(value) if value.isdigit() and len(value) < 16 else 0
    return due_ms, ttl_ms


def moment_ms(value: bytes) -> int:
    """0 for what is no time: such a record is delivered at once, and not lost for a typing mistake."""
    if value.isdigit():
        return int(value) if len(value) < 16 else 0
    try:
        moment = datetime.fromisoformat(value.decode())
    except ValueError:
        return 0
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


async def keys_at(partition: Partition, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(offset, hash of the key) of the records that have one. Those of what the disk has spoiled nobody knows: they are
    in order from when they can be read again, and hold up nothing until then (see `look`)."""
    found = await records_at(partition, list(ranges))
    return [(record.offset, hash(record.key)) for record in found.records if record.key is not None]
