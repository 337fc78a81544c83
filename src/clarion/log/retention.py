"""What a partition may forget: by time and by size. What else counts is for others to say (`consumers.retention`).

What is promised, after every sweep:
- Time. A message whose timestamp is more than `retention.ms` old is no longer readable, to the message, even inside a
  batch: the log's start moves behind it. Only a prefix of a log can go: a message behind a younger one stays until that
  one expires.
- Grace. What has been in the log for less than `clarion.retention.grace.ms` does not go by time: a backfill of old
  messages can be read before it expires. How long a message has been there is known from the sweeps that saw it
  (`Arrivals`) and from when its segment was last written to, which a restart does not forget.
- Size. The readable batches add up to at most `retention.bytes`, to the batch; the newest batch stays unless the
  limit is 0.
- Disk. Files whose messages have all expired are gone (after `file.delete.delay.ms`). The active segment is rolled as
  soon as its oldest message has expired, so at most two files hold expired bytes. The first file is rewritten without
  its expired head when what remains is small or no more than what goes: so a small topic keeps nothing, and a large
  one at most as much again as it must.
- Damage. Behind a damaged header nothing in its file can be told apart: that part counts as one batch, from when the
  file was last written to, and goes as a whole. So damage neither stops retention nor has it delete too early.
- Time that cannot be believed. A batch without a timestamp (its greatest is 0 or less, or below its first), or with
  one further ahead than the topic accepts, counts from when it was appended, as far as that is known: not before a
  sweep first saw it or its segment was last written to, which a restart does not forget.

Looking (`RetentionWalk`, in a thread) is apart from deciding where the log shall start, and that from doing it
(`broker/cleaning`): the start is raised for readers, then saved, and then the files go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from clarion.log.batch_filter import unpacked_bytes_max
from clarion.log.batch_headers import LOOK_BYTES, DamagedSegment
from clarion.log.cleaned import CleanedFile, CleanedSegment
from clarion.log.views import LogView, SegmentView, appended_ms, batches_of, headers_of, read_batch
from clarion.model.errors import KafkaError
from clarion.model.ids import LogPosition
from clarion.model.topic_settings import TopicSettings
from clarion.wire.batch import HAS_DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from clarion.wire.records import read_whole_header, records_data, scan_times
from clarion.world import Disk, event_log

journal = event_log("log")


class Noticed(NamedTuple):
    """Messages below `offset` whose own time cannot be believed count as if they were written at `at_ms`."""

    offset: int
    at_ms: int


class Arrivals:
    """How far the log reached when: what lies before an offset has been there since then at the latest."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: list[Noticed] = []  # both rise

    def note(self, next_offset: int, now_ms: int, grace_ms: int) -> None:
        """Every sweep says how far the log reaches; a few of them per grace period are enough."""
        if self._seen and self._seen[-1].at_ms > now_ms:
            self._seen.clear()  # the clock went back: nothing is known by the new time
        if not self._seen or now_ms - self._seen[-1].at_ms >= grace_ms / _ARRIVALS_KEPT:
            self._seen.append(Noticed(next_offset, now_ms))
            if len(self._seen) > 1 and self._seen[1].at_ms <= now_ms - grace_ms:
                del self._seen[0]

    def before(self, at_ms: int) -> int:
        """What lies before this offset was in the log by that time."""
        return max((seen.offset for seen in self._seen if seen.at_ms <= at_ms), default=0)


_ARRIVALS_KEPT: Final = 10  # so a message may stay a tenth longer than the grace period


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    new_start_offset: int
    roll: bool = False
    reason: str = ""  # "time", "size", "acknowledged", or empty where nothing goes
    held_by: tuple[str, ...] = ()  # without whom more would go
    noticed: Noticed | None = None  # to be given to the next plan of this log
    boundary_ms: int = -1  # where the log starts inside a batch: the time of its first message, found by unpacking
    damage: DamagedSegment | None = None  # what the walk met; the rest of that file counts as one batch
    arrived_expired: bool = False  # the first messages were too old to stay when they arrived; only grace keeps them


class RetentionWalk:
    """A log, and where it would start by this rule or that: each is found once, by reading headers, in a thread.

    `noticed`, `arrivals`: what earlier sweeps saw of this log.
    `by_time`: whether the clock can be trusted; if not, only what is too large goes.
    `unreadable`: batches that are not worth unpacking, by base offset; those found now are added.
    """

    def __init__(
        self,
        view: LogView,
        settings: TopicSettings,
        now_ms: int,
        *,
        noticed: Noticed | None = None,
        arrivals: Arrivals | None = None,
        by_time: bool = True,
        unreadable: set[int] | None = None,
    ) -> None:
        self.view = view
        self._settings = settings
        self._by_time = by_time
        self._time = _Time(view.disk, now_ms, settings, noticed, view.next_offset)
        if unreadable is not None:
            self._time.unreadable = unreadable
        since_ms = now_ms - settings.retention_grace_ms
        self._settled = _settled(view, since_ms, arrivals) if by_time else view.start_offset
        self._starts_by_time: dict[int, int] = {}
        self._starts_by_size: dict[int, int] = {}

    @property
    def start_offset(self) -> int:
        return self.view.start_offset

    def by_time(self, keep_ms: int) -> int:
        """Behind the last message that is older, and has been here for longer than the grace period. -1: no limit."""
        if keep_ms not in self._starts_by_time:
            self._starts_by_time[keep_ms] = _start_by_time(self.view, keep_ms, self._time, self._settled)
        return self._starts_by_time[keep_ms]

    def by_size(self, keep_bytes: int) -> int:
        """From where on the batches fit. -1: no limit."""
        if keep_bytes not in self._starts_by_size:
            self._starts_by_size[keep_bytes] = _start_by_size(self.view, keep_bytes, self._time)
        return self._starts_by_size[keep_bytes]

    def bytes_from(self, offset: int) -> int:
        """How much lies from there to the end; about, where that is in the middle of a file."""
        found = 0
        for segment in self.view.segments:
            first = max(offset, segment.base_offset)
            if first < segment.next_offset:
                found += segment.size * (segment.next_offset - first) // (segment.next_offset - segment.base_offset)
        return found

    def time_at(self, offset: int) -> int:
        """When the first message from there on was written, as far as its batch's header tells; -1 if none was."""
        for segment in self.view.segments:
            if offset < segment.next_offset and segment.size:
                try:
                    for header, _ in headers_of(self.view.disk, segment):
                        if header.last_offset >= offset:
                            return header.base_timestamp
                except DamagedSegment:
                    return self._time.of_damaged(segment)
        return -1

    def plan(self, start: int, reason: str, *, limit_offset: int, held_by: tuple[str, ...] = ()) -> RetentionPlan:
        """What to do for the log to start there. Nothing from `limit_offset` (the high watermark) on goes."""
        view, time = self.view, self._time
        start = max(min(start, limit_offset), view.start_offset) if self._settings.is_deleted else view.start_offset
        return RetentionPlan(
            new_start_offset=start,
            roll=start > view.segments[-1].base_offset,
            reason="" if start == view.start_offset else reason,
            held_by=held_by,
            noticed=time.noticed_after(start),
            boundary_ms=time.boundary_ms,
            damage=time.damage,
            arrived_expired=self._by_time
            and self._settled <= view.start_offset < view.next_offset
            and _has_arrived_expired(view, self._settings, time),
        )


# ------------------------------------------------------------------------------------------------ time

_AHEAD_MS_MAX: Final = 24 * 3_600_000  # a topic may accept timestamps from any future; retention believes a day


# A batch of more goes as a whole. An honest megabyte has fewer.
_RECORDS_JUDGED_MAX: Final = 250_000
UNREADABLE_MAX: Final = 100_000  # remembered per log


class _Time:
    """What time a batch counts from."""

    def __init__(
        self, disk: Disk, now_ms: int, settings: TopicSettings, noticed: Noticed | None, next_offset: int
    ) -> None:
        self._disk = disk
        self.now_ms = now_ms
        self._latest = now_ms + min(settings.message_timestamp_after_max_ms, _AHEAD_MS_MAX)
        self._noticed = noticed
        self._next_offset = next_offset
        self._has_met_strange = False
        self.damage: DamagedSegment | None = None
        self.unreadable: set[int] = set()  # base offsets
        self.boundary_ms = -1

    def of_damaged(self, segment: SegmentView) -> int:
        """Of what cannot be read: all of it was there when the file was last written to."""
        return min(self.now_ms, appended_ms(self._disk, segment))

    def of(self, header: BatchHeader, segment: SegmentView) -> int:
        if self.is_believed(header):
            return header.max_timestamp
        self._has_met_strange = True
        return self.appended_by(header, segment)

    def is_believed(self, header: BatchHeader) -> bool:
        """Clients that send messages without a time leave the greatest at 0, where they began to count.

        If the first message has no time, others of the batch may have, and the header cannot tell which.
        """
        has_own_base = not header.attributes & (LOG_APPEND_TIME | HAS_DELETE_HORIZON)
        if has_own_base and not 0 < header.base_timestamp <= header.max_timestamp:
            return False
        return 0 < header.max_timestamp <= self._latest

    def appended_by(self, header: BatchHeader, segment: SegmentView) -> int:
        """The earliest time of which it is known that the batch was in the log then."""
        known = self._noticed
        noticed_ms = known.at_ms if known and header.last_offset < known.offset else self.now_ms
        return min(noticed_ms, appended_ms(self._disk, segment))

    def noticed_after(self, start: int) -> Noticed | None:
        known = self._noticed
        if known and start < known.offset:
            return known
        return Noticed(self._next_offset, self.now_ms) if self._has_met_strange else None


def _settled(view: LogView, since_ms: int, arrivals: Arrivals | None) -> int:
    """What lies before this offset has been in the log since then."""
    offset = arrivals.before(since_ms) if arrivals else 0
    for segment in view.segments:
        if segment.next_offset > offset:
            if appended_ms(view.disk, segment) > since_ms:
                break
            offset = segment.next_offset
    return min(offset, view.next_offset)


def _has_arrived_expired(view: LogView, settings: TopicSettings, time: _Time) -> bool:
    """Whether the first batch is older than the retention time and the grace period together, yet still in grace."""
    if settings.retention_ms < 0:
        return False
    latest = time.now_ms - settings.retention_ms - settings.retention_grace_ms
    first = first_header(view)
    return first is not None and time.is_believed(first) and first.max_timestamp < latest


def first_header(view: LogView) -> BatchHeader | None:
    """Of the batch in which the log starts; None if there is none, or it is damaged."""
    try:
        for header, _ in headers_of(view.disk, view.segments[0], view.start_position, LOOK_BYTES):
            return header
    except DamagedSegment:
        pass
    return None


def _start_by_time(view: LogView, retention_ms: int, time: _Time, settled: int) -> int:
    """Behind the last message that has expired. Each batch is looked at once in its life: the start moves with it.

    Never further: where compaction left a gap before the next message, a reader may stand in it.
    """
    if retention_ms < 0 or settled <= view.start_offset:
        return view.start_offset
    cutoff = time.now_ms - retention_ms
    reached = view.start_offset
    for number, segment in enumerate(view.segments):
        try:
            for header, position in headers_of(view.disk, segment, view.start_position if number == 0 else 0):
                if header.base_offset >= settled:
                    return reached
                if time.of(header, segment) >= cutoff:
                    return max(reached, _expired_until(view.disk, segment, position, header, cutoff, time))
                reached = max(reached, header.next_offset)
        except DamagedSegment as damage:
            time.damage = damage
            if time.of_damaged(segment) >= cutoff or segment.next_offset > settled:
                return reached
    return view.next_offset


def _expired_until(
    disk: Disk, segment: SegmentView, position: int, header: BatchHeader, cutoff: int, time: _Time
) -> int:
    """Inside the batch where expired and unexpired meet, every message is judged by itself. -1: none has expired."""
    expired_until = -1
    if header.is_log_append_time or not time.is_believed(header):
        return -1
    if header.base_timestamp >= cutoff and not header.attributes & HAS_DELETE_HORIZON:
        return -1  # the first message's own time: nothing to decode, which is the usual case
    if header.base_offset in time.unreadable:
        return -1
    appended_by = time.appended_by(header, segment)
    try:
        batch = read_batch(disk, segment, position, header)
        data = records_data(batch, read_whole_header(batch), unpacked_bytes_max(len(batch)))
        for timestamp, offset in scan_times(data, header, records_max=_RECORDS_JUDGED_MAX):
            counts_from = timestamp if timestamp > 0 else appended_by
            if counts_from >= cutoff:
                time.boundary_ms = counts_from
                return expired_until
            expired_until = offset + 1
    except KafkaError as error:
        # A lie or a bomb: the batch goes as a whole, when its greatest timestamp has expired.
        journal.warning("batch_unreadable", segment=segment.path, offset=header.base_offset, reason=str(error))
        if len(time.unreadable) < UNREADABLE_MAX:
            time.unreadable.add(header.base_offset)
    return -1


# ------------------------------------------------------------------------------------------------ size


def _start_by_size(view: LogView, retention_bytes: int, time: _Time) -> int:
    """The first offset from which on the batches fit."""
    if retention_bytes < 0:
        return view.start_offset
    over = view.size_bytes - retention_bytes
    if over <= 0:
        return view.start_offset
    if retention_bytes == 0:
        return view.next_offset
    reached = view.start_offset
    last = max(number for number, segment in enumerate(view.segments) if segment.size)
    for number, segment in enumerate(view.segments[: last + 1]):
        position = view.start_position if number == 0 else 0
        if segment.size - position <= over and number < last:
            over -= segment.size - position
            reached = max(reached, segment.next_offset)
            continue
        try:
            for header, at in headers_of(view.disk, segment, position):
                is_newest = number == last and at + header.size_bytes >= segment.size
                if over <= 0 or is_newest:
                    return reached
                over -= header.size_bytes
                reached = max(reached, header.next_offset)
        except DamagedSegment as damage:
            time.damage = damage
            if over <= 0 or number == last:
                return reached
            over -= segment.size - damage.position
    return view.next_offset


# ------------------------------------------------------------------------------------------------ the first file's head

TRIM_ALWAYS_BYTES: Final = 1 << 20  # copying a megabyte is cheaper than thinking about it


def is_worth_trimming(view: LogView, limit: LogPosition | None = None) -> bool:
    """Whether the first file should be rewritten without what lies before the log's start.

    Not while `limit`, the high watermark, is a place in that file: places in it would no longer be true.
    """
    first, gone = view.segments[0], view.start_position
    if len(view.segments) == 1 or (limit is not None and limit.segment <= first.base_offset):
        return False
    return 0 < gone < first.size and first.size - gone <= max(gone, TRIM_ALWAYS_BYTES)


def trim_first(view: LogView) -> CleanedSegment:
    """Write the first file anew, in a thread, for a `Swap`. Batches are copied as they are."""
    first = view.segments[0]
    with CleanedFile(view.disk, view.home.path, first.base_offset, view.home.index_interval_bytes) as cleaned:
        for header, batch in batches_of(view.disk, first):
            if header.last_offset >= view.start_offset:
                cleaned.append(header, batch)
        return cleaned.finish((first.base_offset,))
