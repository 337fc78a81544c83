"""How a classic group gathers its members: begin a rebalance, end it, and what its timers do.

Only soft state changes here; the snapshots go out as records and come back through `ClassicGroup.adopt`.
"""

from __future__ import annotations

from clarion.groups.classic_group import ClassicGroup, ClassicMember, ClassicState
from clarion.groups.records import CLASSIC_GROUP_TYPE, ClassicSnapshot, Key, encode_classic, encode_key
from clarion.groups.shard import Step
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse


def rebalance(step: Step, group: ClassicGroup) -> None:
    """Something changed: gather everybody anew, or see whether those whom we wait for are all here."""
    if group.state is ClassicState.PREPARING:
        complete_if_joined(step, group)
    elif group.state is ClassicState.EMPTY:
        _gather(step, group)
    else:
        _call_back(step, group)


def complete_if_joined(step: Step, group: ClassicGroup) -> None:
    if group.state is ClassicState.PREPARING and not group.is_gathering and group.has_everybody_joined():
        complete(step, group)


def complete(step: Step, group: ClassicGroup) -> None:
    """The joining is over. Who did not come is out, but for static members: they have until their session ends."""
    timers = step.shard.timers
    timers.cancel(TimerKey(TimerKind.JOIN, group.group_id))
    timers.cancel(TimerKey(TimerKind.INITIAL, group.group_id))
    absent = [m.member_id for m in group.members.values() if m.joining is None and m.instance_id is None]
    for member_id in absent:
        remove(step, group, member_id)
    if group.members and not group.elect_among_joined():
        group.is_gathering = False
        timers.start(TimerKey(TimerKind.JOIN, group.group_id), step.now_ms + group.rebalance_timeout_ms)
        return
    group.begin_generation(step.wall_ms)
    if group.is_empty:
        store(step, group, group.snapshot())
        return
    for member in group.members.values():
        _answer_join(step, group, member)
    timers.start(TimerKey(TimerKind.SYNC, group.group_id), step.now_ms + group.rebalance_timeout_ms)


def store(step: Step, group: ClassicGroup, snapshot: ClassicSnapshot) -> None:
    step.out.write(encode_key(Key(CLASSIC_GROUP_TYPE, group.group_id)), encode_classic(snapshot))


def keep_alive(step: Step, group: ClassicGroup, member: ClassicMember) -> None:
    """The member has shown life. While it waits for an answer of ours it owes us none, so its timer rests."""
    key = TimerKey(TimerKind.SESSION, group.group_id, member.member_id)
    if member.joining and member.is_new:
        # It has no id to beat with, and we may not learn that it is gone: do not keep its seat for ever.
        step.shard.timers.start(key, step.now_ms + step.shard.config.new_member_join_timeout_ms)
    elif member.is_waiting:
        step.shard.timers.cancel(key)
    else:
        step.shard.timers.start(key, step.now_ms + member.session_timeout_ms)


def remove(
    step: Step, group: ClassicGroup, member_id: str, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> ClassicMember:
    """Take a member out, and tell it if it waits for an answer."""
    member = group.remove(member_id)
    step.shard.timers.cancel(TimerKey(TimerKind.SESSION, group.group_id, member_id))
    dismiss(step, member, code)
    return member


def dismiss(step: Step, member: ClassicMember, code: ErrorCode) -> None:
    """Answer whatever the member waits for with an error."""
    if member.joining:
        step.out.reply(member.joining.ticket, join_error(code, member.member_id, member.joining.version))
        member.joining = None
    dismiss_sync(step, member, code)


def dismiss_sync(step: Step, member: ClassicMember, code: ErrorCode) -> None:
    if member.syncing:
        step.out.reply(member.syncing.ticket, SyncGroupResponse(error_code=code))
        member.syncing = None


def start_over(step: Step, group: ClassicGroup) -> None:
    """The group was a KIP-848 group a moment ago, or when the broker stopped: its members must divide the work."""
    for member in group.members.values():
        keep_alive(step, group, member)
    rebalance(step, group)


def on_timer(step: Step, group: ClassicGroup, key: TimerKey) -> None:
    match key.kind:
        case TimerKind.SESSION:
            _on_silence(step, group, key.member_id)
        case TimerKind.PENDING:
            group.pending.pop(key.member_id, None)
            complete_if_joined(step, group)
        case TimerKind.JOIN if group.state is ClassicState.PREPARING:
            complete(step, group)
        case TimerKind.INITIAL if group.state is ClassicState.PREPARING:
            _on_gathering_time(step, group)
        case TimerKind.SYNC if group.state in (ClassicState.COMPLETING, ClassicState.STABLE):
            _on_missing_syncs(step, group)


def current_generation(
    group: ClassicGroup, member_id: str, version: int, *, with_members: bool, skip_assignment: bool = False
) -> JoinGroupResponse:
    members = (
        tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol_name),
            )
            for member in group.members.values()
        )
        if with_members
        else ()
    )
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )


def join_error(code: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    # Null names came with v7; before, a name must be there.
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None if version >= 7 else "")


def _gather(step: Step, group: ClassicGroup) -> None:
    """The first members of an empty group: wait a little, more of them are probably just starting."""
    delay_ms = step.shard.config.initial_rebalance_delay_ms
    group.enter(ClassicState.PREPARING, step.wall_ms)
    if delay_ms <= 0:
        complete(step, group)
        return
    group.is_gathering, group.has_newcomer = True, False
    group.gathering_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    step.shard.timers.start(TimerKey(TimerKind.INITIAL, group.group_id), step.now_ms + delay_ms)


def _on_gathering_time(step: Step, group: ClassicGroup) -> None:
    if not group.has_newcomer or group.gathering_left_ms == 0:
        complete(step, group)
        return
    delay_ms = min(step.shard.config.initial_rebalance_delay_ms, group.gathering_left_ms)
    group.has_newcomer = False
    group.gathering_left_ms -= delay_ms
    step.shard.timers.start(TimerKey(TimerKind.INITIAL, group.group_id), step.now_ms + delay_ms)


def _call_back(step: Step, group: ClassicGroup) -> None:
    """A running group: its members learn from their heartbeats (or from a waiting SyncGroup) that they must rejoin."""
    for member in group.members.values():
        if member.syncing:
            dismiss_sync(step, member, ErrorCode.REBALANCE_IN_PROGRESS)
            keep_alive(step, group, member)
    group.unsynced.clear()
    step.shard.timers.cancel(TimerKey(TimerKind.SYNC, group.group_id))
    group.enter(ClassicState.PREPARING, step.wall_ms)
    step.shard.timers.start(TimerKey(TimerKind.JOIN, group.group_id), step.now_ms + group.rebalance_timeout_ms)
    complete_if_joined(step, group)


def _answer_join(step: Step, group: ClassicGroup, member: ClassicMember) -> None:
    if member.joining is None:
        return  # a static member that has not come back yet
    call, member.joining, member.is_new = member.joining, None, False
    is_leader = member.member_id == group.leader
    step.out.reply(call.ticket, current_generation(group, member.member_id, call.version, with_members=is_leader))
    keep_alive(step, group, member)


def _on_silence(step: Step, group: ClassicGroup, member_id: str) -> None:
    member = group.members.get(member_id)
    if member is None or (member.is_waiting and not member.is_new):
        return
    remove(step, group, member_id)
    rebalance(step, group)


def _on_missing_syncs(step: Step, group: ClassicGroup) -> None:
    """Members who took part in the joining and never asked for their assignment hold work that nobody does."""
    missing = list(group.unsynced)
    for member_id in missing:
        remove(step, group, member_id)
    if missing:
        rebalance(step, group)
