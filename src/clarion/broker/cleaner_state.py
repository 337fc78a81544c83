"""What the cleaner remembers of one partition between two looks, and what the next one finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clarion.consumers.retention import Need, decide, needed_from
from clarion.log.retention import Arrivals, Noticed, RetentionPlan, RetentionWalk, first_header
from clarion.log.views import LogView
from clarion.model.topic_settings import TopicSettings
from clarion.replication import Partition
from clarion.wire.batch import HAS_DELETE_HORIZON

if TYPE_CHECKING:
    from clarion.wire.messages.replicas import LogHolder


class IdleMark:
    """What a look without result found: until one of these changes, the next one would find the same."""

    __slots__ = ("first_timestamp_ms", "next_offset", "settings", "start_offset")

    def __init__(self, view: LogView, settings: TopicSettings, first_timestamp_ms: int) -> None:
        self.start_offset = view.start_offset
        self.next_offset = view.next_offset
        self.settings = settings
        self.first_timestamp_ms = first_timestamp_ms  # of the oldest message


class CleanerState:
    """What the cleaner remembers of one partition between two looks."""

    __slots__ = (
        "arrivals",
        "damage",
        "held_by",
        "held_bytes",
        "idle_mark",
        "next_horizon_ms",
        "noticed",
        "seen_next_offset",
        "truncations",
        "unreadable",
    )

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.damage = ""  # the one that was told of last
        self.noticed: Noticed | None = None
        self.idle_mark: IdleMark | None = None
        self.held_by: tuple[str, ...] = ()  # without whom more would go
        self.held_bytes = 0  # what is there because of them
        self.next_horizon_ms: int | None = None
        self.seen_next_offset = -1  # where the log ended at the last sweep
        self.unreadable: set[int] = set()  # base offsets of batches that could not be read
        self.truncations = 0  # of the log that all this is about

    def follow_cuts(self, truncations: int) -> None:
        """Since the log was cut others may be at the offsets of what earlier looks saw."""
        if truncations != self.truncations:
            self.truncations, self.idle_mark = truncations, None
            self.unreadable = set()  # a thread may have the one before
            self.restart_times()

    def restart_times(self) -> None:
        """The clock was wrong: what earlier looks saw they saw at another time."""
        self.arrivals, self.noticed = Arrivals(), None

    def look(
        self,
        view: LogView,
        settings: TopicSettings,
        needs: Sequence[Need],
        now_ms: int,
        limit_offset: int,
        by_time: bool,
    ) -> tuple[RetentionPlan, int]:
        """In a thread: where the log shall start, and the time of its first message where that can be told."""
        walk = RetentionWalk(
            view,
            settings,
            now_ms,
            noticed=self.noticed,
            arrivals=self.arrivals,
            by_time=by_time,
            unreadable=self.unreadable,
        )
        decided = decide(settings, walk, needs)
        plan = walk.plan(decided.start, decided.reason, limit_offset=limit_offset, held_by=decided.held_by)
        self.held_bytes = walk.bytes_from(plan.new_start_offset) if plan.held_by else 0
        is_inside = plan.boundary_ms >= 0 and plan.new_start_offset == view.start_offset
        return plan, plan.boundary_ms if is_inside else _first_timestamp(view)

    def may_roll(self, plan: RetentionPlan, settings: TopicSettings, next_offset: int) -> bool:
        """What has expired is worth a new file. What was just read is not: only if nothing was written since the last
        sweep, for a topic that is written and read all the time would get one with every sweep.
        """
        before, self.seen_next_offset = self.seen_next_offset, next_offset
        if plan.reason in ("time", "size"):
            return True
        return settings.is_by_subscriptions and before == next_offset

    def holders(self, view: LogView, settings: TopicSettings, needs: Sequence[Need], now_ms: int) -> list[LogHolder]:
        """In a thread, also beside a sweep: from where on each of them needs the log, and since when that has been."""
        from clarion.wire.messages.replicas import LogHolder  # when somebody asks: a start is sooner done

        walk = RetentionWalk(
            view, settings, now_ms, noticed=self.noticed, arrivals=self.arrivals, unreadable=set(self.unreadable)
        )
        found = []
        for need in needs:
            first = max(needed_from(settings, walk, need), view.start_offset)
            found.append(
                LogHolder(
                    name=need.holder,
                    is_group=need.is_group,
                    until_acknowledged=need.until_acknowledged,
                    from_offset=first,
                    held_bytes=walk.bytes_from(first),
                    since_ms=walk.time_at(first),
                )
            )
        return found

    def is_idle(self, partition: Partition, needs: Sequence[Need], now_ms: int, by_time: bool) -> bool:
        """Whether a look cannot find anything that goes."""
        settings, start, mark = partition.settings, partition.start_offset, self.idle_mark
        if needs and settings.is_by_subscriptions and partition.size_bytes:
            return False  # what has been read goes
        if start == partition.next_offset:
            self.held_by, self.held_bytes = (), 0
            return True
        is_known = mark is not None and mark.start_offset == start and mark.settings is settings
        is_too_large = 0 <= settings.retention_bytes < partition.size_bytes
        if is_too_large and not (is_known and mark is not None and mark.next_offset == partition.next_offset):
            return False
        if settings.retention_ms < 0 or not by_time:
            return True
        return is_known and mark is not None and now_ms <= mark.first_timestamp_ms + settings.retention_ms


def _first_timestamp(view: LogView) -> int:
    """Of the first message; -1 where it cannot be told from the header alone."""
    header = first_header(view)
    if header is None or header.base_offset != view.start_offset or header.attributes & HAS_DELETE_HORIZON:
        return -1
    return header.base_timestamp
