"""The group coordinator of one shard: one partition of `__consumer_offsets`, and the groups that hash to it.

The protocol between the coordinator and its driver
    1. The driver hands in an event: a request with its `Call` (ticket, version, times, client), a tick, new topics.
       It gets an `Outcome`: records, and answers to this or to earlier tickets. A ticket is answered exactly once,
       now or later (JoinGroup and SyncGroup wait for other members).
    2. If there are records, the driver appends them to the partition's log, all in one batch, and calls `replay` for
       each. Between the event and the end of the replay it calls nothing else on the coordinator.
    3. It waits until everything that it has appended so far is durable, then sends the answers; also those of an
       outcome without records, for they may tell what an earlier record said.
    4. If the append fails, it does not replay; it answers the tickets of that outcome with COORDINATOR_NOT_AVAILABLE
       and goes on. State that must survive changes in `replay` only. Soft state (who waits, timers, a classic group
       between two snapshots) may have changed already: the clients' retries and the timers bring it to an end.

Life: replay the whole log, `after_load`, then events; `on_tick` whenever `next_deadline_ms` has come. When the
partition moves away, `resign` gives the last answers, and the coordinator is thrown away.

A group is classic or of KIP-848, and changes its type with its members (`migration`). A KIP-848 group serves classic
members too (`mixed_members`); a classic group has no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from clarion.groups import (
    classic_join,
    classic_members,
    classic_rebalance,
    consumer_departure,
    consumer_heartbeat,
    group_admin,
    migration,
    mixed_members,
    offset_expiry,
    offset_requests,
    share_heartbeat,
)
from clarion.groups.classic_group import ClassicGroup
from clarion.groups.config import GroupConfig
from clarion.groups.consumer_group import JOIN_EPOCH, ConsumerGroup
from clarion.groups.memory import Ledger, Share
from clarion.groups.outcome import Call, Outcome
from clarion.groups.replay import replay
from clarion.groups.shard import Shard, Step
from clarion.groups.timers import TimerKey, TimerKind
from clarion.groups.topics import TopicsView
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId, TopicPartition
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
)

MANY_LEAVE_FROM = 3  # LeaveGroup


class GroupSummary(NamedTuple):
    group_id: str
    type: str
    state: str
    members: int


class GroupCoordinator:
    def __init__(
        self,
        config: GroupConfig,
        new_uuid: Callable[[], UUID],
        overrides: Mapping[str, GroupConfig] | None = None,
        ledger: Ledger | None = None,
        is_kept: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`overrides` are the whole settings of groups that have some of their own; they may change at any time.
        `is_kept`: of a group, whether its offsets are remembered until somebody deletes them."""
        ledger = ledger or Ledger(config.memory_bytes_max)
        self.shard = Shard(config, new_uuid, overrides if overrides is not None else {}, ledger, is_kept)

    # Life

    def replay(self, key: bytes, value: bytes | None, offset: int = -1) -> None:
        """Apply one record of the log. MalformedError if it cannot be read; the state is then as before."""
        replay(self.shard, key, value)

    def after_load(self, now_ms: int, wall_ms: int) -> None:
        """The log is replayed. Members have a whole session to show that they are still there."""
        step = Step(self.shard, Outcome(), now_ms, wall_ms)
        for group in self.shard.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    classic_rebalance.keep_alive(step, group, member)
                if group.needs_rebalance:
                    self.shard.timers.start(TimerKey(TimerKind.RESUME, group.group_id), now_ms)
            elif isinstance(group, ConsumerGroup):
                consumer_departure.start_timers(step, group)
            else:
                share_heartbeat.start_timers(step, group)
        self.shard.schedule_expiry(now_ms)

    def next_deadline_ms(self) -> int | None:
        return self.shard.timers.next_deadline_ms()

    def on_tick(self, now_ms: int, wall_ms: int, *, may_expire: bool = True) -> Outcome:
        """Fire what is due, each group once: its records must be replayed before it is looked at again.

        `may_expire`: whether the wall clock can be trusted with forgetting committed offsets.
        """
        step = Step(self.shard, Outcome(), now_ms, wall_ms)
        fired = self.shard.timers.pop_due(now_ms)
        due: dict[str, list[TimerKey]] = {}
        for key in fired:
            if key.kind is not TimerKind.EXPIRY:
                due.setdefault(key.group_id, []).append(key)
        for group_id, keys in due.items():
            self._fire(step, group_id, keys)
        if TimerKey(TimerKind.EXPIRY) in fired:
            offset_expiry.on_time(step, due, may_expire=may_expire)
        return step.out

    def on_topics_changed(self, view: TopicsView) -> None:
        """KIP-848 groups look at the new topics when the next of their members beats, as in Kafka."""
        self.shard.topics = view
        self.shard.topics_version += 1

    def resign(self) -> Outcome:
        """Another broker leads this partition now: whoever waits must look for it."""
        step = Step(self.shard, Outcome(), 0, 0)
        for group in self.shard.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    classic_rebalance.dismiss(step, member, ErrorCode.NOT_COORDINATOR)
        for group_id in list(self.shard.deferred):
            self._refuse_deferred(step, group_id, ErrorCode.NOT_COORDINATOR)
        for group_id in self.shard.groups:
            for share in Share:
                self.shard.ledger.note(group_id, share, 0)
        return step.out

    # Classic groups

    def join_group(self, request: JoinGroupRequest, call: Call) -> Outcome:
        modern = self.shard.consumer(request.group_id)
        if modern is not None:
            return self._join_modern(modern, request, call)
        step = self._step(call)
        try:
            classic_join.check(step, request)
            classic_join.join(step, classic_join.group_to_join(step.shard, request), request, call)
        except KafkaError as refusal:
            reply = classic_rebalance.join_error(refusal.code, request.member_id, call.version)
            step.out.reply(call.ticket, reply)
        self.shard.drop_if_void(request.group_id)
        self.shard.weigh(request.group_id)
        return step.out

    def _join_modern(self, group: ConsumerGroup, request: JoinGroupRequest, call: Call) -> Outcome:
        step = self._step(call)
        try:
            self.shard.check_topics_known()
            classic_join.check(step, request)
            if not group.is_empty:
                mixed_members.join(step, group, request, call)
            elif request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            else:
                group_admin.erase_membership(step, group)
                migration.defer(step, request, call)
        except KafkaError as refusal:
            reply = classic_rebalance.join_error(refusal.code, request.member_id, call.version)
            return Outcome(replies=[(call.ticket, reply)])
        return step.out

    def sync_group(self, request: SyncGroupRequest, call: Call) -> Outcome:
        step = self._step(call)
        try:
            classic_members.check_sync(request, call.version)
            modern = self.shard.consumer(request.group_id)
            if modern is not None:
                mixed_members.sync(step, modern, request, call)
            else:
                classic_members.sync(step, self.shard.known_classic(request.group_id), request, call)
        except KafkaError as refusal:
            step.out.reply(call.ticket, SyncGroupResponse(error_code=refusal.code))
        return step.out

    def heartbeat(self, request: HeartbeatRequest, call: Call) -> Outcome:
        step = self._step(call)
        try:
            modern = self.shard.consumer(request.group_id)
            if modern is not None:
                mixed_members.heartbeat(step, modern, request, call)
            else:
                classic_members.heartbeat(step, self.shard.known_classic(request.group_id), request, call)
        except KafkaError as refusal:
            step.out.reply(call.ticket, HeartbeatResponse(error_code=refusal.code))
        return step.out

    def leave_group(self, request: LeaveGroupRequest, call: Call) -> Outcome:
        step = self._step(call)
        is_single = call.version < MANY_LEAVE_FROM
        leaving = (MemberIdentity(member_id=request.member_id),) if is_single else request.members
        try:
            answers = self._leave(step, request.group_id, leaving)
        except KafkaError as refusal:
            answers = tuple(
                MemberResponse(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=refusal.code
                )
                for one in leaving
            )
        reply = (
            LeaveGroupResponse(error_code=answers[0].error_code) if is_single else LeaveGroupResponse(members=answers)
        )
        step.out.reply(call.ticket, reply)
        self.shard.drop_if_void(request.group_id)
        self.shard.weigh(request.group_id)
        return step.out

    def _leave(self, step: Step, group_id: str, leaving: tuple[MemberIdentity, ...]) -> tuple[MemberResponse, ...]:
        group = self.shard.consumer(group_id)
        if group is not None:
            return consumer_departure.leave_many(step, group, leaving)
        return classic_members.leave(step, self.shard.known_classic(group_id), leaving)

    # KIP-848 groups

    def consumer_group_heartbeat(self, request: ConsumerGroupHeartbeatRequest, call: Call) -> Outcome:
        step = self._step(call)
        try:
            self.shard.check_topics_known()
            consumer_heartbeat.check(request, call.version)
            classic = self.shard.classic(request.group_id)
            group = migration.modern_group(step, request)
            if request.member_epoch >= JOIN_EPOCH:
                consumer_heartbeat.heartbeat(step, group, request, call)
                if classic is not None:
                    migration.let_go(step, classic)
            else:
                consumer_departure.leave(step, group, request, call)
        except KafkaError as refusal:
            reply = ConsumerGroupHeartbeatResponse(error_code=refusal.code, error_message=refusal.message or None)
            return Outcome(replies=[(call.ticket, reply)])
        return step.out

    def consumer_group_describe(self, request: ConsumerGroupDescribeRequest, call: Call) -> Outcome:
        groups = tuple(group_admin.describe_consumer(self.shard, group_id) for group_id in request.group_ids)
        return Outcome(replies=[(call.ticket, ConsumerGroupDescribeResponse(groups=groups))])

    # Offsets

    def offset_commit(self, request: OffsetCommitRequest, call: Call) -> Outcome:
        step = self._step(call)
        offset_requests.commit(step, request, call)
        return step.out

    def offset_fetch(self, request: OffsetFetchRequest, call: Call) -> Outcome:
        groups = tuple(
            offset_requests.fetch(self.shard, group) for group in offset_requests.groups_asked(request, call.version)
        )
        return Outcome(replies=[(call.ticket, offset_requests.fetch_response(groups, call.version))])

    def offset_delete(self, request: OffsetDeleteRequest, call: Call) -> Outcome:
        step = self._step(call)
        try:
            step.out.reply(call.ticket, offset_requests.delete(step, request))
        except KafkaError as refusal:
            step.out.reply(call.ticket, OffsetDeleteResponse(error_code=refusal.code))
        return step.out

    def groups_with_offsets(self) -> list[str]:
        return list(self.shard.offsets.groups())

    def delete_topic_offsets(self, group_id: str, topics: Mapping[str, TopicId | None], limit: int) -> Outcome | None:
        """The topics are gone, and so are a group's offsets in them: so many at a time; None when there are no more.

        What was committed for the one that has such a name now, if there is one, stays: `topics` has its id.
        """
        offsets = self.shard.offsets.of(group_id).items()
        gone = (at for at, offset in offsets if at.topic in topics and offset.topic_id != topics[at.topic])
        step = Step(self.shard, Outcome(), 0, 0)
        for partition in islice(gone, limit):
            offset_requests.drop(step, group_id, partition)
        return step.out if step.out.records else None

    def committed_offsets(self, group_id: str) -> Mapping[TopicPartition, int]:
        return {partition: offset.offset for partition, offset in self.shard.offsets.of(group_id).items()}

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        return list(self.shard.offsets.of(group_id))

    def committed_topics(self) -> set[tuple[str, TopicId]]:
        """Their names, and their ids as far as they were noted."""
        groups = self.shard.offsets.groups().values()
        return {(at.topic, offset.topic_id) for offsets in groups for at, offset in offsets.items()}

    # Administration

    def describe_groups(self, request: DescribeGroupsRequest, call: Call) -> Outcome:
        groups = tuple(group_admin.describe_classic(self.shard, one, call.version) for one in request.groups)
        return Outcome(replies=[(call.ticket, DescribeGroupsResponse(groups=groups))])

    def list_groups(self, request: ListGroupsRequest, call: Call) -> Outcome:
        groups = group_admin.list_groups(self.shard, request)
        return Outcome(replies=[(call.ticket, ListGroupsResponse(groups=groups))])

    def delete_groups(self, request: DeleteGroupsRequest, call: Call) -> Outcome:
        step = self._step(call)
        results = group_admin.delete_groups(step, request.groups_names)
        step.out.reply(call.ticket, DeleteGroupsResponse(results=results))
        return step.out

    def delete_some_offsets(self, group_id: str, limit: int) -> Outcome | None:
        """Of a group that is going to be deleted: so many offsets; None if the rest can go with it in one step."""
        group, offsets = self.shard.groups.get(group_id), self.shard.offsets.of(group_id)
        if group is None or not group.is_empty or len(offsets) <= limit:
            return None
        step = Step(self.shard, Outcome(), 0, 0)
        for partition in islice(offsets, limit):
            offset_requests.drop(step, group_id, partition)
        return step.out

    def regexes(self, group_id: str) -> Iterable[str]:
        """The regular expressions of a group's members: what its next heartbeat may have to resolve."""
        group = self.shard.groups.get(group_id)
        return group.regexes if isinstance(group, ConsumerGroup) else ()

    def summaries(self) -> Iterator[GroupSummary]:
        """All groups, for metrics, which may take their time over them."""
        for group_id, group in list(self.shard.groups.items()):
            yield GroupSummary(group_id, group_admin.type_of(group), group.state, len(group.members))

    def _step(self, call: Call) -> Step:
        return Step(self.shard, Outcome(), call.now_ms, call.wall_ms)

    # Timers

    def _fire(self, step: Step, group_id: str, keys: list[TimerKey]) -> None:
        group = self.shard.groups.get(group_id)
        if any(key.kind is TimerKind.RESUME for key in keys):
            self._resume(step, group_id, keys)
        elif isinstance(group, ConsumerGroup):
            consumer_departure.on_timers(step, group, keys)
        elif isinstance(group, ClassicGroup):
            for key in keys:
                classic_rebalance.on_timer(step, group, key)
            self.shard.drop_if_void(group_id)
            self.shard.weigh(group_id)
        elif group is not None:
            share_heartbeat.on_timers(step, group, keys)

    def _resume(self, step: Step, group_id: str, keys: list[TimerKey]) -> None:
        """One step at a time: what else is due, and the next of those who wait, come after its records."""
        for key in keys:
            if key.kind is not TimerKind.RESUME:
                self.shard.timers.start(key, step.now_ms)
        group = self.shard.classic(group_id)
        if group is not None and group.needs_rebalance:
            classic_rebalance.start_over(step, group)
        waiting = self.shard.deferred.pop(group_id, [])
        if not waiting:
            return
        (request, call), *others = waiting
        outcome = self.join_group(request, call._replace(now_ms=step.now_ms, wall_ms=step.wall_ms))
        step.out.records += outcome.records
        step.out.replies += outcome.replies
        # Put off again? Then the change of type got lost, and would be tried in a circle.
        self._refuse_deferred(step, group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if others:
            self.shard.deferred[group_id] = others
            self.shard.timers.start(TimerKey(TimerKind.RESUME, group_id), step.now_ms)

    def _refuse_deferred(self, step: Step, group_id: str, code: ErrorCode) -> None:
        for request, call in self.shard.deferred.pop(group_id, []):
            step.out.reply(call.ticket, classic_rebalance.join_error(code, request.member_id, call.version))
