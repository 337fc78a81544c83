"""DeleteGroups (42), versions 0–2."""

from __future__ import annotations

from clarion.wire.messages import message


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
