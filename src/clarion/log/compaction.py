"""Compaction: of every key the newest record stays, and offsets never change.

    start            first_dirty              uncleanable        end
      │ cleaned before    │ not yet cleaned        │ too young,    │
      └───────────────────┴────────────────────────┴ or active ────┘

One run reads the dirty part into a map (key → last offset), then rewrites every segment from the start up to where the
map reaches, leaving out each record for whose key the map knows a later one. The map has a bound: what does not fit
waits for the next run.

Why nothing is lost and nothing deleted comes back:
- A record goes only if a later one of its key is in the log, below the high watermark.
- A tombstone (null value) stays `delete.retention.ms` after it was first cleaned: then its batch gets a *delete
  horizon*, kept in the batch as Kafka does. It gets one only when the map covered the whole batch, that is, when the
  older records of its keys are gone for certain, and it goes only while no batch before it could not be judged.
  Segments are rewritten and swapped in from old to new, and the first failure ends the run, so the same holds after a
  crash at any point.
- A batch keeps its offsets, sequence and epoch. The last batches of living producers stay, if need be without records,
  and so does the last batch of every rewritten segment: it says where the segment ends.
- What cannot be read (a lie, a bomb, a wrong checksum) is kept as it is, and remembered, so that it costs its time
  once. So are records without a key, control batches, and transactional ones until somebody here knows which were
  aborted.

`plan_compaction` decides; `compact` is a generator that does the work, in a thread, and yields one rewritten segment
at a time, to be swapped in (`log/swap`) before the caller asks for the next.

A rewritten segment always ends with the last offset of what it replaces: so the file itself says which segments it
stands for, and recovery in the middle of a swap needs no list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from time import sleep
from typing import Final, NamedTuple

from clarion.log.batch_filter import BatchFilter, is_opaque, read_spans
from clarion.log.batch_headers import LOOK_BYTES
from clarion.log.cleaned import CleanedFile, CleanedSegment
from clarion.log.key_map import SLOT_BYTES, KeyMap
from clarion.log.tombstones import Tombstones
from clarion.log.views import LogView, SegmentView, appended_ms, batches_of, headers_of
from clarion.model.errors import KafkaError
from clarion.model.ids import LogPosition
from clarion.model.topic_settings import TopicSettings
from clarion.wire.batch import BatchHeader, read_header
from clarion.world import Disk, event_log

journal = event_log("log")

MAP_BYTES_MAX: Final = 32 << 20  # over a million keys per run
UNREADABLE_MAX: Final = 100_000  # remembered per log: some megabytes at most
_AHEAD_MS_MAX: Final = 24 * 3_600_000
_OFFSET_SPAN_MAX: Final = 0x7FFFFFFF  # an index entry's relative offset


class CompactionPlan(NamedTuple):
    first_dirty: int
    uncleanable: int  # the first offset that must not be touched
    segments: tuple[SegmentView, ...]  # from the log's start up to `uncleanable`
    roll: bool  # the active segment has held a message for longer than max.compaction.lag.ms
    reason: str  # empty where there is nothing to do


@dataclass(slots=True)
class CompactionResult:
    """Filled in while `compact` runs."""

    next_dirty: int  # where the next run begins; valid when `is_done`
    is_done: bool = False
    bytes_read: int = 0
    bytes_written: int = 0
    records_dropped: int = 0
    unreadable: set[int] = field(default_factory=set)  # base offsets, from earlier runs too
    next_horizon_ms: int | None = None  # when the first tombstone that was kept may go


# ------------------------------------------------------------------------------------------------ deciding


def plan_compaction(
    view: LogView,
    settings: TopicSettings,
    now_ms: int,
    *,
    first_dirty: int,
    limit: LogPosition,
    next_horizon_ms: int | None = None,
) -> CompactionPlan:
    """Whether the log should be cleaned now, and what of it. `limit` is the high watermark.

    `first_dirty` and `next_horizon_ms` come from the last run; 0 and None are always safe.
    """
    disk = view.disk
    sealed = [one for one in view.segments[:-1] if one.base_offset < limit.segment and one.next_offset <= limit.offset]
    if not view.start_offset <= first_dirty <= view.segments[-1].base_offset:
        first_dirty = view.start_offset  # the log was cut or begun anew since
    cleanable = _old_enough(disk, sealed, first_dirty, now_ms, settings.min_compaction_lag_ms)
    dirty = [one for one in cleanable if one.next_offset > first_dirty]
    cutoff = now_ms - settings.max_compaction_lag_ms
    is_late = any(_first_timestamp(disk, one) < cutoff for one in dirty[:1])
    reason = ""
    if dirty and is_late:
        reason = "lag"
    elif dirty and _dirty_ratio(cleanable, dirty) > settings.min_cleanable_dirty_ratio:
        reason = "ratio"
    elif cleanable and next_horizon_ms is not None and next_horizon_ms <= now_ms:
        reason = "tombstones"
    return CompactionPlan(
        first_dirty=first_dirty,
        uncleanable=cleanable[-1].next_offset if cleanable else view.start_offset,
        segments=tuple(cleanable),
        roll=view.segments[-1].size > 0 and _first_timestamp(disk, view.segments[-1]) < cutoff,
        reason=reason,
    )


def _old_enough(disk: Disk, sealed: list[SegmentView], first_dirty: int, now_ms: int, lag_ms: int) -> list[SegmentView]:
    """The segments up to the first dirty one that has a message younger than `min.compaction.lag.ms`."""
    for number, segment in enumerate(sealed):
        if lag_ms and segment.next_offset > first_dirty and _has_time_in(disk, segment, now_ms - lag_ms, now_ms):
            return sealed[:number]
    return sealed


def _dirty_ratio(cleanable: Sequence[SegmentView], dirty: Sequence[SegmentView]) -> float:
    return sum(one.size for one in dirty) / (sum(one.size for one in cleanable) or 1)


def _first_timestamp(disk: Disk, segment: SegmentView) -> int:
    """Of the first batch."""
    found = headers_of(disk, segment, chunk_bytes=LOOK_BYTES)
    return next((_time_of(disk, header, segment) for header, _ in found), 0)


def _has_time_in(disk: Disk, segment: SegmentView, after_ms: int, now_ms: int) -> bool:
    """Whether a message is younger than `after_ms`. One from a far future does not count: it would never grow old."""
    return any(
        after_ms < _time_of(disk, header, segment) <= now_ms + _AHEAD_MS_MAX for header, _ in headers_of(disk, segment)
    )


def _time_of(disk: Disk, header: BatchHeader, segment: SegmentView) -> int:
    """Messages without a time count from when they were appended, as far as that is known."""
    return header.max_timestamp if header.max_timestamp > 0 else appended_ms(disk, segment)


# ------------------------------------------------------------------------------------------------ doing


def let_others_run() -> None:
    """A wait of no time: it lets go of the interpreter's lock."""
    sleep(0)


def compact(
    view: LogView,
    plan: CompactionPlan,
    settings: TopicSettings,
    now_ms: int,
    result: CompactionResult,
    *,
    keep_last_offsets: Collection[int] = frozenset(),
    tombstones: Tombstones | None = None,
    map_bytes_max: int = MAP_BYTES_MAX,
    give_way: Callable[[], None] = let_others_run,
) -> Iterator[CleanedSegment]:
    """Rewrite group after group of segments. Each one that is yielded must be swapped in before the next is asked for.

    `keep_last_offsets`: the last offsets of batches by which living producers are remembered. `tombstones`: they stay
    while the clock cannot be trusted, however long their time seems to be over, and while a replica may lack them; what
    was yielded and is refused because of that comes once more, with them. An OSError or DamagedSegment ends the run;
    what was swapped in until then is sound. `give_way` is called for every batch: without it the thread would keep the
    interpreter's lock for milliseconds, and the loop waiting.
    """
    tombstones = tombstones or Tombstones()
    keys, reach = _map_keys(view.disk, plan, map_bytes_max, result, give_way)
    filter = BatchFilter(
        keys=keys,
        reach=reach,
        start_offset=view.start_offset,
        now_ms=now_ms,
        delete_retention_ms=settings.delete_retention_ms,
        keep_last_offsets=frozenset(keep_last_offsets),
        tombstones=tombstones,
    )
    affected = [one for one in plan.segments if one.base_offset < reach]
    for group in _groups(affected, settings.segment_bytes):
        before, read, written = filter.standing, result.bytes_read, result.bytes_written
        cleaned = _rewrite(view, group, filter, result, give_way)
        if cleaned is not None:
            yield cleaned
        if tombstones.take_refusal():
            # To pass the group over would leave older values, for which the next run does not look.
            filter.go_back_to(before)
            result.bytes_read, result.bytes_written = read, written
            cleaned = _rewrite(view, group, filter, result, give_way)
            if cleaned is not None:
                yield cleaned
    result.records_dropped = filter.records_dropped
    result.next_horizon_ms = filter.next_horizon_ms
    result.next_dirty = reach
    result.is_done = True


def _map_keys(
    disk: Disk, plan: CompactionPlan, memory: int, result: CompactionResult, give_way: Callable[[], None]
) -> tuple[KeyMap, int]:
    """The last offset of every key in the dirty part, and the offset up to which all of it is in the map."""
    dirty = [one for one in plan.segments if one.next_offset > plan.first_dirty]
    keys = KeyMap(memory, _records_in(disk, dirty, memory))
    for segment in dirty:
        for header, batch in batches_of(disk, segment):
            result.bytes_read += len(batch)
            if header.last_offset < plan.first_dirty or is_opaque(header) or header.base_offset in result.unreadable:
                continue
            give_way()
            full_at = _put_keys(keys, header, batch, segment, result)
            if full_at is not None:
                return keys, full_at
    return keys, plan.uncleanable


def _records_in(disk: Disk, dirty: Sequence[SegmentView], memory: int) -> int:
    """How many keys there can be at most, so that a small log gets a small map. Counting stops where it is no use."""
    count = 0
    for segment in dirty:
        for header, _ in headers_of(disk, segment):
            count += max(header.record_count, 0)
            if count * SLOT_BYTES > memory:
                return count
    return count


def _put_keys(
    keys: KeyMap, header: BatchHeader, batch: memoryview, segment: SegmentView, result: CompactionResult
) -> int | None:
    """Put a batch's keys into the map; returns the offset where there was no more room, if so."""
    try:
        _, spans = read_spans(header, batch)
    except KafkaError as error:
        _note_unreadable(header, segment, error, result)
        return None
    for _, _, _, _, offset_delta, key, _, _ in spans:
        if key is not None:
            if keys.is_full:
                return header.base_offset + offset_delta
            keys.put(key, header.base_offset + offset_delta)
    return None


def _groups(segments: Sequence[SegmentView], segment_bytes: int) -> Iterator[tuple[SegmentView, ...]]:
    """Neighbours that together are no larger than one segment become one, so that cleaning leaves no crumbs."""
    group: list[SegmentView] = []
    for segment in segments:
        is_wide = bool(group) and segment.next_offset - group[0].base_offset > _OFFSET_SPAN_MAX
        if group and (is_wide or sum(one.size for one in group) + segment.size > segment_bytes):
            yield tuple(group)
            group = []
        group.append(segment)
    if group:
        yield tuple(group)


def _rewrite(
    view: LogView,
    group: tuple[SegmentView, ...],
    filter: BatchFilter,
    result: CompactionResult,
    give_way: Callable[[], None],
) -> CleanedSegment | None:
    """The group as one new file; None if it would be the same as before."""
    is_changed = len(group) > 1
    home, tombstones_before = view.home, filter.tombstones_dropped
    with CleanedFile(home.disk, home.path, group[0].base_offset, home.index_interval_bytes) as cleaned:
        for segment in group:
            position = 0
            for header, batch in batches_of(view.disk, segment):
                give_way()
                position += len(batch)
                is_last = segment is group[-1] and position == segment.size
                kept = _filtered(filter, header, batch, is_last, segment, result)
                is_changed = is_changed or kept is not batch
                if kept is not None:
                    cleaned.append(header if kept is batch else read_header(kept), kept)
            result.bytes_read += segment.size
        if not is_changed:
            return None
        result.bytes_written += cleaned.size
        lacks_tombstones = filter.tombstones_dropped > tombstones_before
        return cleaned.finish([one.base_offset for one in group], lacks_tombstones=lacks_tombstones)


def _filtered(
    filter: BatchFilter,
    header: BatchHeader,
    batch: memoryview,
    is_last: bool,
    segment: SegmentView,
    result: CompactionResult,
) -> memoryview | bytearray | None:
    if header.base_offset not in result.unreadable:
        try:
            return filter.apply(header, batch, is_last=is_last)
        except KafkaError as error:
            _note_unreadable(header, segment, error, result)
    filter.note_unjudged(header)
    return batch


def _note_unreadable(header: BatchHeader, segment: SegmentView, error: KafkaError, result: CompactionResult) -> None:
    """It is kept as it is. Looking at it again would cost the same and find the same."""
    journal.warning("batch_unreadable", segment=segment.path, offset=header.base_offset, reason=str(error))
    if len(result.unreadable) < UNREADABLE_MAX:
        result.unreadable.add(header.base_offset)
