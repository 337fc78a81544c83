"""What administrators ask: list, describe and delete groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from clarion.groups import records as r
from clarion.groups import share_heartbeat
from clarion.groups.classic_group import ClassicGroup, ClassicMember, ClassicState
from clarion.groups.consumer_draft import assignor_of
from clarion.groups.consumer_group import ConsumerGroup
from clarion.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from clarion.groups.offset_requests import drop
from clarion.groups.partitions import Partitions
from clarion.groups.shard import Group, Shard, Step
from clarion.groups.share_group import ShareGroup
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import (
    DeletableGroupResult,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribedGroupMember,
    DescribedTopicPartitions,
    ListedGroup,
    ListGroupsRequest,
)

NOT_FOUND_FROM = 6  # DescribeGroups before: an unknown group is simply dead
MEMBER_IS_CLASSIC, MEMBER_IS_CONSUMER = 0, 1  # ConsumerGroupDescribe: which protocol a member speaks


def list_groups(shard: Shard, request: ListGroupsRequest) -> tuple[ListedGroup, ...]:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    listed = (_listed(group) for _, group in sorted(shard.groups.items()))
    return tuple(
        one
        for one in listed
        if (not states or one.group_state.lower() in states) and (not types or one.group_type.lower() in types)
    )


def describe_classic(shard: Shard, group_id: str, version: int) -> DescribedGroup:
    group = shard.classic(group_id)
    if group is None:
        is_error = version >= NOT_FOUND_FROM
        return DescribedGroup(
            group_id=group_id,
            group_state=ClassicState.DEAD,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
            error_message=f"there is no classic group {group_id}" if is_error else None,
        )
    is_stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol_name or "" if is_stable else "",
        members=tuple(_described(group, member, is_stable) for member in group.members.values()),
    )


def describe_consumer(shard: Shard, group_id: str) -> DescribedConsumerGroup:
    group = shard.consumer(group_id)
    if group is None:
        code = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
        message = f"there is no consumer group {group_id}"
        return DescribedConsumerGroup(group_id=group_id, error_code=code, error_message=message)
    names = shard.topics.names
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=assignor_of(group.members),
        members=tuple(_described_consumer(group, member_id, names) for member_id in sorted(group.members)),
    )


def delete_groups(step: Step, group_ids: Iterable[str]) -> tuple[DeletableGroupResult, ...]:
    return tuple(
        DeletableGroupResult(group_id=group_id, error_code=_delete_one(step, group_id))
        for group_id in dict.fromkeys(group_ids)
    )


def erase(step: Step, group: Group) -> None:
    """Tombstones for all that the log has of a group, its offsets first."""
    for partition in step.shard.offsets.of(group.group_id):
        drop(step, group.group_id, partition)
    erase_membership(step, group)


def erase_membership(step: Step, group: Group) -> None:
    """Tombstones for an empty group; its offsets stay."""

    def bury(kind: int, name: str = "") -> None:
        step.out.write(r.encode_key(r.Key(kind, group.group_id, name)), None)

    if isinstance(group, ClassicGroup):
        bury(r.CLASSIC_GROUP_TYPE)
        return
    if isinstance(group, ShareGroup):
        share_heartbeat.erase(step, group)
        return
    for regex in group.regexes:
        bury(r.REGEX_TYPE, regex)
    bury(r.TARGET_EPOCH_TYPE)
    bury(r.CONSUMER_GROUP_TYPE)


def type_of(group: Group) -> str:
    if isinstance(group, ClassicGroup):
        return "classic"
    return "share" if isinstance(group, ShareGroup) else "consumer"


def _listed(group: Group) -> ListedGroup:
    if isinstance(group, ClassicGroup):
        protocol_type = group.protocol_type or ""
    else:
        protocol_type = "share" if isinstance(group, ShareGroup) else CONSUMER_PROTOCOL_TYPE
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=protocol_type,
        group_state=group.state,
        group_type=type_of(group),
    )


def _described(group: ClassicGroup, member: ClassicMember, is_stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
        member_assignment=member.assignment if is_stable else b"",
    )


def _described_consumer(group: ConsumerGroup, member_id: str, names: Mapping[UUID, str]) -> DescribedConsumer:
    member, current = group.members[member_id], group.current(member_id)
    told: dict[str, Any] = {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex,
    }
    return DescribedConsumer(
        member_id=member_id,
        member_epoch=current.member_epoch,
        assignment=described_partitions(current.assigned, names),
        target_assignment=described_partitions(group.target(member_id), names),
        member_type=MEMBER_IS_CONSUMER if member.classic is None else MEMBER_IS_CLASSIC,
        **told,
    )


def described_partitions(partitions: Partitions, names: Mapping[UUID, str]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=tuple(
            DescribedTopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=tuple(sorted(numbers)))
            for topic_id, numbers in sorted(partitions.items())
            if topic_id in names  # deleted meanwhile
        )
    )


def _delete_one(step: Step, group_id: str) -> ErrorCode:
    group = step.shard.groups.get(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if not group.is_empty:
        return ErrorCode.NON_EMPTY_GROUP
    erase(step, group)
    return ErrorCode.NONE
