"""Producer state on disk: snapshots at every roll and at the end, and the batches behind the newest one.

A snapshot holds the last batch of each producer (Kafka's format). The four before it, which a client may still repeat,
are found in the log itself: a start looks a little way back from the snapshot.
"""

from __future__ import annotations

from typing import Final

from clarion.log.log import Log
from clarion.log.producer_snapshot import ProducerEntry, load_latest_snapshot, save_snapshot
from clarion.replication.producers import KnownBatch, Producer, ProducerStates
from clarion.world import Disk

_LOOK_BACK_OFFSETS: Final = 10_000  # where the last five batches of whoever wrote lately are found
_SEGMENTS_WITHOUT_SNAPSHOT: Final = 2  # the active one, and the one before if a crash came between roll and snapshot


def save_producers(disk: Disk, log: Log, producers: ProducerStates) -> None:
    """Write a snapshot at the log's end, if there is anything to remember."""
    if len(producers):
        save_snapshot(disk, log.folder, log.next_offset, [_entry(one) for one in producers if one.batches])


def load_producers(disk: Disk, log: Log, now_ms: int, *, clean: bool) -> ProducerStates:
    producers = ProducerStates()
    if log.start_offset == log.next_offset:
        return producers
    found = load_latest_snapshot(disk, log.folder, log.next_offset)
    if found is None and clean:
        return producers  # nobody to remember when the log was closed
    offset, entries = found or (log.segments[-_SEGMENTS_WITHOUT_SNAPSHOT:][0].base_offset, [])
    look_from = max(log.start_offset, offset - _LOOK_BACK_OFFSETS)
    for header, _ in log.batch_headers(look_from):
        if header.producer_id >= 0:
            producers.replay(header, min(now_ms, max(header.max_timestamp, 0)))
    for entry in entries:
        if entry.producer_id not in producers:
            producers.restore(_producer(entry))
    return producers


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
    first_sequence = (entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF
    base_offset = entry.last_offset - entry.offset_delta
    producer.batches.append(
        KnownBatch(first_sequence, entry.last_sequence, base_offset, entry.last_offset, entry.timestamp)
    )
    return producer
