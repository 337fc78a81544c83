"""What is asked of share groups: by members, by administrators, and by the driver when share state has begun.

Methods of the coordinator in all but place: `(coordinator, request, circumstances)`, as its driver calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from clarion.groups import share_heartbeat
from clarion.groups.consumer_group import JOIN_EPOCH
from clarion.groups.coordinator import GroupCoordinator
from clarion.groups.group_admin import described_partitions
from clarion.groups.outcome import Call, Outcome
from clarion.groups.shard import Shard, Step
from clarion.groups.share_group import ShareGroup
from clarion.groups.share_records import InitializedTopic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.share_groups import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

ASSIGNOR_NAME = "simple"  # Kafka's name for its only one

Named = Mapping[UUID, InitializedTopic]


class Begun(NamedTuple):
    """The share state of these partitions has begun, or has ended."""

    group_id: str
    topics: Named
    is_over: bool = False


def heartbeat(coordinator: GroupCoordinator, request: ShareGroupHeartbeatRequest, call: Call) -> Outcome:
    shard = coordinator.shard
    step = Step(shard, Outcome(), call.now_ms, call.wall_ms)
    try:
        shard.check_topics_known()
        share_heartbeat.check(request)
        group = _group_of(shard, request)
        if request.member_epoch >= JOIN_EPOCH:
            share_heartbeat.heartbeat(step, group, request, call)
        else:
            share_heartbeat.leave(step, group, request, call)
    except KafkaError as refusal:
        reply = ShareGroupHeartbeatResponse(error_code=refusal.code, error_message=refusal.message or None)
        return Outcome(replies=[(call.ticket, reply)])
    return step.out


def describe(coordinator: GroupCoordinator, request: ShareGroupDescribeRequest, call: Call) -> Outcome:
    groups = tuple(_described(coordinator.shard, group_id) for group_id in request.group_ids)
    return Outcome(replies=[(call.ticket, ShareGroupDescribeResponse(groups=groups))])


def begin(coordinator: GroupCoordinator, request: Begun, call: Call) -> Outcome:
    """The driver has initialized share state, or deleted it. The answer is whether the group still knows of it."""
    shard = coordinator.shard
    group = shard.share(request.group_id)
    if group is None:
        return Outcome(replies=[(call.ticket, False)])
    step = Step(shard, Outcome(), call.now_ms, call.wall_ms)
    topics = {topic_id: topic for topic_id, topic in group.initialized.items() if topic_id in shard.topics.names}
    for topic_id, topic in request.topics.items():
        before = topics[topic_id].partitions if topic_id in topics else frozenset()
        after = before - topic.partitions if request.is_over else before | topic.partitions
        topics[topic_id] = InitializedTopic(topic.name, after)
        if not after:
            del topics[topic_id]
    if topics != group.initialized:
        share_heartbeat.put_initialized(step, group, topics)
    step.out.reply(call.ticket, True)
    return step.out


def uninitialized(coordinator: GroupCoordinator, group_id: str) -> Named:
    """Partitions that a group's members want and whose share state has not begun."""
    shard = coordinator.shard
    group = shard.share(group_id)
    missing = group.uninitialized(shard.topics) if group is not None else {}
    return {topic_id: InitializedTopic(*one) for topic_id, one in missing.items()}


def find(coordinator: GroupCoordinator, group_id: str) -> ShareGroup | None:
    return coordinator.shard.share(group_id)


def share_group(coordinator: GroupCoordinator, group_id: str) -> ShareGroup:
    group = find(coordinator, group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id}")
    return group


def _group_of(shard: Shard, request: ShareGroupHeartbeatRequest) -> ShareGroup:
    group = shard.groups.get(request.group_id)
    if isinstance(group, ShareGroup):
        return group
    if group is not None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{request.group_id} is not a share group")
    if request.member_epoch != JOIN_EPOCH:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {request.group_id}")
    return ShareGroup(request.group_id)


def _described(shard: Shard, group_id: str) -> DescribedShareGroup:
    group = shard.share(group_id)
    if group is None:
        code = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
        message = f"there is no share group {group_id}"
        return DescribedShareGroup(group_id=group_id, error_code=code, error_message=message, group_state="Dead")
    return DescribedShareGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=ASSIGNOR_NAME,
        members=tuple(
            DescribedShareMember(
                member_id=member_id,
                rack_id=member.rack_id,
                member_epoch=group.current(member_id).member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=member.subscribed_topic_names,
                assignment=described_partitions(group.current(member_id).assigned, shard.topics.names),
            )
            for member_id, member in sorted(group.members.items())
        ),
    )
