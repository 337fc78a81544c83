"""ShareGroupHeartbeat: a member says what it subscribes to, and hears what to read; how it leaves, or is missed.

As in `consumer_heartbeat` nothing is changed here: what differs from the log becomes records. What is simpler: there
are no instances and no regular expressions, and a member has its whole target at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clarion.groups import records as r
from clarion.groups import share_records as s
from clarion.groups.consumer_group import JOIN_EPOCH, MemberState
from clarion.groups.memory import weight_of_member
from clarion.groups.names import check_names
from clarion.groups.outcome import Call
from clarion.groups.partitions import NOTHING, Partitions
from clarion.groups.shard import Step
from clarion.groups.share_assignor import assign
from clarion.groups.share_group import ShareGroup
from clarion.groups.subscriptions import metadata_hash, subscriptions
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import TopicPartitions
from clarion.wire.messages.share_groups import (
    ShareAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

LEAVE_EPOCH = -1
LOST_APPEND_RETRY_MS = 1_000  # as for members of KIP-848 groups: a member that could not be removed is tried again


def check(request: ShareGroupHeartbeatRequest) -> None:
    """What is wrong with a request whatever the group looks like."""
    _require(bool(request.group_id), "the group id is missing")
    _require(bool(request.member_id), "the member id is missing")
    check_names(request.group_id, request.member_id)
    _require(request.rack_id != "", "a rack id cannot be empty")
    _require(request.member_epoch >= LEAVE_EPOCH, "no such member epoch")
    if request.member_epoch == JOIN_EPOCH:
        _require(bool(request.subscribed_topic_names), "a joining member tells what it subscribes to")


def heartbeat(step: Step, group: ShareGroup, request: ShareGroupHeartbeatRequest, call: Call) -> None:
    member_id = request.member_id
    before = _take_seat(step, group, request)
    known = group.members.get(member_id)
    told = _told(known, request, call)
    more = weight_of_member(told) - (weight_of_member(known) if known else 0)
    step.shard.check_room_for_members(group.group_id, more)
    if told != known:
        _write(step, group, s.SHARE_MEMBER_TYPE, member_id, s.encode_share_member(told))
    members = {**group.members, member_id: told} if told != known else group.members
    is_new_wish = known is None or known.subscribed_topic_names != told.subscribed_topic_names
    target_epoch, target = _advance(step, group, members, member_id, is_changed=is_new_wish)
    after = before
    if before.member_epoch != target_epoch or before.assigned != target or member_id not in group.currents:
        after = r.CurrentAssignment(target_epoch, before.member_epoch, MemberState.STABLE, target, NOTHING)
        _write(step, group, s.SHARE_CURRENT_TYPE, member_id, s.encode_share_current(after))
    session_ms = step.shard.config_of(group.group_id).share_session_timeout_ms
    step.shard.timers.start(TimerKey(TimerKind.SESSION, group.group_id, member_id), step.now_ms + session_ms)
    step.out.reply(call.ticket, _response(step, request, before, after))


def leave(step: Step, group: ShareGroup, request: ShareGroupHeartbeatRequest, call: Call) -> None:
    if request.member_id not in group.members:
        raise _unknown(request)
    remove(step, group, [request.member_id])
    reply = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
    step.out.reply(call.ticket, reply)


def remove(step: Step, group: ShareGroup, member_ids: Sequence[str]) -> None:
    """A new epoch without a target: the next heartbeat of anybody will make one."""
    for member_id in member_ids:
        for kind in (s.SHARE_CURRENT_TYPE, s.SHARE_TARGET_MEMBER_TYPE, s.SHARE_MEMBER_TYPE):
            _write(step, group, kind, member_id, None)
    left = {one: member for one, member in group.members.items() if one not in member_ids}
    bump(step, group, metadata_hash(left, {}, step.shard.topics))


def bump(step: Step, group: ShareGroup, hashed: int) -> None:
    _write(step, group, s.SHARE_GROUP_TYPE, "", s.encode_share_epoch(r.GroupEpoch(group.epoch + 1, hashed)))


def start_timers(step: Step, group: ShareGroup) -> None:
    """After a restart: everybody has a whole session."""
    session_ms = step.shard.config_of(group.group_id).share_session_timeout_ms
    for member_id in group.members:
        step.shard.timers.start(TimerKey(TimerKind.SESSION, group.group_id, member_id), step.now_ms + session_ms)


def on_timers(step: Step, group: ShareGroup, keys: Sequence[TimerKey]) -> None:
    """All that is due for this group, in one step."""
    gone = {key.member_id: key for key in keys if key.kind is TimerKind.SESSION and key.member_id in group.members}
    for key in gone.values():
        step.shard.timers.start(key, step.now_ms + LOST_APPEND_RETRY_MS)
    if gone:
        remove(step, group, list(gone))


def erase(step: Step, group: ShareGroup) -> None:
    """Tombstones for an empty group."""
    for kind in (s.SHARE_STATE_TYPE, s.SHARE_TARGET_EPOCH_TYPE, s.SHARE_GROUP_TYPE):
        _write(step, group, kind, "", None)


def put_initialized(step: Step, group: ShareGroup, topics: s.Initialized) -> None:
    """Other partitions can be given to members from now on; their next heartbeat will see to it."""
    _write(step, group, s.SHARE_STATE_TYPE, "", s.encode_initialized(topics))
    bump(step, group, group.metadata_hash)


def _take_seat(step: Step, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> r.CurrentAssignment:
    """Where the member is; or why it has no business here."""
    current = group.current(request.member_id)
    if request.member_epoch == JOIN_EPOCH:
        is_new = request.member_id not in group.members
        if is_new and len(group.members) >= step.shard.config_of(group.group_id).share_members_max:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return current
    if request.member_id not in group.members:
        raise _unknown(request)
    # Our last answer, with the newer epoch, may have been lost: the epoch before is good as well.
    if request.member_epoch not in (current.member_epoch, current.previous_member_epoch):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH, f"member epoch {request.member_epoch}, expected {current.member_epoch}"
        )
    return current


def _told(before: r.MemberMetadata | None, request: ShareGroupHeartbeatRequest, call: Call) -> r.MemberMetadata:
    """What we know about the member after this request: null means unchanged."""
    names = request.subscribed_topic_names
    known = before.subscribed_topic_names if before else ()
    return s.share_member(
        request.rack_id or (before.rack_id if before else None),
        call.client_id,
        call.client_host,
        known if names is None else tuple(sorted(set(names))),
    )


def _advance(
    step: Step, group: ShareGroup, members: Mapping[str, r.MemberMetadata], member_id: str, *, is_changed: bool
) -> tuple[int, Partitions]:
    """A new epoch if members or topics changed, and a target for it. The target's epoch, and the member's part."""
    epoch = group.epoch
    shard = step.shard
    if is_changed or group.topics_version_seen != shard.topics_version:
        hashed = metadata_hash(members, {}, shard.topics)
        is_changed |= hashed != group.metadata_hash
        group.topics_version_seen = -1 if is_changed else shard.topics_version
    if is_changed:
        epoch += 1
        bump(step, group, hashed)
    if epoch == group.target_epoch:
        return epoch, group.target(member_id)
    wanted = subscriptions(members, {}, shard.topics)
    targets = assign(sorted(members), wanted, group.deliverable(shard.topics), group.targets)
    for one, partitions in targets.items():
        if group.targets.get(one) != partitions:
            _write(step, group, s.SHARE_TARGET_MEMBER_TYPE, one, r.encode_target(partitions))
    target_epoch = r.encode_target_epoch(r.TargetEpoch(epoch, step.wall_ms))
    _write(step, group, s.SHARE_TARGET_EPOCH_TYPE, "", target_epoch)
    return epoch, targets[member_id]


def _response(
    step: Step, request: ShareGroupHeartbeatRequest, before: r.CurrentAssignment, after: r.CurrentAssignment
) -> ShareGroupHeartbeatResponse:
    is_full = request.subscribed_topic_names is not None
    is_behind = request.member_epoch != before.member_epoch
    is_told = is_full or is_behind or request.member_epoch == JOIN_EPOCH or before.assigned != after.assigned
    assignment = ShareAssignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in sorted(after.assigned.items())
        )
    )
    return ShareGroupHeartbeatResponse(
        member_id=request.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval=step.shard.config_of(request.group_id).share_heartbeat_interval_ms,
        assignment=assignment if is_told else None,
    )


def _write(step: Step, group: ShareGroup, kind: int, name: str, value: bytes | None) -> None:
    step.out.write(r.encode_key(r.Key(kind, group.group_id, name)), value)


def _unknown(request: ShareGroupHeartbeatRequest) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not a member of {request.group_id}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
