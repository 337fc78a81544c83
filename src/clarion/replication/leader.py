"""What the leader of a partition decides: when a message is committed, and which followers are in sync. Only that.

    on_append(end)                        a batch is in the leader's log
    on_flushed(position)                  … and on its disk, up to there
    on_fetch(replica, offset, now_ms)     a follower asks for the offset, so it has all before it
    on_tick(now_ms)                       time passes
    on_in_sync(followers)                 the cluster has agreed on who is in sync

Each returns what is to be done now. The high watermark is the least of what the replicas in sync have; of the leader
itself only what is flushed counts, where the topic is durable. It never falls and never passes the log's end.

While a change of the in-sync set is on its way, who is going in counts already and who is going out still does: the
next leader is chosen by the old set or by the new one, and has everything committed either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from clarion.model.ids import LogPosition

LAG_MS_MAX: Final = 30_000  # Kafka's replica.lag.time.max.ms


class Do(Enum):
    FLUSH = auto()  # the leader's own log
    TELL_COMMITTED = auto()  # the watermark has moved


@dataclass(frozen=True, slots=True)
class AlterInSync:
    """Ask the cluster to agree on these followers; `on_in_sync` says when it has."""

    followers: frozenset[int]


Command = Do | AlterInSync
Commands = tuple[Command, ...]

# The usual answers, made once: a batch costs no allocation.
NOTHING: Final[Commands] = ()
FLUSH: Final[Commands] = (Do.FLUSH,)
TELL_COMMITTED: Final[Commands] = (Do.TELL_COMMITTED,)


class Follower:
    """How far another replica is known to be."""

    def __init__(self, now_ms: int) -> None:
        self.next_offset = -1  # until its first fetch
        self.caught_up_ms = now_ms  # when it last had everything; a new one gets its time to come
        self.fetched_ms = now_ms
        self.leader_end = 0  # the leader's end at its last fetch


class Leader:
    def __init__(self, end: LogPosition, *, is_durable: bool, min_in_sync: int) -> None:
        """`end`: of the leader's log, all of it flushed and committed."""
        self.end = end
        self.flushed = end
        self.high_watermark = end
        self.in_sync: frozenset[int] = frozenset()  # followers; the leader itself always is
        self._asked: frozenset[int] | None = None  # the set that the cluster has not agreed on yet
        self._followers: dict[int, Follower] = {}
        self._is_alone = True
        self._ends: deque[LogPosition] = deque()  # of uncommitted batches, while there are followers
        self._is_durable = is_durable
        self._min_in_sync = min_in_sync

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether a message may be taken for which only min.insync.replicas are enough."""
        return 1 + len(self.in_sync) >= self._min_in_sync

    def configure(self, *, is_durable: bool, min_in_sync: int) -> Commands:
        """What was readable stays readable; what was written without a flush gets its own."""
        self._min_in_sync = min_in_sync
        self._is_durable = is_durable
        return FLUSH if is_durable and self.flushed < self.end else self._commit()

    # The leader's own log

    def on_append(self, end: LogPosition) -> Commands:
        self.end = end
        if self._is_alone:  # as short as can be, for it is done for every batch
            if self._is_durable:
                return FLUSH
            self.high_watermark = end
            return TELL_COMMITTED
        self._ends.append(end)
        return FLUSH if self._is_durable else self._commit()

    def on_roll(self, end: LogPosition) -> Commands:
        """The end is at the beginning of a new file, at the same offset. Where all is committed, so is that."""
        assert end.offset == self.end.offset
        self.end = end
        if self.high_watermark.offset < end.offset:
            return NOTHING
        self.high_watermark = end
        return TELL_COMMITTED

    def on_flushed(self, position: LogPosition) -> Commands:
        assert position <= self.end, "more is flushed than there is"
        self.flushed = max(self.flushed, position)
        return self._commit() if self._is_durable else NOTHING

    # The others

    def set_followers(self, replicas: Iterable[int], in_sync: Iterable[int], now_ms: int) -> Commands:
        """At the beginning of a term, and when replicas are assigned anew."""
        self._followers = {one: self._followers.get(one) or Follower(now_ms) for one in sorted(replicas)}
        self._is_alone = not self._followers
        if not self._is_alone and self.high_watermark < self.end:
            self._ends.append(self.end)
        return self.on_in_sync(in_sync)

    def on_in_sync(self, followers: Iterable[int]) -> Commands:
        self.in_sync = frozenset(followers)
        assert self.in_sync <= self._followers.keys(), "only replicas are in sync"
        self._asked = None
        return self._commit()

    def on_fetch(self, replica: int, offset: int, now_ms: int) -> Commands:
        follower = self._followers[replica]
        assert offset <= self.end.offset, "a follower has what the leader does not"
        if offset >= self.end.offset:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.next_offset, follower.fetched_ms, follower.leader_end = offset, now_ms, self.end.offset
        commands = self._commit()
        if replica not in self.in_sync and self._asked is None and offset >= self.high_watermark.offset:
            return (*commands, self._ask(self.in_sync | {replica}))
        return commands

    def on_tick(self, now_ms: int) -> Commands:
        """A follower that has lacked something for too long leaves the in-sync set: nobody waits for it any longer."""
        if self._asked is not None:
            return NOTHING
        slow = frozenset(one for one in self.in_sync if self._is_slow(self._followers[one], now_ms))
        return (self._ask(self.in_sync - slow),) if slow else NOTHING

    def _is_slow(self, follower: Follower, now_ms: int) -> bool:
        return follower.next_offset < self.end.offset and now_ms - follower.caught_up_ms > LAG_MS_MAX

    def _ask(self, followers: frozenset[int]) -> AlterInSync:
        self._asked = followers
        return AlterInSync(followers)

    # Committing

    def _commit(self) -> Commands:
        position = self.flushed if self._is_durable else self.end
        counted = self.in_sync if self._asked is None else self.in_sync | self._asked
        if counted:
            position = min(position, self._last_end(min(self._followers[one].next_offset for one in counted)))
        if position <= self.high_watermark:
            return NOTHING
        assert position <= self.end, "the watermark never passes the end"
        self.high_watermark = position
        while self._ends and self._ends[0] <= position:
            self._ends.popleft()
        return TELL_COMMITTED

    def _last_end(self, offset: int) -> LogPosition:
        """Where the last batch ends that lies before the offset whole."""
        found = self.high_watermark
        for end in self._ends:
            if end.offset > offset:
                break
            found = end
        return found
