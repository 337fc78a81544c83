"""Classic members of a KIP-848 group: how JoinGroup, SyncGroup and Heartbeat lead them towards their targets.

To such a member its epoch is the generation, and nobody leads: a JoinGroup tells what it holds, moves it one step on
(`reconciliation`) and is answered at once; the SyncGroup after it tells what it shall hold. It is told to rejoin by its
heartbeats, and has its rebalance timeout for that.
"""

from __future__ import annotations

from clarion.groups.classic_join import (
    MEMBER_ID_REQUIRED_FROM,
    protocols_of,
    rebalance_timeout_of,
)
from clarion.groups.classic_rebalance import join_error
from clarion.groups.consumer_draft import Draft
from clarion.groups.consumer_group import (
    JOIN_EPOCH,
    NEWCOMER,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    MemberState,
)
from clarion.groups.consumer_heartbeat import check_room
from clarion.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE, MemberSubscription, read_subscription
from clarion.groups.memory import weight_of_protocols
from clarion.groups.migration import defer, remove, to_assignment, to_ids
from clarion.groups.names import new_member_id
from clarion.groups.outcome import Call
from clarion.groups.partitions import each, without
from clarion.groups.reconciliation import reconcile
from clarion.groups.records import ClassicTerms, CurrentAssignment, MemberMetadata
from clarion.groups.shard import Step
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode, KafkaError, MalformedError
from clarion.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


def join(step: Step, group: ConsumerGroup, request: JoinGroupRequest, call: Call) -> None:
    subscription = _check_wishes(group, request)
    draft = Draft(group, step)
    is_dynamic = request.group_instance_id is None
    if is_dynamic and not request.member_id and call.version >= MEMBER_ID_REQUIRED_FROM:
        check_room(draft)
        member_id = new_member_id(call.client_id, step.shard.new_uuid())
        step.out.reply(call.ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id, call.version))
        return
    step.shard.check_room_for_members(group.group_id, weight_of_protocols(protocols_of(request)))
    member_id = request.member_id or _new_id(step, request, call)
    if _takes_the_last_modern_place(draft, member_id, request):
        defer(step, request, call)
        return
    before = _take_seat(draft, member_id, request, subscription)
    draft.put_member(member_id, _told(draft.members.get(member_id), request, subscription, call))
    draft.follow_topics()
    draft.advance()
    owned = to_ids(subscription.owned, step.shard.topics)
    after = reconcile(
        before, draft.target(member_id), draft.target_epoch, lambda one: draft.is_free(one, member_id), owned
    )
    draft.put_current(member_id, after)
    _has_joined(step, group.group_id, member_id, request)
    step.out.reply(call.ticket, _joined(member_id, after.member_epoch, request))


def sync(step: Step, group: ConsumerGroup, request: SyncGroupRequest, call: Call) -> None:
    member_id = request.member_id
    terms = _member_of_epoch(group, member_id, request.group_instance_id, request.generation_id)
    protocol, subscription = terms.protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, protocol):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    current = group.current(member_id)
    if group.epoch > current.member_epoch and current.state != MemberState.UNREVOKED:
        _expect_back(step, group, member_id)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    step.shard.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id, member_id))
    _keep_alive(step, group.group_id, member_id, terms.session_timeout_ms)
    reply = SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol,
        assignment=to_assignment(current.assigned, step.shard.topics, subscription),
    )
    step.out.reply(call.ticket, reply)


def heartbeat(step: Step, group: ConsumerGroup, request: HeartbeatRequest, call: Call) -> None:
    member_id = request.member_id
    terms = _member_of_epoch(group, member_id, request.group_instance_id, request.generation_id)
    _keep_alive(step, group.group_id, member_id, terms.session_timeout_ms)
    code = ErrorCode.NONE
    if _should_rejoin(group, member_id):
        _expect_back(step, group, member_id)
        code = ErrorCode.REBALANCE_IN_PROGRESS
    step.out.reply(call.ticket, HeartbeatResponse(error_code=code))


def _new_id(step: Step, request: JoinGroupRequest, call: Call) -> str:
    return new_member_id(request.group_instance_id or call.client_id, step.shard.new_uuid())


def _check_wishes(group: ConsumerGroup, request: JoinGroupRequest) -> MemberSubscription:
    protocols = protocols_of(request)
    others = [
        {name for name, _ in member.classic.protocols}
        for member_id, member in group.members.items()
        if member.classic and member_id != request.member_id
    ]
    is_common = any(all(name in known for known in others) for name, _ in protocols)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not is_common:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        subscriptions = [read_subscription(metadata) for _, metadata in protocols]
    except MalformedError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
    return subscriptions[0]  # they subscribe alike, whatever the assignor


def _take_seat(
    draft: Draft, member_id: str, request: JoinGroupRequest, subscription: MemberSubscription
) -> CurrentAssignment:
    group, instance_id = draft.group, request.group_instance_id
    if instance_id is None:
        if member_id not in draft.members:
            _check_newcomer(draft, subscription)
        return group.current(member_id)
    if request.member_id:
        group.check_static(member_id, instance_id)
        return group.current(member_id)
    holder = group.static_ids.get(instance_id)
    if holder is None:
        check_room(draft)
        return NEWCOMER
    draft.rename_member(holder, member_id)
    current = group.current(holder)
    if current.member_epoch == STATIC_LEAVE_EPOCH:
        return current._replace(member_epoch=JOIN_EPOCH, previous_member_epoch=-1)
    return current


def _takes_the_last_modern_place(draft: Draft, member_id: str, request: JoinGroupRequest) -> bool:
    """Nobody would speak KIP-848 any more. Then the old member goes, the group with it, and the new one joins after."""
    if request.member_id and request.group_instance_id is not None:
        draft.group.check_static(member_id, request.group_instance_id)
    holder = draft.group.static_ids.get(request.group_instance_id or "", member_id)
    member = draft.members.get(holder)
    if member is None or member.classic is not None:
        return False
    others = [one for other_id, one in draft.members.items() if other_id != holder]
    if not all(other.classic for other in others):
        return False
    remove(draft, [holder])
    return True


def _check_newcomer(draft: Draft, subscription: MemberSubscription) -> None:
    """Ids that were given out are not remembered, so any is good. But one who says that it holds partitions was a
    member, and others have them now: it must hear that it was forgotten, and let go."""
    if subscription.owned:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    check_room(draft)


def _told(
    before: MemberMetadata | None, request: JoinGroupRequest, subscription: MemberSubscription, call: Call
) -> MemberMetadata:
    return MemberMetadata(
        instance_id=request.group_instance_id or (before.instance_id if before else None),
        rack_id=subscription.rack_id,
        client_id=call.client_id,
        client_host=call.client_host,
        subscribed_topic_names=tuple(sorted(subscription.topics)),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=rebalance_timeout_of(request),
        server_assignor=before.server_assignor if before else None,
        classic=ClassicTerms(request.session_timeout, protocols_of(request)),
    )


def _has_joined(step: Step, group_id: str, member_id: str, request: JoinGroupRequest) -> None:
    """It owes us a SyncGroup now."""
    timers = step.shard.timers
    for kind in (TimerKind.JOIN, TimerKind.REVOKE):
        timers.cancel(TimerKey(kind, group_id, member_id))
    timers.start(TimerKey(TimerKind.SYNC, group_id, member_id), step.now_ms + rebalance_timeout_of(request))
    _keep_alive(step, group_id, member_id, request.session_timeout)


def _joined(member_id: str, epoch: int, request: JoinGroupRequest) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
        leader="",
        member_id=member_id,
    )


def _member_of_epoch(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ClassicTerms:
    if instance_id is not None:
        group.check_static(member_id, instance_id)
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != group.current(member_id).member_epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member.classic


def _should_rejoin(group: ConsumerGroup, member_id: str) -> bool:
    current = group.current(member_id)
    if current.member_epoch < group.epoch or current.state == MemberState.UNREVOKED:
        return True
    if current.state != MemberState.UNRELEASED:
        return False
    # Each rejoin is a break for an eager member: it gets all that it still misses at once.
    return not any(one in group.owners for one in each(without(group.target(member_id), current.assigned)))


def _expect_back(step: Step, group: ConsumerGroup, member_id: str) -> None:
    key = TimerKey(TimerKind.JOIN, group.group_id, member_id)
    if key not in step.shard.timers:
        step.shard.timers.start(key, step.now_ms + group.members[member_id].rebalance_timeout_ms)


def _keep_alive(step: Step, group_id: str, member_id: str, session_timeout_ms: int) -> None:
    step.shard.timers.start(TimerKey(TimerKind.SESSION, group_id, member_id), step.now_ms + session_timeout_ms)
