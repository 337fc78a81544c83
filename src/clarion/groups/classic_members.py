"""What a member of a classic group does besides joining: SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from clarion.groups.classic_group import ClassicGroup, ClassicMember, ClassicState
from clarion.groups.classic_rebalance import complete_if_joined, dismiss_sync, keep_alive, rebalance, remove, store
from clarion.groups.outcome import Call
from clarion.groups.shard import Step
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

PROTOCOL_FROM = 5  # SyncGroup tells the protocol's type and name, and must


def check_sync(request: SyncGroupRequest, version: int) -> None:
    """What can be refused without looking at the group."""
    if version >= PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def sync(step: Step, group: ClassicGroup, request: SyncGroupRequest, call: Call) -> None:
    member = _member_of_generation(group, request.member_id, request.group_instance_id, request.generation_id)
    _check_protocol(group, request)
    match group.state:
        case ClassicState.PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        case ClassicState.COMPLETING:
            assignments = {
                one.member_id: one.assignment for one in request.assignments if one.member_id in group.members
            }
            _check_room(step, group, assignments)
            _wait(step, group, member, call)
            if member.member_id == group.leader:
                _assign(step, group, assignments)
        case ClassicState.STABLE:
            _has_synced(step, group, member)
            step.out.reply(call.ticket, _assignment(group, member.assignment))
            keep_alive(step, group, member)
        case _:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)


def heartbeat(step: Step, group: ClassicGroup, request: HeartbeatRequest, call: Call) -> None:
    member = _member_of_generation(group, request.member_id, request.group_instance_id, request.generation_id)
    keep_alive(step, group, member)
    is_called_back = group.state is ClassicState.PREPARING
    code = ErrorCode.REBALANCE_IN_PROGRESS if is_called_back else ErrorCode.NONE
    step.out.reply(call.ticket, HeartbeatResponse(error_code=code))


def leave(step: Step, group: ClassicGroup, leaving: tuple[MemberIdentity, ...]) -> tuple[MemberResponse, ...]:
    """Let many members go at once, with one rebalance after all of them."""
    before = len(group.members)
    answers = tuple(
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=_leave_one(step, group, identity),
        )
        for identity in leaving
    )
    if len(group.members) < before:
        rebalance(step, group)
    else:
        complete_if_joined(step, group)  # somebody who had not really joined yet may have been all we waited for
    return answers


def _check_room(step: Step, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    held = sum(len(member.assignment) for member in group.members.values())
    step.shard.check_room_for_members(group.group_id, sum(map(len, assignments.values())) - held)


def _wait(step: Step, group: ClassicGroup, member: ClassicMember, call: Call) -> None:
    """Let the SyncGroup wait for the leader's; a repeated one takes the earlier one's place."""
    dismiss_sync(step, member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.syncing = call
    _has_synced(step, group, member)
    keep_alive(step, group, member)


def _assign(step: Step, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    """The leader has divided the work. The group is stable once the record is replayed (`ClassicGroup.adopt`)."""
    # The timestamp of the state that the record brings about.
    snapshot = group.snapshot(assignments)._replace(state_timestamp_ms=step.wall_ms)
    store(step, group, snapshot)
    for member in group.members.values():
        if member.syncing:
            assignment = assignments.get(member.member_id, b"")
            step.out.reply(member.syncing.ticket, _assignment(group, assignment))
            member.syncing = None
            keep_alive(step, group, member)


def _has_synced(step: Step, group: ClassicGroup, member: ClassicMember) -> None:
    group.unsynced.pop(member.member_id, None)
    if not group.unsynced:
        step.shard.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))


def _assignment(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )


def _member_of_generation(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
) -> ClassicMember:
    member = group.member(member_id, instance_id)
    if generation != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _check_protocol(group: ClassicGroup, request: SyncGroupRequest) -> None:
    if request.protocol_type not in (None, group.protocol_type):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.protocol_name not in (None, group.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _leave_one(step: Step, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:  # an admin removes a static member by its name
        member_id = group.static_ids.get(identity.group_instance_id, "")
    if member_id in group.pending:
        del group.pending[member_id]
        step.shard.timers.cancel(TimerKey(TimerKind.PENDING, group.group_id, member_id))
        return ErrorCode.NONE
    try:
        remove(step, group, group.member(member_id, identity.group_instance_id).member_id)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE
