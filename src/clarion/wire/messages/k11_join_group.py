"""JoinGroup (11), versions 0–9.

v1 adds the rebalance timeout, v4 the two-step join, v5 static members, v8 the reason, v9 skip_assignment.
"""

from __future__ import annotations

from clarion.wire.messages import message


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
