"""LeaveGroup (13), versions 0–5. v3 lets many members leave at once and knows static members, v5 adds the reason."""

from __future__ import annotations

from clarion.wire.messages import message


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
