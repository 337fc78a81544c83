"""How members leave a KIP-848 group: on their own, for a while (static ones), or because they fell silent."""

from __future__ import annotations

from collections.abc import Sequence

from clarion.groups.consumer_draft import Draft
from clarion.groups.consumer_group import STATIC_LEAVE_EPOCH, ConsumerGroup, MemberState
from clarion.groups.migration import remove
from clarion.groups.outcome import Call
from clarion.groups.partitions import NOTHING
from clarion.groups.shard import Step
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    MemberIdentity,
    MemberResponse,
)

LOST_APPEND_RETRY_MS = 1_000  # often enough that a dead member does not linger, seldom enough for a disk in trouble


def leave(step: Step, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, call: Call) -> None:
    if request.instance_id is not None:
        group.check_static(request.member_id, request.instance_id)
    if request.member_id not in group.members:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not a member of {request.group_id}")
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        _pause(step, group, request.member_id)
    else:
        remove(Draft(group, step), [request.member_id])
    reply = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    step.out.reply(call.ticket, reply)


def leave_many(step: Step, group: ConsumerGroup, leaving: Sequence[MemberIdentity]) -> tuple[MemberResponse, ...]:
    """LeaveGroup: how administrators remove members, whatever protocol these speak. One new epoch for all."""
    gone: dict[str, None] = {}
    answers = tuple(_leave_one(group, identity, gone) for identity in leaving)
    if gone:
        remove(Draft(group, step), list(gone))
    return answers


def start_timers(step: Step, group: ConsumerGroup) -> None:
    """After a restart: everybody has a whole session, and who must let go its whole time."""
    timers = step.shard.timers
    session_ms = step.shard.config_of(group.group_id).consumer_session_timeout_ms
    for member_id, member in group.members.items():
        session_end_ms = step.now_ms + (member.classic.session_timeout_ms if member.classic else session_ms)
        timers.start(TimerKey(TimerKind.SESSION, group.group_id, member_id), session_end_ms)
        if member.classic is None and group.current(member_id).state == MemberState.UNREVOKED:
            revoke_end_ms = step.now_ms + member.rebalance_timeout_ms
            timers.start(TimerKey(TimerKind.REVOKE, group.group_id, member_id), revoke_end_ms)


def on_timers(step: Step, group: ConsumerGroup, keys: Sequence[TimerKey]) -> None:
    """All that is due for this group, in one step: so there is one new epoch however many members are gone."""
    gone = {key.member_id: key for key in keys if _is_fenced_by(group, key)}
    for key in gone.values():
        # The replay of the member's tombstone cancels this; it fires if that never comes.
        step.shard.timers.start(key, step.now_ms + LOST_APPEND_RETRY_MS)
    if gone:
        remove(Draft(group, step), list(gone))


def _leave_one(group: ConsumerGroup, identity: MemberIdentity, gone: dict[str, None]) -> MemberResponse:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    code = ErrorCode.NONE
    if not member_id and instance_id is not None:  # an administrator removes a static member by its name
        member_id = group.static_ids.get(instance_id, "")
    try:
        if instance_id is not None:
            group.check_static(member_id, instance_id)
        if member_id not in group.members or member_id in gone:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        gone[member_id] = None
    except KafkaError as refusal:
        code = refusal.code
    return MemberResponse(member_id=identity.member_id, group_instance_id=instance_id, error_code=code)


def _is_fenced_by(group: ConsumerGroup, key: TimerKey) -> bool:
    if key.member_id not in group.members:
        return False  # a timer whose member never made it into the log
    is_classic = group.members[key.member_id].classic is not None
    match key.kind:
        case TimerKind.SESSION:
            return True
        case TimerKind.REVOKE:
            return not is_classic and group.current(key.member_id).state == MemberState.UNREVOKED
        case TimerKind.JOIN | TimerKind.SYNC:
            return is_classic
        case _:
            return False  # of the classic group that this one was


def _pause(step: Step, group: ConsumerGroup, member_id: str) -> None:
    """A static member goes for a while. Its share waits for it until the session ends; it works on nothing any more."""
    current = group.current(member_id)
    step.shard.timers.cancel(TimerKey(TimerKind.REVOKE, group.group_id, member_id))
    paused = current._replace(
        member_epoch=STATIC_LEAVE_EPOCH,
        previous_member_epoch=current.member_epoch,
        state=MemberState.STABLE,
        pending_revocation=NOTHING,
    )
    Draft(group, step).put_current(member_id, paused)
