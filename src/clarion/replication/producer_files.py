"""Producer state on disk: snapshots after every roll and at the end, and the batches behind the newest one.

A snapshot holds the last batch of each producer (Kafka's format). The four before it, which a client may still repeat,
are in the log itself. They are looked for when a client does repeat one: a start reads nothing for that.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from clarion.log.batch_headers import DamagedSegment
from clarion.log.log import Log
from clarion.log.producer_snapshot import ProducerEntry, drop_snapshots, load_latest_snapshot, save_snapshot
from clarion.replication.producers import (
    BATCHES_REMEMBERED,
    KnownBatch,
    Producer,
    ProducerLimits,
    ProducerStates,
    known_batch,
)
from clarion.world import Disk, event_log

journal = event_log("replication")

_LOOK_BACK_OFFSETS: Final = 10_000  # a few milliseconds' worth of headers
_LOOK_BACK_BATCHES: Final = 20  # of the size of the last one: five in a row, and what others wrote in between


def load_producers(
    disk: Disk,
    log: Log,
    now_ms: int,
    *,
    clean: bool,
    recovery_point: int = 0,
    limits: ProducerLimits | None = None,
    saves: bool = True,
) -> ProducerStates:
    """From the newest snapshot and every batch behind it.

    At a start after a crash they are written down at once (`saves`): recovery has moved what counts as flushed past
    these batches, and the next start would not read them again.
    """
    if saves and log.cut_at is not None:
        recovery_point = 0  # the cut may have taken the snapshots that it relied on
    producers = ProducerStates(limits)
    if not clean:
        drop_snapshots(disk, log.folder, above=log.next_offset)  # of a tail that is lost
    if log.next_offset == 0:
        return producers
    found = load_latest_snapshot(disk, log.folder, log.next_offset)
    if found is None and clean:
        return producers  # nobody to remember when the log was closed
    offset, entries = found or (_first_without_snapshot(log, recovery_point), [])
    producers.has_snapshot = found is not None
    first = log.segments[0].base_offset
    if offset < first:
        # What lay between is deleted, so the snapshot may be out of date: somebody it knows would be out of order for
        # ever, while of somebody unknown any sequence is taken.
        entries = []
    for entry in sorted(entries, key=lambda entry: entry.timestamp):
        producers.restore(_producer(entry))
    if offset < log.next_offset:
        try:
            # Also before the start: records that are deleted have moved their producers' sequences all the same.
            for header, _ in log.batch_headers(max(offset, first)):
                if header.producer_id >= 0 and header.base_offset >= offset:
                    producers.replay(header, now_ms)
        except DamagedSegment as damage:
            journal.error("producers_incomplete", folder=log.folder, reason=str(damage))
        if saves and not clean and len(producers):
            save_snapshot(disk, log.folder, log.next_offset, producer_entries(producers))
            producers.has_snapshot = True
    return producers


def recall_older(log: Log, producer: Producer) -> None:
    """Find, in the log, the batches before the one by which a snapshot remembered the producer."""
    producer.is_restored = False
    first = producer.batches[0]
    span = max(_LOOK_BACK_OFFSETS, _LOOK_BACK_BATCHES * (first.last_offset - first.base_offset + 1))
    older: deque[KnownBatch] = deque(maxlen=BATCHES_REMEMBERED - len(producer.batches))
    for header, _ in log.batch_headers(max(log.start_offset, first.base_offset - span)):
        if header.base_offset >= first.base_offset:
            break
        if header.producer_id == producer.id and header.producer_epoch == producer.epoch:
            older.append(known_batch(header))
    producer.batches[:0] = older


def _first_without_snapshot(log: Log, recovery_point: int) -> int:
    """The recovery point passes no roll without a snapshot, but it may come to lie where one begins a segment."""
    bases = [segment.base_offset for segment in log.segments if segment.base_offset < recovery_point]
    return bases[-1] if bases else log.segments[0].base_offset


def producer_entries(producers: ProducerStates) -> list[ProducerEntry]:
    return [_entry(one) for one in producers if one.batches]


def _entry(producer: Producer) -> ProducerEntry:
    last = producer.batches[-1]
    return ProducerEntry(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.last_offset - last.base_offset,
        timestamp=producer.last_timestamp_ms,
    )


def _producer(entry: ProducerEntry) -> Producer:
    producer = Producer(entry.producer_id, entry.producer_epoch, entry.timestamp)
    producer.is_restored = True
    first_sequence = (entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF
    base_offset = entry.last_offset - entry.offset_delta
    producer.note(KnownBatch(first_sequence, entry.last_sequence, base_offset, entry.last_offset, entry.timestamp))
    return producer
