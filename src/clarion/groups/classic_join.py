"""JoinGroup on classic groups: newcomers, those who rejoin, static members who come back (KIP-345, 394, 814)."""

from __future__ import annotations

from dataclasses import replace

from clarion.groups.classic_group import ClassicGroup, ClassicMember, ClassicState, Protocols
from clarion.groups.classic_rebalance import (
    current_generation,
    dismiss,
    join_error,
    keep_alive,
    rebalance,
    remove,
    store,
)
from clarion.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from clarion.groups.memory import MEMBER_BYTES, PENDING_BYTES, weight_of_protocols
from clarion.groups.names import check_group_id, check_names, new_member_id
from clarion.groups.outcome import Call
from clarion.groups.shard import Shard, Step
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import JoinGroupRequest, JoinGroupResponse

MEMBER_ID_REQUIRED_FROM = 4  # KIP-394
SKIP_ASSIGNMENT_FROM = 9  # KIP-814


def check(step: Step, request: JoinGroupRequest) -> None:
    """What can be refused without looking at the group."""
    config = step.shard.config
    check_group_id(request.group_id)
    names = (one.name for one in request.protocols)
    check_names(request.member_id, request.group_instance_id, request.protocol_type, *names)
    if not config.session_timeout_min_ms <= request.session_timeout <= config.session_timeout_max_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)


def group_to_join(shard: Shard, request: JoinGroupRequest) -> ClassicGroup:
    group = shard.classic(request.group_id)
    if group is not None:
        return group
    if shard.share(request.group_id) is not None:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{request.group_id} is a share group")
    if request.member_id:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    # In memory only: a classic group is in the log from its first assignment on.
    fresh = shard.groups[request.group_id] = ClassicGroup(request.group_id)
    return fresh


def join(step: Step, group: ClassicGroup, request: JoinGroupRequest, call: Call) -> None:
    protocols = protocols_of(request)
    if not _has_room(step, group, request.member_id):
        _turn_away(step, group, request.member_id)
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if not group.supports(request.protocol_type, protocols):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    step.shard.check_room_for_members(group.group_id, _more_bytes(group, request))
    if request.member_id:
        _join_known(step, group, request, call)
    elif request.group_instance_id is not None:
        _join_static(step, group, request, call)
    elif call.version >= MEMBER_ID_REQUIRED_FROM:
        _give_id(step, group, request, call)
    else:
        _add(step, group, new_member_id(call.client_id, step.shard.new_uuid()), request, call)


def _more_bytes(group: ClassicGroup, request: JoinGroupRequest) -> int:
    """What the group would hold beyond what it holds."""
    member = group.members.get(request.member_id)
    if member is None and not request.member_id:
        return PENDING_BYTES + weight_of_protocols(protocols_of(request))
    told = MEMBER_BYTES + weight_of_protocols(protocols_of(request))
    return told - (member.weight if member else PENDING_BYTES)


def _give_id(step: Step, group: ClassicGroup, request: JoinGroupRequest, call: Call) -> None:
    """The first of two steps: a client that never hears the answer leaves no ghost member behind."""
    member_id = new_member_id(call.client_id, step.shard.new_uuid())
    group.pending[member_id] = None
    key = TimerKey(TimerKind.PENDING, group.group_id, member_id)
    step.shard.timers.start(key, step.now_ms + request.session_timeout)
    step.out.reply(call.ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id, call.version))


def _join_known(step: Step, group: ClassicGroup, request: JoinGroupRequest, call: Call) -> None:
    if request.member_id in group.pending:
        step.shard.timers.cancel(TimerKey(TimerKind.PENDING, group.group_id, request.member_id))
        _add(step, group, request.member_id, request, call)
        return
    member = group.member(request.member_id, request.group_instance_id)
    is_unchanged = member.protocols == protocols_of(request)
    is_leader = group.leader == member.member_id
    if group.state is ClassicState.COMPLETING and is_unchanged:
        # Its answer was probably lost.
        reply = current_generation(group, member.member_id, call.version, with_members=is_leader)
        _answer_at_once(step, group, member, reply, call)
    elif group.state is ClassicState.STABLE and is_unchanged and not is_leader:
        reply = current_generation(group, member.member_id, call.version, with_members=False)
        _answer_at_once(step, group, member, reply, call)
    else:
        # A leader that rejoins a stable group wants a new assignment: it saw topics change.
        _wait(step, group, member, request, call)
        rebalance(step, group)


def _join_static(step: Step, group: ClassicGroup, request: JoinGroupRequest, call: Call) -> None:
    instance_id = request.group_instance_id
    assert instance_id is not None
    member_id = new_member_id(instance_id, step.shard.new_uuid())
    if instance_id in group.static_ids:
        _replace(step, group, group.static_ids[instance_id], member_id, request, call)
    else:
        _add(step, group, member_id, request, call)


def _add(step: Step, group: ClassicGroup, member_id: str, request: JoinGroupRequest, call: Call) -> None:
    member = ClassicMember(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=call.client_host,
        rebalance_timeout_ms=rebalance_timeout_of(request),
        session_timeout_ms=request.session_timeout,
        protocols=protocols_of(request),
        is_new=True,
        joining=call,
    )
    group.add(member, request.protocol_type)
    if group.is_gathering:
        group.has_newcomer = True
    keep_alive(step, group, member)
    rebalance(step, group)


def _replace(step: Step, group: ClassicGroup, old_id: str, new_id: str, request: JoinGroupRequest, call: Call) -> None:
    """A static member came back without its id: it takes its old seat, and whoever still uses the old id is fenced."""
    old_leader = group.leader
    dismiss(step, group.members[old_id], ErrorCode.FENCED_INSTANCE_ID)
    step.shard.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, old_id))
    member = group.rename(old_id, new_id)
    old_subscription = member.metadata(group.protocol_name)
    member.client_id, member.client_host = call.client_id, call.client_host
    _wait(step, group, member, request, call)
    if group.state is not ClassicState.STABLE or not _is_same_work(group, member, old_subscription):
        # When completing, the leader may already be dividing the work for the old id.
        rebalance(step, group)
        return
    member.joining = None
    store(step, group, group.snapshot())
    if call.version >= SKIP_ASSIGNMENT_FROM:
        is_leader = group.leader == new_id
        reply = current_generation(group, new_id, call.version, with_members=is_leader, skip_assignment=is_leader)
    else:
        reply = _as_follower(current_generation(group, new_id, call.version, with_members=False), old_leader)
    _answer_at_once(step, group, member, reply, call)


def _is_same_work(group: ClassicGroup, member: ClassicMember, old_subscription: bytes) -> bool:
    """Whether the group's assignment still holds after this member's return."""
    if group.select_protocol() != group.protocol_name:
        return False
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return True
    # Only the topics count: what the member owned before its restart differs each time.
    return subscribed_topics(member.metadata(group.protocol_name)) == subscribed_topics(old_subscription)


def _as_follower(reply: JoinGroupResponse, old_leader: str | None) -> JoinGroupResponse:
    # Before KIP-814 a returning leader would assign anew, in a generation that nobody else joins: let it believe that
    # the member it used to be still leads.
    return replace(reply, leader=old_leader or "")


def _wait(step: Step, group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, call: Call) -> None:
    """Take the member's new wishes, and let its JoinGroup wait; a repeated one takes the earlier one's place."""
    if member.joining:
        reply = join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id, member.joining.version)
        step.out.reply(member.joining.ticket, reply)
    member.take_protocols(protocols_of(request))
    member.rebalance_timeout_ms = rebalance_timeout_of(request)
    member.session_timeout_ms = request.session_timeout
    member.joining = call
    keep_alive(step, group, member)


def _answer_at_once(
    step: Step, group: ClassicGroup, member: ClassicMember, reply: JoinGroupResponse, call: Call
) -> None:
    step.out.reply(call.ticket, reply)
    keep_alive(step, group, member)


def _has_room(step: Step, group: ClassicGroup, member_id: str) -> bool:
    limit = step.shard.config.members_max
    member = group.members.get(member_id)
    if group.state is ClassicState.PREPARING:
        joined = sum(1 for one in group.members.values() if one.joining)
        return joined < limit or (member is not None and member.joining is not None)
    return member is not None or len(group.members) < limit


def _turn_away(step: Step, group: ClassicGroup, member_id: str) -> None:
    if group.pending.pop(member_id, step) is None:
        step.shard.timers.cancel(TimerKey(TimerKind.PENDING, group.group_id, member_id))
    if member_id in group.members:
        remove(step, group, member_id)
        rebalance(step, group)


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


def rebalance_timeout_of(request: JoinGroupRequest) -> int:
    # JoinGroup v0 has no rebalance timeout: the session timeout stands for both.
    return request.session_timeout if request.rebalance_timeout < 0 else request.rebalance_timeout
