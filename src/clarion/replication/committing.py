"""What becomes of what is in a partition's log: flushed, committed, or given up.

    log start          high watermark            log end
        │ readable: committed │ appended, not yet committed │
        └─────────────────────┴────────────────────────────┘

When a batch is committed is decided by `Leader`, and by `Follower` where another broker leads; neither does anything.
What they decide is done here.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from clarion.log.config import LogConfig
from clarion.log.files import FileCache
from clarion.log.flush import FlushTicket
from clarion.log.log import Log
from clarion.model.errors import ErrorCode
from clarion.model.ids import LogPosition, TopicId, TopicPartition
from clarion.model.topic_settings import TopicSettings
from clarion.replication.follower import Follower
from clarion.replication.group_commit import GroupCommit
from clarion.replication.leader import NOBODY_HERE, AlterInSync, Commands, Do, Leader
from clarion.replication.membership import NOBODY, Assignment, Membership
from clarion.replication.producer_files import producer_entries
from clarion.replication.producers import ProducerStates
from clarion.replication.readable import ReadablePartition
from clarion.replication.watermark import Uncommitted
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.replication.partition import Partition

log = event_log("replication")

CommitCallback = Callable[[ErrorCode], None]
NO_STATE: Final = -2  # older than any that the cluster agrees on


class Watcher(Protocol):
    """A reader that waits for more."""

    def on_progress(self, partition: Partition) -> None:
        """The watermark has moved, or the partition has gone, or this broker no longer leads it."""
        ...


class AppendWatcher(Protocol):
    """A follower that waits for more: it reads what is not committed too."""

    def on_appended(self, partition: Partition) -> None: ...


class FlushWatcher(Protocol):
    """Who fetches for a follower: the leader is waiting to hear what is on its disk."""

    def on_saved(self, partition: Partition) -> None: ...


class CommittingPartition(ReadablePartition):
    def __init__(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        partition_log: Log,
        settings: TopicSettings,
        leader_epoch: int,
        commits: GroupCommit,
        producers: ProducerStates,
        membership: Membership | None,
    ) -> None:
        super().__init__(tp, topic_id, partition_log, leader_epoch)
        self.settings = settings
        self.producers = producers
        self.membership = membership
        self.leader = NOBODY
        self.is_leader = False
        self.takes_all = False  # it leads, and enough replicas are in sync for whoever waits for all of them
        self.watchers: dict[Watcher, None] = {}
        self.append_watchers: dict[AppendWatcher, None] = {}
        self.flush_watcher: FlushWatcher | None = None
        self.is_flushing = False
        self.is_gone = False
        self._state: Assignment | None = None
        self._state_epoch = NO_STATE
        self._empty_at_ms: int | None = None  # when it began to lead with nothing in its log, not long ago
        self._uncommitted = Uncommitted()
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._is_durable = settings.is_durable
        self._is_min_in_sync_set = True
        self._commits = commits
        self._waiting: deque[tuple[int, CommitCallback]] = deque()
        self._is_flush_wanted = False  # by somebody who cannot wait for the next append to ask for one
        self._snapshot_due_at = -1  # the offset of the last roll of whose producers there is no snapshot yet
        self._snapshot_due_from = -1  # the segment that the first such roll began
        partition_log.on_pressure(self.flush_soon)

    def _this(self) -> Partition:
        raise NotImplementedError  # what others know it as: a `Partition`, which has more than committing

    # Who has to have it

    def _min_in_sync(self, state: Assignment | None) -> int:
        if self._is_min_in_sync_set or state is None:
            return self.settings.min_insync_replicas
        return state.min_in_sync

    def _judge_replicas(self) -> None:
        """Where too few are left, nothing is committed until there are more: whoever waits hears that at once."""
        leader, took_all = self._leader, self.takes_all
        self.takes_all = leader is not None and not self.is_gone and leader.has_enough_in_sync
        if took_all and not self.takes_all:
            self._give_up_waiting(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    @property
    def is_watermark_current(self) -> bool:
        """It leads, and knows of all that was committed before its term."""
        return self._leader is not None and self._leader.is_watermark_current

    @property
    def in_sync_count(self) -> int:
        return 0 if self._leader is None else 1 + len(self._leader.in_sync)

    @property
    def is_fully_in_sync(self) -> bool:
        """Every replica has what is committed here, as far as this one knows. A node that is alone is all of them."""
        if self.membership is None:
            return True
        state = self._state
        if state is None or self.leader == NOBODY or not self.membership.lease_is_valid():
            return False
        return set(state.in_sync) == set(state.replicas)

    @property
    def may_lead_next(self) -> frozenset[int]:
        """Of whom the cluster may choose the next leader, as far as this one knows."""
        state, leader = self._state, self._leader
        assert state is not None
        return frozenset((*state.in_sync, *state.eligible, *(leader.counted if leader is not None else ())))

    # Committing

    def when_committed(self, last_offset: int, callback: CommitCallback) -> bool:
        """True if `last_offset` is committed already; else the callback is called once, when it is or never will be."""
        if last_offset < self.high_watermark.offset:
            return True
        if self.is_gone:
            callback(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif self.log.failed is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        elif not self.is_leader:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._waiting.append((last_offset, callback))
        return False

    def configure(self, settings: TopicSettings, *, is_min_in_sync_set: bool = True) -> None:
        """Take new settings. What was readable stays readable: the watermark never falls.

        `is_min_in_sync_set`: somebody has said what min.insync.replicas is; else it grows with the in-sync set.
        """
        self.settings = settings
        self.log.config = LogConfig.of(settings)
        self._is_durable = settings.is_durable
        self._is_min_in_sync_set = is_min_in_sync_set
        if self._leader is not None:
            minimum = self._min_in_sync(self._state)
            commands = self._leader.configure(is_durable=self._is_durable, min_in_sync=minimum)
            self._judge_replicas()
            if self.log.failed is None and not self.is_gone:
                self._perform(commands)
        elif self._follower is not None and self.needs_flush:
            # The cluster counts on its disk from now on, also for what it has already.
            self._commits.request(self)

    def tick(self, now_ms: int, here: Mapping[int, int] = NOBODY_HERE) -> None:
        """Now and then: a follower that lags behind for too long is no longer waited for. `here`: see `Leader`."""
        if self._leader is not None:
            self._perform(self._leader.on_tick(now_ms, here))

    def _perform(self, commands: Commands) -> None:
        leader = self._leader
        assert leader is not None or not commands, "only a leader has something done"
        for command in commands:
            if command is Do.TELL_COMMITTED:
                assert leader is not None
                self._tell_committed(leader.high_watermark)
            elif command is Do.FLUSH:
                self._commits.request(self)
            elif command is Do.TELL_FOLLOWERS:
                self._tell_followers()
            else:
                assert isinstance(command, AlterInSync)
                self._ask_for_in_sync(command.followers)

    def _ask_for_in_sync(self, followers: frozenset[int]) -> None:
        assert self.membership is not None, f"{self.tp} has followers, and is in no cluster"
        leader = self._leader
        assert leader is not None
        self.membership.in_sync.ask(self._this(), {one: leader.life_of(one) for one in sorted(followers)})

    def _follow_start(self, offset: int) -> None:
        """The leader's log begins there. That this one does it hears when no crash here brings back what was before."""
        assert self.membership is not None
        if offset > self.start_offset:
            self.raise_start(offset)
        self.membership.save_starts()

    def note_start_saved(self, offset: int) -> None:
        """Unless the log begins further back by now: then that is not on disk yet."""
        self.saved_start = min(offset, self.log.start_offset)
        if self.flush_watcher is not None:
            self.flush_watcher.on_saved(self._this())

    def tell_start(self) -> None:
        """That the log begins later, for good: who follows it hears so at once, and who has not heard does not join."""
        if self._leader is not None:
            self._leader.promise_start(self.start_offset)
        self._tell_followers()
        self._tell_watchers()

    def _tell_followers(self) -> None:
        if self.append_watchers:
            for watcher in list(self.append_watchers):
                watcher.on_appended(self._this())

    def _tell_committed(self, position: LogPosition) -> None:
        assert position.offset <= self.log.next_offset, "the watermark never passes the end"
        self.high_watermark = position
        if self._waiting:
            self._answer_waiting(position.offset)
        if self.watchers:
            self._tell_watchers()

    def _answer_waiting(self, committed: int) -> None:
        """More than there are replicas cannot be in sync: then it is committed, but by fewer than were asked for."""
        code = ErrorCode.NONE if self.takes_all else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if self.membership is not None and not self.membership.lease_is_valid():
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        waiting = self._waiting
        while waiting and waiting[0][0] < committed:
            waiting.popleft()[1](code)

    def _tell_watchers(self) -> None:
        for watcher in list(self.watchers):
            watcher.on_progress(self._this())

    def _give_up_waiting(self, code: ErrorCode) -> None:
        while self._waiting:
            self._waiting.popleft()[1](code)

    # Flushing

    def roll(self, now_ms: int) -> None:
        """Seal the active segment. Where all is committed, the watermark moves to the new file at the same offset."""
        segment = self.log.end.segment
        self.log.roll(now_ms)
        if self.log.end.segment == segment:
            return
        if self._leader is not None:
            self._perform(self._leader.on_roll(self.log.end))
        elif self._follower is not None:
            self._follower.on_roll(self.log.end)
            self.high_watermark = self._follower.high_watermark
        self._on_roll()

    def _on_roll(self) -> None:
        """What recovery would have to look at again ends with the segment: its bytes go to disk, its producers too."""
        if len(self.producers) or self.producers.has_snapshot:
            self._snapshot_due_at = self.log.next_offset
            if self._snapshot_due_from < 0:
                self._snapshot_due_from = self.log.end.segment
        self.flush_soon()

    @property
    def recovery_point(self) -> int:
        """What a start after a crash need not look at: it is flushed, and a snapshot knows its producers."""
        flushed = self.log.flushed.offset
        return flushed if self._snapshot_due_from < 0 else min(flushed, self._snapshot_due_from)

    def flush_soon(self) -> None:
        """Flush what is appended, whatever the durability: somebody is going to build on it."""
        self._is_flush_wanted = True
        self._commits.request(self)

    @property
    def needs_flush(self) -> bool:
        if self.log.failed is not None or self.is_gone:
            return False
        return self._is_flush_wanted or (self._is_durable and self.log.flushed < self.log.end)

    def begin_flush(self) -> FlushTicket | None:
        if self.is_gone:
            return None
        self._is_flush_wanted = False
        ticket = self.log.begin_flush()
        if self._snapshot_due_at >= 0:
            self.producers.has_snapshot = True
            committed = self.high_watermark.offset
            ticket.take_along(self.log.next_offset, producer_entries(self.producers), committed)
        return ticket

    def finish_flush(self, ticket: FlushTicket) -> None:
        if self.is_gone:
            return
        self.log.finish_flush(ticket)
        if ticket.is_snapshot_saved and ticket.snapshot_offset >= self._snapshot_due_at:
            self._snapshot_due_at = self._snapshot_due_from = -1
        if self._leader is not None:
            self._perform(self._leader.on_flushed(self.log.flushed))
        elif self.flush_watcher is not None and self.settings.is_durable:
            self.flush_watcher.on_saved(self._this())
        assert self._leader is None or self.log.start_offset <= self.high_watermark.offset, (
            "what readers may not see yet was deleted"
        )

    def fail_flush(self, error: BaseException) -> None:
        """Writing is over for this log. Of a deleted one it no longer matters what its files do."""
        if self.is_gone:
            return
        if self.log.failed is None:
            is_disks = isinstance(error, OSError)
            self.log.fail(error if isinstance(error, OSError) else OSError(errno.EIO, repr(error)))
            log.error("log_offline", partition=self.tp, reason=f"flush: {error}", error=None if is_disks else error)
        self._give_up_waiting(ErrorCode.KAFKA_STORAGE_ERROR)

    def restart_times(self, now_ms: int) -> None:
        """The wall clock was wrong: by what it said nobody can tell how long something has been here."""
        self.log.restart_times(now_ms)
        self.producers.restart_times(now_ms)

    # The end

    def begin_close(self) -> FlushTicket | None:
        """The broker stops: what a flush and a snapshot at the log's end have to write, so that a start reads nothing.

        `run` in a thread, then `finish_close`. None if there is nothing to write.
        """
        ticket = self.log.begin_close()
        if self.log.failed is None and (len(self.producers) or self.producers.has_snapshot):
            ticket = ticket or self.log.begin_flush()
            committed = self.high_watermark.offset
            ticket.take_along(self.log.next_offset, producer_entries(self.producers), committed, must_be_saved=True)
        return ticket

    def finish_close(self, ticket: FlushTicket | None) -> None:
        if ticket is not None:
            self.log.finish_flush(ticket)
        self.log.abandon()

    def fail(self, error: OSError) -> None:
        """It could not be closed."""
        self.log.fail(error)

    def share_files(self, files: FileCache) -> None:
        """Count its open files with those of the others: it was made in a thread, with a cache of its own."""
        self.log.share_files(files)

    @property
    def cut_bytes(self) -> int:
        """What opening it has cut off: what a crash left of the last writes."""
        return self.log.recovery.cut_bytes
