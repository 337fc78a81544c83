"""LeaveGroup (13), versions 0–5. v3 lets many members leave at once and knows static members, v5 adds the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberIdentity:
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveGroupRequest:
    """Up to v2 `member_id`, from v3 `members`."""

    group_id: str
    member_id: str = ""
    members: tuple[MemberIdentity, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberResponse:
    member_id: str
    group_instance_id: str | None = None
    error_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveGroupResponse:
    throttle_time: int = 0
    error_code: int = 0
    members: tuple[MemberResponse, ...] = ()
