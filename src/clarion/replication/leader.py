"""What the leader of a partition decides: when a message is committed, and which followers are in sync. Only that.

    on_append(end)                        a batch is in the leader's log
    on_flushed(position)                  … and on its disk, up to there
    on_fetch(replica, offset, now_ms, …)  a follower asks for the offset, so it has all before it
    on_tick(now_ms, here)                 time passes
    on_in_sync(followers)                 the cluster has agreed on who is in sync

Each returns what is to be done now. The high watermark is the least of what the replicas in sync have; where the topic
is durable only what they have flushed counts. It never falls and never passes the log's end.

Who fetches does so in this leader's epoch: the driver has compared epochs and logs before it tells of a fetch.

A follower joins the in-sync set when it has all that is committed, and all that the leader had when its term began: the
watermark is learned from the term before, and may be older than what that leader has told clients. And its log must
begin, for good, no earlier than it was promised to whoever deleted records: it may lead next.

While a change of the in-sync set is on its way, who is going in counts already and who is going out still does: the
next leader is chosen by the old set or by the new one, and has everything committed either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from clarion.model.ids import LogPosition
from clarion.replication.watermark import Uncommitted

LAG_MS_MAX: Final = 30_000  # Kafka's replica.lag.time.max.ms
NO_LIFE: Final = -1
_RETURNS_MS: Final = 2_000  # a follower that gets on asks for more much sooner; one that got a damaged batch after 5 s
NOBODY_HERE: Final[Mapping[int, int]] = {}


class Do(Enum):
    FLUSH = auto()  # the leader's own log
    TELL_COMMITTED = auto()  # the watermark has moved
    TELL_FOLLOWERS = auto()  # there is more to fetch


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
_TELL_FOLLOWERS: Final[Commands] = (Do.TELL_FOLLOWERS,)
_TELL_FOLLOWERS_AND_FLUSH: Final[Commands] = (Do.TELL_FOLLOWERS, Do.FLUSH)


class Progress:
    """How far another replica is known to be."""

    def __init__(self, now_ms: int) -> None:
        self.next_offset = -1  # until its first fetch
        self.flushed_offset = -1
        self.start_offset = 0  # where its log begins, as its disk has it
        self.life = NO_LIFE  # the broker epoch in which it said so
        self.caught_up_ms = now_ms  # when it last had everything; a new one gets its time to come
        self.fetched_ms = now_ms
        self.leader_end = 0  # the leader's end at its last fetch


class Leader:
    def __init__(
        self,
        end: LogPosition,
        *,
        is_durable: bool,
        min_in_sync: int,
        flushed: LogPosition | None = None,
        high_watermark: LogPosition | None = None,
        uncommitted: Uncommitted | None = None,
        start_offset: int = 0,
    ) -> None:
        """`end`: of the leader's log when its term begins. Unless told otherwise all of it is flushed and committed.
        `start_offset`: the log's; an earlier leader may have promised it."""
        self.end = end
        self.flushed = end if flushed is None else flushed
        self.high_watermark = end if high_watermark is None else high_watermark
        self.in_sync: frozenset[int] = frozenset()  # followers; the leader itself always is
        self._epoch_start = end.offset
        self._promised_start = start_offset
        self._asked: frozenset[int] | None = None  # the set that the cluster has not agreed on yet
        self._has_eligible = False  # others may be elected who are not in sync
        self._followers: dict[int, Progress] = {}
        self._is_alone = True
        self._uncommitted = uncommitted or Uncommitted()  # kept while there are followers
        self._is_durable = is_durable
        self._min_in_sync = min_in_sync

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether a message may be taken for which only min.insync.replicas are enough."""
        return 1 + len(self.in_sync) >= self._min_in_sync

    @property
    def is_watermark_current(self) -> bool:
        """Whether the watermark has reached what the leaders before may have committed: until then it may be older than
        what they have told (KIP-207)."""
        return self.high_watermark.offset >= self._epoch_start

    @property
    def _may_commit(self) -> bool:
        """With fewer in sync than the minimum nothing is committed, whoever has written it with whatever acks: one who
        left when too few were left may be elected next (`eligible`), and readers would see messages go again (KIP-966).
        A minimum that has been lowered counts when the cluster has struck out who is eligible: it may be raised again.
        """
        return not self._has_eligible and 1 + len(self.in_sync) >= min(self._min_in_sync, 1 + len(self._followers))

    @property
    def min_in_sync(self) -> int:
        return self._min_in_sync

    @property
    def counted(self) -> frozenset[int]:
        """Followers for whom is waited: who is going in counts already."""
        return self.in_sync if self._asked is None else self.in_sync | self._asked

    def is_follower(self, replica: int) -> bool:
        return replica in self._followers

    def positions(self) -> Iterator[tuple[int, int]]:
        """Each follower with the offset that it lacks first; -1: it has not fetched in this term."""
        for replica, progress in self._followers.items():
            yield replica, progress.next_offset

    def life_of(self, replica: int) -> int:
        """The broker epoch in which a follower has fetched last; -1 if it has not in this term."""
        progress = self._followers.get(replica)
        return NO_LIFE if progress is None else progress.life

    def returns_to(self, replica: int, offset: int, now_ms: int) -> bool:
        """Whether a follower asks for the same again after a while: it could not use what it was sent."""
        follower = self._followers.get(replica)
        if follower is None or offset != follower.next_offset or offset >= self.end.offset:
            return False
        return now_ms - follower.fetched_ms >= _RETURNS_MS

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
        self._uncommitted.add(end)
        if self._is_durable:
            return _TELL_FOLLOWERS_AND_FLUSH
        return (Do.TELL_FOLLOWERS, *committed) if (committed := self._commit()) else _TELL_FOLLOWERS

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

    def promise_start(self, offset: int) -> None:
        """Records are deleted for good: no log that begins earlier may lead next."""
        self._promised_start = max(self._promised_start, offset)

    # The others

    def set_followers(
        self, replicas: Iterable[int], in_sync: Iterable[int], now_ms: int, *, has_eligible: bool = False
    ) -> Commands:
        """At the beginning of a term, and when replicas are assigned anew. `has_eligible`: the cluster may elect others
        than those in sync."""
        self._has_eligible = has_eligible
        self._followers = {one: self._followers.get(one) or Progress(now_ms) for one in sorted(replicas)}
        self._is_alone = not self._followers
        if not self._is_alone and self.high_watermark < self.end:
            self._uncommitted.add(self.end)
        return self.on_in_sync(in_sync)

    def on_in_sync(self, followers: Iterable[int]) -> Commands:
        self.in_sync = frozenset(followers)
        assert self.in_sync <= self._followers.keys(), "only replicas are in sync"
        self._asked = None
        return self._commit()

    def on_fetch(
        self,
        replica: int,
        offset: int,
        now_ms: int,
        *,
        flushed_offset: int = -1,
        start_offset: int = 0,
        life: int = NO_LIFE,
    ) -> Commands:
        """`flushed_offset`: what it has on its disk; `start_offset`: where that begins; `life`: the broker epoch in
        which it says so."""
        follower = self._followers[replica]
        assert offset <= self.end.offset, "a follower has what the leader does not"
        if offset >= self.end.offset:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.next_offset, follower.fetched_ms, follower.leader_end = offset, now_ms, self.end.offset
        follower.flushed_offset, follower.start_offset, follower.life = flushed_offset, start_offset, life
        commands = self._commit()
        if replica not in self.in_sync and self._asked is None and self._may_join(follower):
            return (*commands, self._ask(self.in_sync | {replica}))
        return commands

    def on_tick(self, now_ms: int, here: Mapping[int, int] = NOBODY_HERE) -> Commands:
        """A follower that has lacked something for too long leaves the in-sync set: nobody waits for it any longer.

        `here`: the brokers that fetch as replicas now, with their broker epochs. One that has everything need not say
        so again; if it was not let in when it did (the store did not know it yet), it is now.
        """
        if self._is_alone or self._asked is not None:
            return NOTHING
        for one in self.in_sync:
            follower = self._followers[one]
            if follower.next_offset >= self.end.offset:  # it lacks nothing, so it need not ask
                follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        slow = frozenset(one for one in self.in_sync if self._is_slow(self._followers[one], now_ms))
        late = frozenset(one for one in here if one not in self.in_sync and self._has_come(one, here[one]))
        return (self._ask(self.in_sync - slow | late),) if slow or late else NOTHING

    def _has_come(self, replica: int, life: int) -> bool:
        follower = self._followers.get(replica)
        return follower is not None and follower.life == life and self._may_join(follower)

    def _is_slow(self, follower: Progress, now_ms: int) -> bool:
        return follower.next_offset < self.end.offset and now_ms - follower.caught_up_ms > LAG_MS_MAX

    def _may_join(self, follower: Progress) -> bool:
        held = self._held(follower)
        has_all = held >= self.high_watermark.offset and held >= self._epoch_start
        return has_all and follower.start_offset >= self._promised_start

    def _ask(self, followers: frozenset[int]) -> AlterInSync:
        self._asked = followers
        return AlterInSync(followers)

    # Committing

    def _held(self, follower: Progress) -> int:
        """Up to where it has everything, in the way that counts."""
        return min(follower.next_offset, follower.flushed_offset) if self._is_durable else follower.next_offset

    def _commit(self) -> Commands:
        if not self._may_commit:
            return NOTHING
        position = self.flushed if self._is_durable else self.end
        counted = self.counted
        if counted:
            held = min([self._held(self._followers[one]) for one in counted])
            position = min(position, self._uncommitted.last_end(held, self.high_watermark))
        if position <= self.high_watermark:
            return NOTHING
        assert position <= self.end, "the watermark never passes the end"
        self.high_watermark = position
        self._uncommitted.forget(position)
        return TELL_COMMITTED
