"""A partition's roles: it leads, follows, or does neither, as the cluster says.

    lead ⇄ follow ⇄ resign        until `retire`

A leader's term is numbered by its epoch, which grows whenever a term begins, so that a reader can tell a log that lost
its tail from the one it knew. What is older than what the partition knows already is passed over.
"""

from __future__ import annotations

from clarion.log.batch_headers import DamagedSegment
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication.committing import NO_STATE, CommittingPartition
from clarion.replication.follower import Follower
from clarion.replication.leader import Leader
from clarion.replication.membership import NOBODY, Assignment


class AssignedPartition(CommittingPartition):
    def lead(self, state: Assignment, now_ms: int = 0) -> None:
        """This broker leads: begin the term, or hear what has changed in it."""
        if state.leader_epoch < self.leader_epoch or (self.is_leader and state.partition_epoch <= self._state_epoch):
            return
        leader = self._leader
        if leader is None or state.leader_epoch != self.leader_epoch:
            leader = self._begin_term(state)
            self._empty_at_ms = None if self.log.next_offset else now_ms
        self._note(state)
        others = [one for one in state.replicas if one != state.leader]
        in_sync = [one for one in others if one in state.in_sync]
        commands = leader.set_followers(others, in_sync, now_ms, has_eligible=bool(state.eligible))
        more = leader.configure(is_durable=self._is_durable, min_in_sync=self._min_in_sync(state))
        self._judge_replicas()  # before anybody is told that something is committed
        self._perform((*commands, *more))

    def _begin_term(self, state: Assignment) -> Leader:
        self._end_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.leader_epoch = state.leader_epoch
        self.is_leader = True
        leader = self._leader = Leader(
            self.log.end,
            is_durable=self._is_durable,
            min_in_sync=self._min_in_sync(state),
            flushed=self.log.flushed,
            high_watermark=self.high_watermark,
            uncommitted=self._uncommitted,
            start_offset=self.start_offset,
        )
        return leader

    def follow(self, state: Assignment) -> None:
        """Another broker leads. What is in the log may not be in its log: that is found out with the first fetch."""
        if state.leader_epoch < self.leader_epoch or (
            not self.is_leader and state.partition_epoch <= self._state_epoch
        ):
            return
        if self._follower is None or state.leader_epoch != self.leader_epoch:
            self._end_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.leader_epoch = state.leader_epoch
            self._follower = Follower(
                state.leader, state.leader_epoch, self.log.end, self.high_watermark, self._uncommitted
            )
            self._tell_watchers()
        self._note(state)

    def resign(self) -> None:
        """Nobody leads, or this broker is no replica any longer: readers and writers are sent away."""
        self._end_role(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.leader = NOBODY
        self._state_epoch = NO_STATE
        self._tell_watchers()

    @property
    def followed(self) -> Follower | None:
        """The follower's side, while another broker leads."""
        return self._follower

    @property
    def state(self) -> Assignment | None:
        """The cluster's last word, as far as it is known here."""
        return self._state

    def restore_watermark(self, offset: int) -> None:
        """What was known to be committed before the last stop. A node that is alone commits all it has anyway."""
        if self.log.cut_at is not None:
            offset = min(offset, self.log.cut_at)  # others may be at the offsets behind, and nobody has committed them
        if offset < self.log.next_offset:
            try:
                self.high_watermark = self.log.position_of(offset)
            except DamagedSegment:  # it stands behind the damage: the leader says it anew, or all is filled anew
                self.high_watermark = self.log.start
            self._uncommitted.add(self.log.end)

    def _end_role(self, code: ErrorCode) -> None:
        self.is_leader = self.takes_all = False
        self._leader = self._follower = None
        self._give_up_waiting(code)
        self._tell_followers()

    def _note(self, state: Assignment) -> None:
        self._state = state
        self._state_epoch = state.partition_epoch
        self.leader = state.leader

    def retire(self, code: ErrorCode) -> None:
        """The topic is deleted or the broker stops: nobody waits for this partition any longer."""
        self.is_gone = True
        self.producers.forget_all()
        self._end_role(code)
        self._tell_watchers()
        self.watchers.clear()
        self.append_watchers.clear()
        self.log.abandon()

    def check_leads(self) -> None:
        """Before something is written or promised: another broker may lead by now, and this one not know."""
        if not self.is_leader:
            if self.is_gone:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.tp} has been deleted")
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} is led by another broker")
        if self.membership is not None and not self.membership.lease_is_valid():
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker's lease is over: another one may lead {self.tp} by now"
            )
