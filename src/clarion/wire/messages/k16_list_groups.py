"""ListGroups (16), versions 0–5. v4 filters by state, v5 by type."""

from __future__ import annotations

from clarion.wire.messages import message


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
