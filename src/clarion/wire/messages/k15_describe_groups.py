"""DescribeGroups (15), versions 0–6. v3 adds authorized operations, v4 instance ids, v6 GROUP_ID_NOT_FOUND."""

from __future__ import annotations

from clarion.wire.messages import message

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
