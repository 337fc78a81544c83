"""Groups of both protocols: their members' requests, and what administrators ask."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message

# JoinGroup (11), versions 0–9. v1 adds the rebalance timeout, v4 the two-step join, v5 static members, v8 the reason,
# v9 skip_assignment.


@message
class JoinGroupRequestProtocol:
    name: str
    metadata: bytes


@message
class JoinGroupRequest:
    group_id: str
    session_timeout: int
    rebalance_timeout: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocols: tuple[JoinGroupRequestProtocol, ...] = ()
    reason: str | None = None


@message
class JoinGroupResponseMember:
    member_id: str
    group_instance_id: str | None = None
    metadata: bytes = b""


@message
class JoinGroupResponse:
    throttle_time: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""  # before v7 it cannot be null, not even beside an error
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinGroupResponseMember, ...] = ()


# SyncGroup (14), versions 0–5. v3 adds static members, v5 the protocol's type and name.


@message
class SyncGroupRequestAssignment:
    member_id: str
    assignment: bytes


@message
class SyncGroupRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupRequestAssignment, ...] = ()


@message
class SyncGroupResponse:
    throttle_time: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# Heartbeat (12), versions 0–4. v3 adds static members.


@message
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@message
class HeartbeatResponse:
    throttle_time: int = 0
    error_code: int = 0


# LeaveGroup (13), versions 0–5. v3 lets many members leave at once and knows static members, v5 adds the reason.


@message
class MemberIdentity:
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None


@message
class LeaveGroupRequest:
    """Up to v2 `member_id`, from v3 `members`."""

    group_id: str
    member_id: str = ""
    members: tuple[MemberIdentity, ...] = ()


@message
class MemberResponse:
    member_id: str
    group_instance_id: str | None = None
    error_code: int = 0


@message
class LeaveGroupResponse:
    throttle_time: int = 0
    error_code: int = 0
    members: tuple[MemberResponse, ...] = ()


# ConsumerGroupHeartbeat (68, KIP-848), versions 0–1. v1 adds regular expressions and member ids made by the client.


@message
class TopicPartitions:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[int, ...] = ()


@message
class ConsumerGroupHeartbeatRequest:
    """Null (or -1) means "as I said before"; a request at epoch 0 says everything."""

    group_id: str
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


@message
class ConsumerAssignment:
    topic_partitions: tuple[TopicPartitions, ...] = ()


@message
class ConsumerGroupHeartbeatResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: int = 0
    assignment: ConsumerAssignment | None = None


# DescribeGroups (15), versions 0–6. v3 adds authorized operations, v4 instance ids, v6 GROUP_ID_NOT_FOUND.

NO_OPERATIONS = -(2**31)


@message
class DescribeGroupsRequest:
    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@message
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@message
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@message
class DescribeGroupsResponse:
    throttle_time: int = 0
    groups: tuple[DescribedGroup, ...] = ()


# ConsumerGroupDescribe (69, KIP-848), versions 0–1. v1 adds the member type.


@message
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@message
class DescribedTopicPartitions:
    topic_id: UUID = NO_TOPIC_ID
    topic_name: str = ""
    partitions: tuple[int, ...] = ()


@message
class DescribedAssignment:
    topic_partitions: tuple[DescribedTopicPartitions, ...] = ()


@message
class DescribedConsumer:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment = DescribedAssignment()
    target_assignment: DescribedAssignment = DescribedAssignment()
    member_type: int = -1


@message
class DescribedConsumerGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@message
class ConsumerGroupDescribeResponse:
    throttle_time: int = 0
    groups: tuple[DescribedConsumerGroup, ...] = ()


# ListGroups (16), versions 0–5. v4 filters by state, v5 by type.


@message
class ListGroupsRequest:
    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


@message
class ListedGroup:
    group_id: str
    protocol_type: str = ""
    group_state: str = ""
    group_type: str = ""


@message
class ListGroupsResponse:
    throttle_time: int = 0
    error_code: int = 0
    groups: tuple[ListedGroup, ...] = ()


# DeleteGroups (42), versions 0–2.


@message
class DeleteGroupsRequest:
    groups_names: tuple[str, ...] = ()


@message
class DeletableGroupResult:
    group_id: str
    error_code: int = 0


@message
class DeleteGroupsResponse:
    throttle_time: int = 0
    results: tuple[DeletableGroupResult, ...] = ()
