"""ConsumerGroupHeartbeat: a member tells its wishes and what it holds, and hears what it shall hold (KIP-848).

Nothing is changed here: the group as it will be is a `Draft`, and what differs from the log becomes records.
"""

from __future__ import annotations

from uuid import UUID

from clarion.groups.assignors import ASSIGNORS
from clarion.groups.consumer_draft import Draft
from clarion.groups.consumer_group import (
    JOIN_EPOCH,
    NEWCOMER,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    MemberState,
)
from clarion.groups.memory import weight_of_member
from clarion.groups.names import check_names
from clarion.groups.outcome import Call
from clarion.groups.partitions import NOTHING, Partitions, collect, is_subset
from clarion.groups.reconciliation import reconcile
from clarion.groups.records import CurrentAssignment, MemberMetadata
from clarion.groups.shard import Step
from clarion.groups.subscriptions import check_regex
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import (
    ConsumerAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


def check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """What is wrong with a request whatever the group looks like."""
    _require(bool(request.group_id), "the group id is missing")
    check_names(request.group_id, request.member_id, request.instance_id)
    _require(
        bool(request.member_id) or (version == 0 and request.member_epoch == JOIN_EPOCH), "the member id is missing"
    )
    _require(request.instance_id != "", "an instance id cannot be empty")
    _require(request.rack_id != "", "a rack id cannot be empty")
    _require(request.member_epoch >= STATIC_LEAVE_EPOCH, "no such member epoch")
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        _require(request.instance_id is not None, "only a member with an instance id can leave for a while")
    if request.member_epoch == JOIN_EPOCH:
        wishes = (request.subscribed_topic_names, request.subscribed_topic_regex)
        _require(request.rebalance_timeout > 0, "a joining member tells its rebalance timeout")
        _require(request.topic_partitions == (), "a joining member owns no partitions, and says so")
        _require(any(wish is not None for wish in wishes), "a joining member tells what it subscribes to")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{request.server_assignor} is not one of {known}")
    if request.subscribed_topic_regex:
        check_regex(request.subscribed_topic_regex)


def heartbeat(step: Step, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, call: Call) -> None:
    member_id = request.member_id or str(step.shard.new_uuid())
    owned = _owned(request)
    draft = Draft(group, step)
    before = _take_seat(draft, member_id, request, owned)
    told = _told(draft.members.get(member_id), request, call)
    known = draft.members.get(member_id)
    step.shard.check_room_for_members(
        group.group_id, weight_of_member(told) - (weight_of_member(known) if known else 0)
    )
    draft.put_member(member_id, told)
    draft.follow_topics()
    draft.advance()
    after = reconcile(
        before, draft.target(member_id), draft.target_epoch, lambda one: draft.is_free(one, member_id), owned
    )
    draft.put_current(member_id, after)
    _set_timers(step, group.group_id, member_id, draft.members[member_id], before, after)
    step.out.reply(call.ticket, _response(step, member_id, request, before, after))


def _take_seat(
    draft: Draft, member_id: str, request: ConsumerGroupHeartbeatRequest, owned: Partitions | None
) -> CurrentAssignment:
    """Where the member is; or why it has no business here."""
    if request.instance_id is not None:
        return _take_static_seat(draft, member_id, request.instance_id, request, owned)
    if request.member_epoch == JOIN_EPOCH:
        if member_id not in draft.members:
            check_room(draft)
        return draft.group.current(member_id)
    return _resume(draft, member_id, request, owned)


def _take_static_seat(
    draft: Draft,
    member_id: str,
    instance_id: str,
    request: ConsumerGroupHeartbeatRequest,
    owned: Partitions | None,
) -> CurrentAssignment:
    if request.member_epoch != JOIN_EPOCH:
        draft.group.check_static(member_id, instance_id)
        return _resume(draft, member_id, request, owned)
    holder = draft.group.static_ids.get(instance_id)
    if holder is None:
        check_room(draft)
        return NEWCOMER
    if holder == member_id:
        return draft.group.current(member_id)
    is_classic = draft.members[holder].classic is not None  # such a one cannot say that it goes for a while
    if not is_classic and draft.group.current(holder).member_epoch != STATIC_LEAVE_EPOCH:
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, f"instance id {instance_id} is still in use by {holder}")
    draft.rename_member(holder, member_id)
    return draft.group.current(holder)._replace(member_epoch=JOIN_EPOCH, previous_member_epoch=-1)


def _resume(
    draft: Draft, member_id: str, request: ConsumerGroupHeartbeatRequest, owned: Partitions | None
) -> CurrentAssignment:
    if member_id not in draft.members:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of {request.group_id}")
    current = draft.group.current(member_id)
    if request.member_epoch == current.member_epoch:
        return current
    # Our last answer, with the newer epoch, may have been lost: then the member holds nothing that we did not give it.
    is_one_behind = current.previous_member_epoch == request.member_epoch < current.member_epoch
    if is_one_behind and owned is not None and is_subset(owned, current.assigned):
        return current
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH, f"member epoch {request.member_epoch}, expected {current.member_epoch}"
    )


def check_room(draft: Draft) -> None:
    if len(draft.members) >= draft.step.shard.config_of(draft.group.group_id).consumer_members_max:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)


def _told(before: MemberMetadata | None, request: ConsumerGroupHeartbeatRequest, call: Call) -> MemberMetadata:
    """What we know about the member after this request: null means unchanged, an empty regex means none any more."""
    known = before or MemberMetadata(None, None, "", "", (), None, -1, None)
    names = request.subscribed_topic_names
    regex = request.subscribed_topic_regex
    return MemberMetadata(
        instance_id=request.instance_id or known.instance_id,
        rack_id=request.rack_id or known.rack_id,
        client_id=call.client_id,
        client_host=call.client_host,
        subscribed_topic_names=known.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=known.subscribed_topic_regex if regex is None else regex or None,
        rebalance_timeout_ms=known.rebalance_timeout_ms
        if request.rebalance_timeout == -1
        else request.rebalance_timeout,
        server_assignor=request.server_assignor or known.server_assignor,
    )


def _set_timers(
    step: Step,
    group_id: str,
    member_id: str,
    member: MemberMetadata,
    before: CurrentAssignment,
    after: CurrentAssignment,
) -> None:
    timers = step.shard.timers
    session_ms = step.shard.config_of(group_id).consumer_session_timeout_ms
    timers.start(TimerKey(TimerKind.SESSION, group_id, member_id), step.now_ms + session_ms)
    for kind in (TimerKind.JOIN, TimerKind.SYNC):  # should it have been a classic member before
        timers.cancel(TimerKey(kind, group_id, member_id))
    key = TimerKey(TimerKind.REVOKE, group_id, member_id)
    if after.state != MemberState.UNREVOKED:
        timers.cancel(key)
    elif after != before or key not in timers:
        timers.start(key, step.now_ms + member.rebalance_timeout_ms)


def _response(
    step: Step,
    member_id: str,
    request: ConsumerGroupHeartbeatRequest,
    before: CurrentAssignment,
    after: CurrentAssignment,
) -> ConsumerGroupHeartbeatResponse:
    is_full = (
        request.rebalance_timeout != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    is_behind = request.member_epoch != before.member_epoch
    is_told = is_full or is_behind or request.member_epoch == JOIN_EPOCH or before.assigned != after.assigned
    return ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval=step.shard.config_of(request.group_id).consumer_heartbeat_interval_ms,
        assignment=_assignment(after.assigned) if is_told else None,
    )


def _assignment(partitions: Partitions) -> ConsumerAssignment:
    return ConsumerAssignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in sorted(partitions.items())
        )
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    pairs: list[tuple[UUID, tuple[int, ...]]] = [(one.topic_id, one.partitions) for one in request.topic_partitions]
    return collect(pairs) if pairs else NOTHING


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
